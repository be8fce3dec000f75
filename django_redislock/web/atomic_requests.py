"""``ATOMIC_REQUESTS`` for locked views: their transactions begin inside the lock, so Django has to begin none."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from django.db import connections
from django.http import HttpRequest

from ..open_transactions import in_atomic_block


def to_open(request: HttpRequest, *views: object) -> list[str]:
    """The aliases on which Django's handler would have begun a transaction without our mark."""
    match = request.resolver_match
    places = (*views, match and match.func, *map(instance_of, views))
    excluded = frozenset[str]().union(*map(excluded_by, places))
    return [
        alias
        for alias, options in connections.settings.items()
        if options["ATOMIC_REQUESTS"] and alias not in excluded and not in_atomic_block(connections[alias])
    ]


class OpenedHere:
    """Tells Django's handler to open no transaction for a view, since that is done inside the lock.

    It takes the place of the aliases that ``@non_atomic_requests`` excludes, and remembers those really excluded.
    """

    def __init__(self, excluded: Iterable[str]) -> None:
        self.excluded: frozenset[str] = frozenset(excluded)

    def __contains__(self, alias: object) -> bool:
        return True

    def add(self, alias: str) -> None:
        """Exclude ``alias``: ``non_atomic_requests`` is above ``locked_view``.

        Decorators and ``as_view()`` copy the reference to this object from view to view, and what is excluded for one
        must not be for another. So the view that is meant, which Django does not pass on, gets a mark of its own.
        """
        view = sys._getframe(1).f_locals.get("view")
        instance = instance_of(view)
        if view is None:  # not Django's decorator
            self.excluded |= {alias}
        elif instance is None:
            view._non_atomic_requests = OpenedHere({*self.excluded, alias})
        else:  # method_decorator binds the method anew for each request
            instance._non_atomic_requests = OpenedHere({*excluded_by(instance), alias})


def excluded_by(view: object) -> frozenset[str]:
    excluded = getattr(view, "_non_atomic_requests", ())
    return excluded.excluded if isinstance(excluded, OpenedHere) else frozenset(excluded)


def instance_of(view: object) -> Any:
    """The instance of a class-based view whose method ``method_decorator`` hands over."""
    return getattr(getattr(view, "func", view), "__self__", None)
