"""The responses of ``locked_view`` to requests that cannot acquire the lock."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from math import ceil

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext, ngettext

from ..base.display import shown
from ..base.steps import CallOut, Evaluate, Steps
from ..conf import conf, import_function
from ..exceptions import LockNotAcquired, LockUnavailable
from ..inspection import LockInfo
from ..inspection.info import inspect
from ..store.lock_store import Partition

OnConflict = Callable[[HttpRequest, LockInfo | None], HttpResponseBase]

# in the order in which a client without a preference gets them
MEDIA_TYPES = ["text/html", "text/plain", "application/json"]


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
    request: HttpRequest, partition: Partition, name: str, refusal: LockNotAcquired, on_conflict: OnConflict | None
) -> Steps[HttpResponseBase]:
    """The response to a request that did not acquire its lock."""
    settings = conf()
    respond = on_conflict or (import_function("VIEW_ON_CONFLICT") if settings.VIEW_ON_CONFLICT else None)
    if respond is not None:
        holder: LockInfo | None = None
        try:
            holder = yield from inspect(partition, name)
        except LockUnavailable:
            pass  # that it is busy is known
        response = yield CallOut(lambda: respond(request, holder))
        if response is None:  # all else may mean something to the framework that calls the view
            what = "on_conflict" if on_conflict else "REDISLOCK['VIEW_ON_CONFLICT']"
            raise TypeError(f"{what} must return a response, and {shown(respond)} returned None.")
        return response  # type: ignore[no-any-return]
    wait = max(1, ceil(refusal.busy_for or 0))
    text = ngettext(
        "Somebody else is working on this. Please try again in %(wait)d second.",
        "Somebody else is working on this. Please try again in %(wait)d seconds.",
        wait,
    ) % {"wait": wait}
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
