"""What a locked view reads of a request, and what it responds to those that cannot acquire the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from logging import ERROR
from math import ceil
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.cache import patch_vary_headers
from django.utils.functional import LazyObject, empty
from django.utils.translation import gettext, ngettext

from ..base.display import shown
from ..base.log import log_event, warn
from ..base.names import quote
from ..base.pace import usually_held_for
from ..base.steps import CallOut, Steps
from ..call_names import signature_of
from ..conf import conf, import_function
from ..engine.acquisition import Acquisition
from ..exceptions import LockNotAcquired, LockUnavailable
from ..inspection.info import LockInfo, inspect

TOO_MANY = 429  # Too Many Requests
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


def check_methods(methods: Iterable[str] | None) -> frozenset[str] | None:
    """None: all but OPTIONS. A list would miss those that clients make up, for which a function view runs too."""
    if methods is None:
        return None
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise TypeError(f"methods must be a list of HTTP methods, such as ['GET'], not {shown(methods)}.")
    chosen = frozenset(str(method).upper() for method in methods)
    unknown = chosen.difference(METHODS)
    if unknown or not chosen:
        raise ValueError(f"methods must name some of {', '.join(METHODS)}; not {', '.join(sorted(unknown)) or 'none'}.")
    return chosen


def warn_above_login(view: Any, decorator: str) -> None:
    """Warn when ``view``, below a ``decorator`` that locks, checks the user itself, as far as this can be seen.

    It has a decorator of ``django.contrib.auth``, or is the ``dispatch()`` of one of its mixins.
    """
    bound = getattr(view, "func", view)  # as method_decorator hands it over
    dispatch = getattr(getattr(view, "view_class", None), "dispatch", None) or getattr(bound, "__func__", None)
    module = getattr(dispatch, "__globals__", {}).get("__name__")
    # the decorators set that attribute, and those above them copy it
    if hasattr(view, "redirect_field_name") or module == "django.contrib.auth.mixins":
        warn(
            f"{decorator} locks {getattr(view, '__qualname__', repr(view))} before the user is checked: anybody can "
            f"lock these names, and a response tells what is busy. Put {decorator} below login_required, or on a "
            f"method of the class."
        )


def describe_request(request: HttpRequest) -> str:
    """Return what the function in the setting VIEW_OWNER returns; "" without one."""
    if conf().VIEW_OWNER is None:
        return ""
    text = import_function("VIEW_OWNER")(request)
    if not isinstance(text, str):
        raise TypeError(f"REDISLOCK['VIEW_OWNER'] = {conf().VIEW_OWNER!r} must return a str, not {shown(text)}.")
    return text


def request_owner(request: HttpRequest) -> str:
    """``user=7 POST /orders/42/pay/``: the user's primary key, the method and the path, quoted as in names.

    The user is left out who is not known without asking the database. This is the default of VIEW_OWNER.
    """
    pk = _user_pk(request)
    user = "" if pk is None else f"user={quote(pk)} "
    return f"{user}{quote(request.method)} {quote(request.path)}"


def _user_pk(request: Any) -> object:
    values = {**getattr(request, "_request", request).__dict__, **request.__dict__}  # DRF's is around Django's
    for attribute in ("_user", "user", "_cached_user", "_acached_user"):
        user = values.get(attribute)
        if isinstance(user, LazyObject) and user.__dict__.get("_wrapped", empty) is empty:
            continue
        try:
            pk = getattr(user, "pk", None)
        except SynchronousOnlyOperation:  # it would have to be loaded
            continue
        if pk is not None:
            return pk
    return None


OnConflict = Callable[[HttpRequest, LockInfo | None], HttpResponseBase]


def check_on_conflict(given: OnConflict | None) -> None:
    """Raise TypeError unless this can be called as ``on_conflict`` is."""
    try:
        if given is not None:
            signature_of(given).bind("request", "info")
    except TypeError as error:
        raise TypeError(f"on_conflict must be a callable (request, info), not {shown(given)}: {error}.") from None
    except ValueError:
        pass  # its signature is not known


# in the order in which a client without a preference gets them
MEDIA_TYPES = ["text/html", "text/plain", "application/json"]


def conflict(
    request: HttpRequest, acquisition: Acquisition, refusal: LockNotAcquired, on_conflict: OnConflict | None
) -> Steps[HttpResponseBase]:
    """The response to a request that did not acquire its lock."""
    settings = conf()
    respond = on_conflict or (import_function("VIEW_ON_CONFLICT") if settings.VIEW_ON_CONFLICT else None)
    if respond is not None:
        holder: LockInfo | None = None
        try:
            holder = yield from inspect(acquisition.partition, acquisition.name)
        except LockUnavailable:
            pass  # that it is busy is known
        response: HttpResponseBase | None = yield CallOut(lambda: respond(request, holder))
        if response is None:  # all else may mean something to the framework that calls the view
            what = "on_conflict" if on_conflict else "REDISLOCK['VIEW_ON_CONFLICT']"
            raise TypeError(f"{what} must return a response, and {shown(respond)} returned None.")
        return response
    usually = min(usually_held_for(acquisition.template), settings.VIEW_MAX_RETRY_AFTER)
    suspended = refusal.outcome == "suspended"  # then its end is known
    wait = max(1, ceil((refusal.busy_for or 0) if suspended else usually))
    status = settings.VIEW_STATUS
    text = ngettext(
        "Somebody else is working on this. Please try again in %(wait)d second.",
        "Somebody else is working on this. Please try again in %(wait)d seconds.",
        wait,
    )
    if acquisition.options.limit is not None:
        status = TOO_MANY
        text = ngettext(
            "Too many of these requests are running. Please try again in %(wait)d second.",
            "Too many of these requests are running. Please try again in %(wait)d seconds.",
            wait,
        )
    text %= {"wait": wait}
    if refusal.outcome == "own":
        text = gettext("This request holds the lock itself. It could acquire it again with reentrant=True.")
    return (yield CallOut(partial(refuse, request, status, text, wait)))  # type: ignore[no-any-return]


def unavailable(request: HttpRequest, name: str, purpose: str, error: LockUnavailable) -> Steps[HttpResponse]:
    """The response while Redis cannot be reached, or (without VIEW_UNAVAILABLE_STATUS) the error."""
    status = conf().VIEW_UNAVAILABLE_STATUS
    if status is None:
        raise error
    log_event(ERROR, "unavailable", name=name, request=purpose, error=error)
    text = gettext("This is not available at the moment. Please try again.")
    return (yield CallOut(partial(refuse, request, status, text, 1)))  # type: ignore[no-any-return]


def refuse(request: HttpRequest, status: int, text: str, retry_after: int) -> HttpResponse:
    """A short response in the form that the client prefers; the site's own template where it has one."""
    kind, facts = _preferred_type(request), {"detail": text, "retry_after": retry_after}
    response = HttpResponse(text, status=status, content_type="text/plain; charset=utf-8")
    if kind == "application/json":
        response = JsonResponse(facts, status=status)
    elif kind == "text/html":
        try:
            template = get_template(f"{status}.html")
        except TemplateDoesNotExist:
            pass
        else:
            response = HttpResponse(template.render(facts, request), status=status)
    response.headers["Retry-After"] = str(retry_after)
    patch_vary_headers(response, ["Accept"])
    return response


def _preferred_type(request: HttpRequest) -> str:
    preferred, order = request.get_preferred_type(MEDIA_TYPES), request.accepted_types
    accepted = None if preferred is None else request.accepted_type(preferred)
    rank = len(order) if accepted is None else order.index(accepted)
    # "application/vnd.api+json; version=2" matches no media type of ours, yet its client reads JSON
    if any(f"+{each.sub_type}".endswith("+json") for each in order[:rank]):
        return "application/json"
    return preferred or "text/plain"
