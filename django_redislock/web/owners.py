"""Whose request holds a lock, for people: in lists, in the admin and its history, and in the log."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest
from django.utils.functional import LazyObject, empty

from ..base.display import shown
from ..base.names import quote
from ..conf import conf, import_function


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
