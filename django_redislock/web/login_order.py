"""Whether a view is locked before its user is checked: then strangers can lock, and are told what is busy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any


def warn_above_login(view: Callable[..., Any]) -> None:
    """Warn when ``view``, below a lock, checks the user itself, as far as this can be seen."""
    if checks_user(view):
        name = getattr(view, "__qualname__", repr(view))
        text = (
            f"locked_view locks {name} before the user is checked: anybody can lock these names, and a response with "
            f"423 tells what is busy. Put locked_view below login_required, or on a method of the class."
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)  # where the view is decorated


def checks_user(view: Any) -> bool:
    """Whether ``view`` has a decorator of ``django.contrib.auth``, or is the ``dispatch()`` of one of its mixins."""
    if hasattr(view, "redirect_field_name"):  # set by the decorators, and copied by those above them
        return True
    bound = getattr(view, "func", view)  # as method_decorator hands it over
    dispatch = getattr(getattr(view, "view_class", None), "dispatch", None) or getattr(bound, "__func__", None)
    return getattr(dispatch, "__globals__", {}).get("__name__") == "django.contrib.auth.mixins"
