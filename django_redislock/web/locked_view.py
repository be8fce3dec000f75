"""``locked_view``: one request at a time, until its transactions have committed; ``limited_view``: at most so many."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.decorators import method_decorator

from ..base import Unpack
from ..base.display import shown
from ..base.pace import note_held
from ..base.steps import Call, CallOut, Steps, arun, run_blocking
from ..base.times import monotonic
from ..call_names import (
    CallTexts,
    Name,
    Names,
    are_several,
    check_function,
    given_name,
    refuse_body,
    signature_of,
    template_of,
    wraps,
)
from ..engine.acquisition import Acquisition, Frame
from ..engine.several import Several, make_acquisition
from ..exceptions import LockLost, LockUnavailable
from ..fencing.claim import begin, open_together
from ..open_transactions import aliases_to_claim, open_aliases, warn_of_release, warn_unclaimed
from ..options import (
    LimitedOptions,
    LockOptions,
    Options,
    SemaphoreOptions,
    SetOptions,
    check_kind,
    check_limit,
    choose_waiting,
    read_options,
)
from .requests import (
    OnConflict,
    check_methods,
    check_on_conflict,
    conflict,
    describe_request,
    unavailable,
    warn_above_login,
)
from .transactions import LateRelease, OpenedHere, to_open

P = ParamSpec("P")
R = TypeVar("R")


def locked_view(
    first: Names | None = None,
    /,
    *,
    name: Names | None = None,
    methods: Iterable[str] | None = None,
    on_conflict: OnConflict | None = None,
    token: str | None = None,
    **options: Unpack[LockOptions],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let only one request at a time run a view for the same name, across all processes.

    The first argument, or ``name``, is a template over the URL's arguments and ``request`` (``"order:{pk}"``,
    ``"user:{request.user.pk}"``, values quoted as by :func:`lock_name`; ``{request.session.session_key:digest}``: see
    :func:`lock_digest`), or a callable that takes what the view takes and returns the name (other than a lambda, it is
    given as ``name``). A list of these takes all the locks, as :class:`LockSet` does, without ``token`` and ``adopt``.
    ``note`` and ``token`` are templates too; their values are not quoted, and a note that is too long is cut.

    A request that cannot acquire the lock within ``blocking_timeout`` seconds (by default 0: at once; None, or with
    ``blocking=True``, ``attempts`` or ``backoff``: from the settings) gets 423 Locked with ``Retry-After``: the
    template ``423.html`` where the site has one, JSON for clients that prefer it, else plain text; or what
    ``on_conflict(request, info)`` returns (setting VIEW_ON_CONFLICT). ``methods`` are the HTTP methods that lock; None:
    all but OPTIONS, including those that a client makes up. The other options are those of :class:`Lock`.

    The lock is held until what the view wrote can be read. Under ATOMIC_REQUESTS the transactions begin inside the
    lock; where Django has begun them already (a single method of a class, below ``@api_view``), the lock is released
    when they have committed. A streaming response keeps it until its content ends or the response is closed. When the
    lock is known to be lost as the view returns, LockLost propagates and the transactions are rolled back.

    On a method, whose first argument is ``self``, it works as through ``method_decorator``; templates and callables do
    not get ``self``.

    LockUnavailable, when Redis cannot be reached, propagates (or becomes a response with the status in the setting
    VIEW_UNAVAILABLE_STATUS); the view never runs unlocked.

    Raises ValueError when it decorates a function, for a field that is none of its arguments. A RuntimeWarning tells
    when it stands above ``login_required`` or the like: then anybody can lock.
    """
    given = given_name(first, name, "locked_view", token)
    checked = _options(options, SetOptions if are_several(given) else LockOptions, "locked_view", given, "token")
    return _decorator("locked_view", given, checked, token, methods, on_conflict)


def limited_view(
    first: Name | None = None,
    /,
    *,
    limit: int,
    name: Name | None = None,
    methods: Iterable[str] | None = None,
    on_conflict: OnConflict | None = None,
    **options: Unpack[SemaphoreOptions],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let at most ``limit`` requests at a time run a view for the same name, across all processes.

        @limited_view("export:{request.user.pk}", limit=2)

    It works like :func:`locked_view`, with a :class:`Semaphore` and its options: the name is made in the same way, the
    permit is held until what the view wrote can be read, and errors are the same. A request beyond the limit is
    answered as there, with 429 Too Many Requests in place of 423 Locked, and the template ``429.html``.
    """
    given = given_name(first, name, "limited_view")
    if are_several(given):
        raise TypeError(f"limited_view takes one name, not a list: {shown(given)}.")
    every: LimitedOptions = {**options, "limit": check_limit(limit)}
    checked = _options(every, LimitedOptions, "limited_view", given)
    return _decorator("limited_view", given, checked, None, methods, on_conflict)


def _options(options: Any, known: type, what: str, given: Names | None, *beside: str) -> Options:
    """Return the options of a view, checked. It does not wait unless they say so."""
    if not choose_waiting(options):
        options.setdefault("blocking_timeout", 0)
    options.setdefault("template", template_of(given))
    return read_options(options, f"{what}()", known, beside=["methods", "name", "on_conflict", *beside])


def _decorator(
    what: str,
    given: Names | None,
    checked: Options,
    token: str | None,
    methods: Iterable[str] | None,
    on_conflict: OnConflict | None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    texts = CallTexts(given, checked.note, token)
    locking = check_methods(methods)
    check_on_conflict(on_conflict)

    def decorate(view: Callable[P, R]) -> Callable[P, R]:
        if isinstance(view, type):
            raise TypeError(
                f"{what} cannot decorate the class {view.__qualname__}: use "
                f"@method_decorator({what}(...), name='dispatch')."
            )
        if iscoroutinefunction(view):  # else only a call shows whether it is sync code: see below
            check_kind(view, checked, what, is_async=True)
        signature, apparent = check_function(view, what), signature_of(view, follow_wrapped=False)
        # the method that method_decorator hands over, anew for each request; else the innermost function
        inner: Any = inspect.unwrap(view, stop=lambda each: _instance_of(each) is not None)
        instance = _instance_of(inner)
        is_method = instance is None and next(iter(signature.parameters), "") == "self"
        below: Any = getattr(view, "__wrapped__", None)  # by another decorator, which may change the arguments
        passes_on = any(each.kind is each.VAR_POSITIONAL for each in apparent.parameters.values())
        # functools.wraps copies a __signature__; method_decorator decorates anew for each request
        if below is None or not (passes_on or hasattr(below, "__signature__") or _instance_of(view) is not None):
            handed = [*apparent.parameters.values()][is_method:]  # without self: method_decorator binds it
            texts.check(view, apparent.replace(parameters=handed), "request")
        if is_method:
            return method_decorator(decorate)(view)  # type: ignore[return-value]
        warn_above_login(view, what)
        # the dispatch() of an async class returns a coroutine, and is no coroutine function
        is_async = getattr(inner, "__name__", "") == "dispatch" and getattr(instance, "view_is_async", False)
        return _LockedView(what, view, is_async, signature, texts, checked, locking, on_conflict).wrap()

    return decorate


@dataclass(frozen=True)
class _LockedView:
    """A view, and how it is locked."""

    what: str  # the decorator
    view: Callable[..., Any]
    is_async: bool  # though it is no coroutine function
    signature: inspect.Signature
    texts: CallTexts
    options: Options
    locking: frozenset[str] | None  # HTTP methods; None: all but OPTIONS
    on_conflict: OnConflict | None

    def wrap(self) -> Callable[..., Any]:
        """The function that takes the place of the view."""
        view = self.view

        @wraps(view)
        def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            locked = self._locks(request)
            aliases = to_open(request, wrapper)
            if self.is_async:
                check_kind(view, self.options, self.what, is_async=True)
                if aliases:  # as Django does, which our mark keeps from noticing
                    raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")
                return awrapper(request, *args, **kwargs)
            if not locked:
                with ExitStack() as opened:
                    open_together(opened, aliases[::-1])  # the last one outermost, as Django's handler nests them
                    return view(request, *args, **kwargs)
            return run_blocking(self._guarded(request, args, kwargs, aliases), "Decorate an async view")

        @wraps(view)
        async def awrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if not self._locks(request):
                return await view(request, *args, **kwargs)
            return await arun(self._guarded(request, args, kwargs, None))

        if iscoroutinefunction(view):
            return awrapper
        wrapper._non_atomic_requests = OpenedHere(view)  # type: ignore[attr-defined]
        return wrapper

    def _locks(self, request: HttpRequest) -> bool:
        if not hasattr(request, "META"):
            raise TypeError(
                f"{self.what} got {request!r} where a request was expected. To decorate a method of a class, use "
                f"@method_decorator({self.what}(...))."
            )
        return request.method != "OPTIONS" if self.locking is None else request.method in self.locking

    def _guarded(self, request: HttpRequest, args: Any, kwargs: Any, aliases: list[str] | None) -> Steps[Any]:
        """``aliases``: on which to open transactions; None for an async view."""
        view, match = self.view, request.resolver_match
        trouble = "it was called without" if match is None else f"this URL (route {match.view_name!r}) has no"
        names, note, token = yield CallOut(
            lambda: self.texts.fill(view, self.signature, (request, *args), kwargs, trouble, request=request),
            twice=True,
        )
        purpose = yield CallOut(lambda: describe_request(request), twice=True)
        try:
            acquisition = make_acquisition(names, self.options.with_note(note), token=token, purpose=purpose)
        except LockUnavailable as error:  # a cluster that was never reached has not said where this lock is
            return (yield from unavailable(request, min(names), purpose, error))
        begun: list[str] = []  # transactions that end after the view
        frame = Frame()
        acquisition.abandon_after(frame)
        try:
            try:
                refusal = yield from acquisition.obtain()
            except LockUnavailable as error:
                acquisition.abandon()
                return (yield from unavailable(request, error.name or min(names), purpose, error))
            if refusal is not None:
                wanted = acquisition.acquisitions
                busy = next((one for one in wanted if one.name == refusal.name), wanted[0])
                return (yield from conflict(request, busy, refusal, self.on_conflict))
            function = view if aliases is None else partial(self._in_transactions, acquisition, aliases)
            try:
                response = yield Call(function, (request, *args), kwargs)
            finally:
                begun = [] if aliases is None else open_aliases()  # with autocommit off, maybe by the view itself
            if begun or isinstance(response, StreamingHttpResponse):
                for lease in acquisition.leases:
                    if aliases is None and lease.lost:
                        raise lease.lost_error()
                    if lease.unclaimed:
                        warn_unclaimed()
                LateRelease(acquisition, request, purpose, response, begun)
            else:
                yield from _release(acquisition, purpose, aliases or [])
            return response
        except BaseException as error:
            if begun:  # whoever catches it may still commit
                LateRelease(acquisition, request, purpose, None, begun)
            else:
                yield from acquisition.fail(error)
            raise

    def _in_transactions(
        self, acquisition: Acquisition | Several, aliases: list[str], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call the view in a transaction on each alias, the last one outermost.

        They, and those that are open already, claim the lock where it is fenced, and are rolled back when it is known
        to be lost at the end.
        """
        beside, required = aliases_to_claim(self.options.fenced), bool(self.options.fenced)
        with ExitStack() as opened:
            begin(opened, aliases[::-1], acquisition.leases, beside=beside, required=required)
            response = self.view(*args, **kwargs)
            refuse_body(self.view, response, self.what)
            for lease in acquisition.leases:
                if lease.lost:
                    raise lease.lost_error()
            return response


def _release(acquisition: Acquisition | Several, purpose: str, aliases: list[str]) -> Steps[None]:
    leases = acquisition.leases
    try:
        if (yield from acquisition.exit(None, request=purpose)):
            for lease in leases:
                note_held(lease.template, monotonic() - lease.since)
    except LockLost:
        if not (aliases and all(lease.bound for lease in leases)):
            raise
    else:
        for lease in leases:
            warn_of_release(lease)


def _instance_of(view: object) -> Any:
    """The instance of a class-based view whose method ``method_decorator`` hands over."""
    return getattr(getattr(view, "func", view), "__self__", None)
