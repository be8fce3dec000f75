"""Views, responses and transactions."""

from __future__ import annotations

from .locked_atomic import locked_atomic
from .locked_view import limited_view, locked_view
from .requests import request_owner

__all__ = ["limited_view", "locked_atomic", "locked_view", "request_owner"]
