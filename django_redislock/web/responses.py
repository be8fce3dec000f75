"""The responses of ``locked_view`` to requests that cannot acquire the lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from inspect import signature
from math import ceil
from statistics import median

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext, ngettext

from ..base.display import shown
from ..base.steps import CallOut, Evaluate, Steps
from ..base.times import monotonic
from ..conf import conf, import_function
from ..engine import Acquisition, Lease
from ..exceptions import LockNotAcquired, LockUnavailable
from ..inspection.info import LockInfo, inspect

OnConflict = Callable[[HttpRequest, LockInfo | None], HttpResponseBase]

# in the order in which a client without a preference gets them
MEDIA_TYPES = ["text/html", "text/plain", "application/json"]


MOST_TEMPLATES, RECENT = 1000, 9
_held_for: dict[str, deque[float]] = {}  # by template: the seconds of the latest views of this process


def note_held(lease: Lease) -> None:
    """Remember for how long a view has held its lock, which it releases now."""
    if len(_held_for) >= MOST_TEMPLATES:  # each step here is atomic, so that it needs no lock
        _held_for.clear()
    _held_for.setdefault(lease.template, deque(maxlen=RECENT)).append(monotonic() - lease.since)


def _usually_held_for(template: str) -> int:
    """Whole seconds: the median of the latest ones, not above VIEW_MAX_RETRY_AFTER; 1 where nothing is known."""
    usual = median(_held_for.get(template, [1.0]))
    return min(max(1, ceil(usual)), conf().VIEW_MAX_RETRY_AFTER)


def check_on_conflict(given: OnConflict | None) -> None:
    """Raise TypeError unless this can be called as ``on_conflict`` is."""
    try:
        if given is not None:
            signature(given).bind("request", "info")
    except TypeError as error:
        raise TypeError(f"on_conflict must be a callable (request, info), not {shown(given)}: {error}.") from None
    except ValueError:
        pass  # its signature is not known


def conflict(
    request: HttpRequest, section: Acquisition, refusal: LockNotAcquired, on_conflict: OnConflict | None
) -> Steps[HttpResponseBase]:
    """The response to a request that did not acquire its lock."""
    settings = conf()
    respond = on_conflict or (import_function("VIEW_ON_CONFLICT") if settings.VIEW_ON_CONFLICT else None)
    if respond is not None:
        holder: LockInfo | None = None
        try:
            holder = yield from inspect(section.partition, section.name)
        except LockUnavailable:
            pass  # that it is busy is known
        response = yield CallOut(lambda: respond(request, holder))
        if response is None:  # all else may mean something to the framework that calls the view
            what = "on_conflict" if on_conflict else "REDISLOCK['VIEW_ON_CONFLICT']"
            raise TypeError(f"{what} must return a response, and {shown(respond)} returned None.")
        return response  # type: ignore[no-any-return]
    suspended = refusal.outcome == "suspended"  # then its end is known
    wait = max(1, ceil(refusal.busy_for or 0)) if suspended else _usually_held_for(section.options.template)
    text = ngettext(
        "Somebody else is working on this. Please try again in %(wait)d second.",
        "Somebody else is working on this. Please try again in %(wait)d seconds.",
        wait,
    ) % {"wait": wait}
    if refusal.outcome == "own":
        text = gettext("This request holds the lock itself. It could acquire it again with reentrant=True.")
    return (yield Evaluate(lambda: refuse(request, settings.VIEW_STATUS, text, wait)))  # type: ignore[no-any-return]


def unavailable(request: HttpRequest, status: int) -> HttpResponse:
    """The response while Redis cannot be reached."""
    return refuse(request, status, gettext("This is not available at the moment. Please try again."), 1)


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
    preferred = request.get_preferred_type(MEDIA_TYPES)
    if preferred is not None:
        return preferred
    # "application/vnd.api+json; version=2" matches no media type of ours, yet its client reads JSON
    subtypes = [accepted.sub_type for accepted in request.accepted_types]
    return "application/json" if any(s == "json" or s.endswith("+json") for s in subtypes) else "text/plain"
