"""Checks of the views, for ``check --deploy``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from inspect import getmembers, isfunction
from typing import Any

from django.core.checks import CheckMessage, Warning
from django.core.exceptions import ImproperlyConfigured
from django.urls import URLPattern, URLResolver, get_resolver

from ..conf import Conf, conf
from ..options import Options, options_of

MOST_LAYERS = 100  # decorators on one view: one that wraps itself has no end


def check_views(**kwargs: Any) -> list[CheckMessage]:
    """There is a limit for how long the site's views hold their locks. Silent where its URLs cannot be read."""
    try:
        known = conf()
    except ImproperlyConfigured:
        return []  # reported by the other checks
    try:
        patterns = [pattern for pattern in _patterns(get_resolver()) if _unlimited(pattern.callback, known)]
        names = sorted({pattern.lookup_str for pattern in patterns})
    except Exception:  # whatever a site's modules raise: Django's own checks report it
        return []
    if not names:
        return []
    return [
        Warning(
            f"These views hold their locks for as long as a client takes to send its request or to read a streaming "
            f"response: {', '.join(names)}.",
            hint="Set REDISLOCK['MAX_HOLD'], or pass max_hold= to their decorators; or silence this if a proxy "
            "buffers requests and responses.",
            id="django_redislock.W008",
        )
    ]


def _patterns(resolver: URLResolver) -> Iterator[URLPattern]:
    for pattern in resolver.url_patterns:
        if isinstance(pattern, URLResolver):
            yield from _patterns(pattern)
        else:
            yield pattern


def _unlimited(view: object, known: Conf) -> bool:
    """Whether one of the locks of ``view`` is renewed without end."""
    return known.MAX_HOLD is None and any(
        options.max_hold is None and (known.AUTO_RENEW if options.auto_renew is None else options.auto_renew)
        for options in _locks(view)
    )


def _locks(view: object) -> Iterator[Options]:
    """The options of the locks of ``view``, whatever decorates it, and if it is a class's, of that class's methods."""
    for layer in _layers(view):
        if (options := options_of(layer)) is not None:
            yield options
        cls = getattr(layer, "view_class", None) or getattr(layer, "cls", None)  # Django's, and REST framework's
        for _, method in getmembers(cls, isfunction) if isinstance(cls, type) else ():
            yield from filter(None, map(options_of, _layers(method)))


def _layers(view: Any) -> Iterator[object]:
    """``view``, and what it wraps."""
    for _ in range(MOST_LAYERS):
        if view is None:
            return
        yield view
        view = view.func if isinstance(view, partial) else getattr(view, "__wrapped__", None)
