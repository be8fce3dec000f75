"""What a locked view reads of a request and of its user: the methods that lock, who is shown as the owner, and whether
the user is checked before the view is locked (else strangers can lock, and are told what is busy).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest
from django.utils.functional import LazyObject, empty

from ..base.display import shown
from ..base.log import warn
from ..base.names import quote
from ..conf import conf, import_function

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


def check_methods(methods: Iterable[str] | None) -> frozenset[str] | None:
    """None: all but OPTIONS. A list would miss those that clients make up, for which a function view runs too."""
    if methods is None:
        return None
    if isinstance(methods, str):
        raise TypeError(f"methods must be a list of HTTP methods, such as [{methods!r}], not a str.")
    chosen = frozenset(str(method).upper() for method in methods)
    unknown = chosen.difference(METHODS)
    if unknown or not chosen:
        raise ValueError(f"methods must name some of {', '.join(METHODS)}; not {', '.join(sorted(unknown)) or 'none'}.")
    return chosen


def warn_above_login(view: Any) -> None:
    """Warn when ``view``, below a lock, checks the user itself, as far as this can be seen.

    It has a decorator of ``django.contrib.auth``, or is the ``dispatch()`` of one of its mixins.
    """
    bound = getattr(view, "func", view)  # as method_decorator hands it over
    dispatch = getattr(getattr(view, "view_class", None), "dispatch", None) or getattr(bound, "__func__", None)
    module = getattr(dispatch, "__globals__", {}).get("__name__")
    # the decorators set that attribute, and those above them copy it
    if hasattr(view, "redirect_field_name") or module == "django.contrib.auth.mixins":
        warn(
            f"locked_view locks {getattr(view, '__qualname__', repr(view))} before the user is checked: anybody can "
            f"lock these names, and a response with 423 tells what is busy. Put locked_view below login_required, or "
            f"on a method of the class."
        )


def describe_request(request: HttpRequest) -> str:
    """What the function in the setting VIEW_OWNER returns; "" without one."""
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
