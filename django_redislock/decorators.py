"""Decorators: ``locked`` for functions, ``locked_view`` for views."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from math import ceil
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.cache import patch_vary_headers
from django.utils.module_loading import import_string
from django.utils.translation import gettext, ngettext

from . import registry
from .conf import Seconds, conf
from .connection import get_backend
from .exceptions import LockUnavailable
from .lock import FairLock, Lock, Loop
from .names import NameTemplate
from .registry import LockInfo
from .steps import Ask, Call, Steps, Work, arun, run_blocking

logger = logging.getLogger("django_redislock")

P = ParamSpec("P")
R = TypeVar("R")

Name = str | Callable[..., str]
OnConflict = Callable[[HttpRequest, LockInfo | None], HttpResponseBase]

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
# in the order in which a client without a preference gets them
MEDIA_TYPES = ["text/html", "text/plain", "application/json"]


def locked(
    name: Name | None = None, *, fair: bool = False, **options: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let only one call of a function run at a time, over all processes.

    ``name`` is a template over the arguments of the call (``"report:{year}"``, values quoted as by
    :func:`lock_name`), or a callable that gets the arguments and answers the name; None takes ``module.qualname``.
    ``fair`` takes a :class:`FairLock`; the other options are those of :class:`Lock`.

    Raises LockNotAcquired when the lock was not got in time, so that the call did not happen; LockLost when the lock
    was lost while the function ran; LockUnavailable when Redis cannot be reached.
    """
    kind = FairLock if fair else Lock
    name_of = _name_maker(name) if name is not None else None
    kind("check", **options)  # a wrong option is an error here, not at the first call

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        _refuse(function, "locked")
        signature = inspect.signature(function)
        find_name = name_of or _name_maker(
            f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")
        )

        def guarded(args: Any, kwargs: Any, loop: Loop | None) -> Steps[Any]:
            lock = kind(find_name(signature, args, kwargs), **options)
            return lock._around(Call(function, args, kwargs), loop)

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            return run_blocking(guarded(args, kwargs, None), "a coroutine function")

        @wraps(function)
        async def awrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await arun(guarded(args, kwargs, asyncio.get_running_loop()))

        return awrapper if iscoroutinefunction(function) else wrapper  # type: ignore[return-value]

    return decorate


def locked_view(
    key: Name,
    *,
    fair: bool = False,
    ttl: Seconds | None = None,
    blocking_timeout: Seconds | None = 0,
    auto_renew: bool | None = None,
    methods: Iterable[str] | None = None,
    on_conflict: OnConflict | None = None,
    using: str | None = None,
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Let only one request at a time run a view for the same ``key``, over all processes.

    ``key`` is a template over the URL's arguments and ``request`` (``"order:{pk}"``, ``"user:{request.user.pk}"``,
    values quoted as by :func:`lock_name`), or a callable that gets what the view gets and answers the name.

    Others wait ``blocking_timeout`` seconds (0: not at all; None: by the settings) and are then answered with 423
    Locked and ``Retry-After``: the template ``423.html`` where the site has one, JSON for clients that prefer it, else
    plain text; or with what ``on_conflict(request, info)`` returns (setting VIEW_ON_CONFLICT). ``methods`` are the HTTP
    methods that lock; None: all but OPTIONS.

    The lock is released when the view has returned or raised. LockUnavailable, when Redis cannot be reached, goes up
    (or is answered with the status in the setting VIEW_UNAVAILABLE_STATUS); the view never runs unlocked. LockLost
    goes up when the lock was lost while the view ran.
    """
    kind = FairLock if fair else Lock
    name_of = _name_maker(key)
    options: dict[str, Any] = {
        "ttl": ttl,
        "blocking_timeout": blocking_timeout,
        "auto_renew": auto_renew,
        "using": using,
    }
    kind("check", **options)
    locking = _methods(methods)
    if on_conflict is not None and not callable(on_conflict):
        raise TypeError(f"on_conflict must be a callable (request, info), not {on_conflict!r}.")

    def decorate(view: Callable[..., R]) -> Callable[..., R]:
        _refuse(view, "locked_view")

        def guarded(request: HttpRequest, args: Any, kwargs: Any, loop: Loop | None) -> Steps[Any]:
            signature = inspect.signature(view) if args else None
            name = yield Work(lambda: name_of(signature, (request, *args), {**kwargs}, request=request))
            lock = kind(name, **options)
            lock.purpose = f"{request.method} {request.path}"
            try:
                if not (yield from lock._acquire(None, None, None, loop)):
                    return (yield from _conflict(request, lock, on_conflict))
            except LockUnavailable as error:
                status = conf().VIEW_UNAVAILABLE_STATUS
                if status is None:
                    raise
                logger.error("event=unavailable name=%s path=%s error=%r", lock.name, request.path, str(error))
                text = gettext("This cannot be served at the moment. Please try again.")
                return (yield Work(lambda: _refusal(request, status, text, 1)))
            lease = lock._lease()
            try:
                response = yield Call(view, (request, *args), kwargs)
            except BaseException as error:
                yield from lock._exit(error, awaited=loop is not None)
                raise
            try:
                yield from lock._release()
            except LockUnavailable as error:
                # the work is done: an error now would invite the client to do it again
                logger.error("event=not-released name=%s path=%s error=%r", lock.name, request.path, str(error))
                lock._release_later(lease)
            return response

        def locks(request: HttpRequest) -> bool:
            if not hasattr(request, "META"):
                raise TypeError(
                    f"locked_view got {request!r} where a request was expected. To decorate a method of a class, use "
                    f"@method_decorator(locked_view(...))."
                )
            return request.method in locking

        @wraps(view)
        def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if not locks(request):
                return view(request, *args, **kwargs)
            if _of_async_class(view):  # dispatch() answers a coroutine
                return awrapper(request, *args, **kwargs)
            return run_blocking(guarded(request, args, kwargs, None), "an async view")

        @wraps(view)
        async def awrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if not locks(request):
                return await view(request, *args, **kwargs)  # type: ignore[misc]
            return await arun(guarded(request, args, kwargs, asyncio.get_running_loop()))

        return awrapper if iscoroutinefunction(view) else wrapper  # type: ignore[return-value]

    return decorate


def _of_async_class(view: Callable[..., Any]) -> bool:
    """Whether this is a method of a class-based view with coroutine methods, as ``method_decorator`` hands it over."""
    method = getattr(view, "func", view)
    return bool(getattr(getattr(method, "__self__", None), "view_is_async", False))


def _name_maker(name: Name) -> Callable[..., str]:
    """A function (signature, args, kwargs, **more values) that makes the lock's name for one call."""
    if not isinstance(name, str) and callable(name):
        return lambda signature, args, kwargs, **more: name(*args, **kwargs)
    template = NameTemplate(name)

    def fill(signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any], **more: Any) -> str:
        return template.fill({**_arguments(signature, args, kwargs), **more})

    return fill


def _arguments(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The arguments of a call by their names, defaults included, ``**kwargs`` laid flat."""
    if signature is None:
        return kwargs
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    values = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            values.update(values.pop(parameter.name))
    return values


def _refuse(function: Callable[..., Any], decorator: str) -> None:
    """A lock around the mere making of a generator would guard nothing."""
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"{decorator} cannot decorate {function!r}: generators run after the call has returned, when the lock "
            f"would be free again."
        )


def _methods(methods: Iterable[str] | None) -> frozenset[str]:
    if methods is None:
        return frozenset(METHODS) - {"OPTIONS"}
    if isinstance(methods, str):
        raise TypeError(f"methods must be a list of HTTP methods, such as [{methods!r}], not a str.")
    chosen = frozenset(method.upper() for method in methods)
    unknown = chosen.difference(METHODS)
    if unknown or not chosen:
        raise ValueError(f"methods must name some of {', '.join(METHODS)}; not {', '.join(sorted(unknown)) or 'none'}.")
    return chosen


def _conflict(request: HttpRequest, lock: Lock, on_conflict: OnConflict | None) -> Steps[HttpResponseBase]:
    """The answer to a request that did not get its lock."""
    settings = conf()
    answer = on_conflict or (_import(settings.VIEW_ON_CONFLICT) if settings.VIEW_ON_CONFLICT else None)
    if answer is not None:
        holder = yield from registry.inspect(get_backend(lock.using), lock.name)
        return (yield Ask(lambda: answer(request, holder)))  # type: ignore[no-any-return]
    wait = max(1, ceil(lock.busy_for))
    text = ngettext(
        "Somebody else is working on this. Please try again in %(wait)d second.",
        "Somebody else is working on this. Please try again in %(wait)d seconds.",
        wait,
    ) % {"wait": wait}
    return (yield Work(lambda: _refusal(request, settings.VIEW_STATUS, text, wait)))  # type: ignore[no-any-return]


def _import(path: str) -> OnConflict:
    try:
        return import_string(path)  # type: ignore[no-any-return]
    except ImportError as error:
        raise ImproperlyConfigured(f"REDISLOCK['VIEW_ON_CONFLICT'] = {path!r} cannot be imported: {error}") from error


def _refusal(request: HttpRequest, status: int, text: str, retry_after: int) -> HttpResponse:
    """A short answer in the form that the client prefers; the site's own template where it has one."""
    response: HttpResponse
    kind = _preferred_type(request)
    if kind == "application/json":
        response = JsonResponse({"detail": text, "retry_after": retry_after}, status=status)
    else:
        try:
            template = get_template(f"{status}.html") if kind == "text/html" else None
        except TemplateDoesNotExist:
            template = None
        if template is None:
            response = HttpResponse(text, status=status, content_type="text/plain; charset=utf-8")
        else:
            response = HttpResponse(
                template.render({"detail": text, "retry_after": retry_after}, request), status=status
            )
    response.headers["Retry-After"] = str(retry_after)
    patch_vary_headers(response, ["Accept"])
    return response


def _preferred_type(request: HttpRequest) -> str:
    preferred = request.get_preferred_type(MEDIA_TYPES)
    if preferred is not None:
        return preferred
    # "application/vnd.api+json; version=2" matches no media type of ours, yet its client reads JSON
    subtypes = [accepted.sub_type for accepted in request.accepted_types]
    return "application/json" if any(s == "json" or s.endswith("+json") for s in subtypes) else "text/plain"
