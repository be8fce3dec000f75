"""The HTTP methods that lock."""

from __future__ import annotations

from collections.abc import Iterable

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
