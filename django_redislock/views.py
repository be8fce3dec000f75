"""``locked_view``: one request at a time, until its transactions have committed."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from logging import ERROR
from typing import Any, Literal, TypeVar

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.functional import LazyObject, empty
from redis.backoff import AbstractBackoff

from . import blocks
from .answers import OnConflict, conflict, unavailable
from .conf import Seconds, conf
from .decorators import Name, name_maker, refuse_generators
from .exceptions import LockUnavailable
from .lock import FairLock, Lock, Loop
from .log import log_event
from .steps import Call, Steps, Work, arun, run_blocking
from .transactions import LateRelease, open_transactions

R = TypeVar("R")

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


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
    wait: Literal["wake", "poll"] | None = None,
    backoff: AbstractBackoff | None = None,
    attempts: int | None = None,
    note: str = "",
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Let only one request at a time run a view for the same ``key``, over all processes.

    ``key`` is a template over the URL's arguments and ``request`` (``"order:{pk}"``, ``"user:{request.user.pk}"``,
    values quoted as by :func:`lock_name`), or a callable that gets what the view gets and answers the name.

    Others wait ``blocking_timeout`` seconds (0: not at all; None: by the settings) and are then answered with 423
    Locked and ``Retry-After``: the template ``423.html`` where the site has one, JSON for clients that prefer it, else
    plain text; or with what ``on_conflict(request, info)`` returns (setting VIEW_ON_CONFLICT). ``methods`` are the HTTP
    methods that lock; None: all but OPTIONS, those that a client invents as well. The other options are those of
    :class:`Lock`.

    The lock is held until what the view wrote can be read. Under ATOMIC_REQUESTS the transactions begin inside the
    lock; where Django has begun them already (a single method of a class, below ``@api_view``), the lock goes when they
    have committed. A streaming response keeps it until its content ends or the response is closed. When the lock is
    known to be lost as the view returns, LockLost goes up and the transactions are rolled back.

    LockUnavailable, when Redis cannot be reached, goes up (or is answered with the status in the setting
    VIEW_UNAVAILABLE_STATUS); the view never runs unlocked.
    """
    kind = FairLock if fair else Lock
    name_of = name_maker(key)
    options: dict[str, Any] = {
        "ttl": ttl,
        "blocking_timeout": blocking_timeout,
        "auto_renew": auto_renew,
        "using": using,
        "wait": wait,
        "backoff": backoff,
        "attempts": attempts,
        "note": note,
    }
    kind("check", **options)
    locking = _methods(methods)
    if on_conflict is not None and not callable(on_conflict):
        raise TypeError(f"on_conflict must be a callable (request, info), not {on_conflict!r}.")

    def decorate(view: Callable[..., R]) -> Callable[..., R]:
        refuse_generators(view, "locked_view")
        if isinstance(view, type):
            raise TypeError(
                f"locked_view cannot decorate the class {view.__qualname__}: use "
                f"@method_decorator(locked_view(...), name='dispatch')."
            )

        def guarded(
            request: HttpRequest, args: Any, kwargs: Any, loop: Loop | None, aliases: list[str], begun: list[str]
        ) -> Steps[Any]:
            signature = _signature(view, request, *args, **kwargs)
            name = yield Work(lambda: name_of(signature, (request, *args), {**kwargs}, request=request))
            lock = kind(name, **options)
            lock.purpose = f"{_user_of(request)}{request.method} {request.path}"
            try:
                refusal = yield from lock._take(loop)
                if refusal is not None:
                    return (yield from conflict(request, lock, refusal, on_conflict))
            except LockUnavailable as error:
                status = conf().VIEW_UNAVAILABLE_STATUS
                if status is None:
                    raise
                log_event(ERROR, "unavailable", name=lock.name, path=request.path, error=error)
                return (yield Work(lambda: unavailable(request, status)))
            lease = lock._lease()
            function = open_transactions(view, aliases, lease) if loop is None else view
            try:
                response = yield Call(function, (request, *args), kwargs)
            except BaseException as error:
                if begun:  # whoever catches it may still commit
                    LateRelease(lock, lease, request, None, begun)
                else:
                    yield from lock._failed(lease, error, loop)
                raise
            if begun or isinstance(response, StreamingHttpResponse):
                LateRelease(lock, lease, request, response, begun)
                return response
            yield from lock._release_surely(lease, path=request.path)
            blocks.complain_of_release(lock.name)
            return response

        def locks(request: HttpRequest) -> bool:
            if not hasattr(request, "META"):
                raise TypeError(
                    f"locked_view got {request!r} where a request was expected. To decorate a method of a class, use "
                    f"@method_decorator(locked_view(...))."
                )
            return request.method != "OPTIONS" if locking is None else request.method in locking

        @wraps(view)
        def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            locked = locks(request)
            aliases = _to_open(request, wrapper, view)
            if _is_async(view, request):
                if aliases:  # what Django says, where it does not see our mark
                    raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")
                return awrapper(request, *args, **kwargs)
            if not locked:
                return open_transactions(view, aliases)(request, *args, **kwargs)
            return run_blocking(guarded(request, args, kwargs, None, aliases, blocks.begun()), "an async view")

        @wraps(view)
        async def awrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if not locks(request):
                return await view(request, *args, **kwargs)  # type: ignore[misc]
            return await arun(guarded(request, args, kwargs, asyncio.get_running_loop(), [], []))

        if iscoroutinefunction(view):
            return awrapper  # type: ignore[return-value]
        wrapper._non_atomic_requests = OpenedHere(_excluded(view))  # type: ignore[attr-defined]
        return wrapper

    return decorate


class OpenedHere:
    """Tells Django's handler to open no transaction for a view, since that is done inside the lock.

    It stands where the aliases stand that ``@non_atomic_requests`` excludes, and knows those that were meant.
    """

    def __init__(self, excluded: Iterable[str]) -> None:
        self.excluded = frozenset(excluded)

    def __contains__(self, alias: object) -> bool:
        return True

    def add(self, alias: str) -> None:
        """``non_atomic_requests`` is above ``locked_view``.

        Decorators and ``as_view()`` copy the reference to this object from view to view, and what is excluded for one
        must not be for another. So the view that it is said of, which Django does not tell us, gets a mark of its own.
        """
        view = sys._getframe(1).f_locals.get("view")
        instance = _instance_of(view)
        if view is None:  # not Django's decorator
            self.excluded |= {alias}
        elif instance is None:
            view._non_atomic_requests = OpenedHere({*self.excluded, alias})
        else:  # method_decorator binds the method anew for each request
            instance._non_atomic_requests = OpenedHere({*_excluded(instance), alias})


def _excluded(view: object) -> frozenset[str]:
    excluded = getattr(view, "_non_atomic_requests", ())
    return excluded.excluded if isinstance(excluded, OpenedHere) else frozenset(excluded)


def _instance_of(view: object) -> Any:
    """That of a class-based view, whose method ``method_decorator`` hands over."""
    return getattr(getattr(view, "func", view), "__self__", None)


def _signature(view: Callable[..., Any], *args: Any, **kwargs: Any) -> inspect.Signature | None:
    """Tells the names of positional arguments, and the defaults of those that the URL leaves out.

    ``method_decorator`` hands over a bound method that claims to be its function, ``self`` included: that of the bound
    method is meant. None where the URL's arguments do not fit, since a decorator in between makes others of them.
    """
    inner = inspect.unwrap(view, stop=lambda each: _instance_of(each) is not None)
    signature = inspect.signature(view if _instance_of(inner) is None else getattr(inner, "func", inner))
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return None
    return signature


def _to_open(request: HttpRequest, *views: object) -> list[str]:
    """The aliases on which Django's handler would have begun, but for us."""
    match = request.resolver_match
    places = (*views, match and match.func, *map(_instance_of, views))
    excluded = frozenset[str]().union(*map(_excluded, places))
    return [
        alias
        for alias, options in connections.settings.items()
        if options["ATOMIC_REQUESTS"] and alias not in excluded and not blocks.in_block(connections[alias])
    ]


def _is_async(view: Callable[..., Any], request: HttpRequest) -> bool:
    """Whether this answers a coroutine, though it is no coroutine function: ``dispatch()`` of an async class, say."""
    if getattr(_instance_of(view), "view_is_async", False):
        return True
    match = request.resolver_match
    return match is not None and iscoroutinefunction(match.func)


def _user_of(request: Any) -> str:
    """Whose request it is, as a prefix, where that is known without asking the database."""
    values = {**getattr(request, "_request", request).__dict__, **request.__dict__}  # DRF's is around Django's
    for attribute in ("_user", "user", "_cached_user", "_acached_user"):
        user = values.get(attribute)
        if isinstance(user, LazyObject) and user.__dict__.get("_wrapped", empty) is empty:
            continue
        try:
            pk = getattr(user, "pk", None)
        except SynchronousOnlyOperation:  # what would have to be loaded
            continue
        if pk is not None:
            return f"user={pk} "
    return ""


def _methods(methods: Iterable[str] | None) -> frozenset[str] | None:
    """None: all but OPTIONS. A list would miss those that clients invent, for which a function view runs as well."""
    if methods is None:
        return None
    if isinstance(methods, str):
        raise TypeError(f"methods must be a list of HTTP methods, such as [{methods!r}], not a str.")
    chosen = frozenset(method.upper() for method in methods)
    unknown = chosen.difference(METHODS)
    if unknown or not chosen:
        raise ValueError(f"methods must name some of {', '.join(METHODS)}; not {', '.join(sorted(unknown)) or 'none'}.")
    return chosen
