"""The places of this process, by cache alias and settings, and the backend of each name."""

from __future__ import annotations

import threading
from typing import Any

from django.core.signals import setting_changed

from ..base.names import slot_text
from ..base.per_process import PerProcess
from ..conf import conf
from .aliases import find_origin, lock_aliases
from .cluster import Cluster, tag_of
from .memory import check_allowed, forget_servers
from .place import Backend, Place

_Key = tuple[str, str, bool]  # alias, prefix, whether CLUSTER names it


class _Places:
    def __init__(self) -> None:
        self.found: dict[_Key, Place] = {}
        self.mutex = threading.RLock()  # reentrant: a finalizer that runs on this thread may use one of our locks


_places = PerProcess(_Places)


def make_place(alias: str, key_prefix: str) -> Place:
    """Make a place; ImproperlyConfigured if locks cannot use the alias."""
    origin = find_origin(alias)
    return (Cluster if origin.clustered else Place)(origin, key_prefix)


def get_place(using: str | None = None) -> Place:
    """The place of the alias ``using`` (None: the one in the settings). One per alias and process."""
    settings = conf()
    alias = settings.CACHE if using is None else using
    key = (alias, settings.KEY_PREFIX, settings.is_cluster(alias))
    places = _places.get()
    found = places.found.get(key)
    if found is None:
        with places.mutex:
            found = places.found.get(key)
            if found is None:
                found = places.found.setdefault(key, make_place(alias, settings.KEY_PREFIX))
                found.when_closed(lambda: _drop(key, found))
    elif found.memory:
        check_allowed(found.alias)  # the setting may have changed
    return found


def get_backend(using: str | None = None, name: str = "") -> Backend:
    """The backend that has all keys of ``name``: the name of a lock, a pool or a value."""
    place = get_place(using)
    return place.backend(tag_of(slot_text(name)) if place.clustered else 0)


def made_places() -> list[Place]:
    """The places that this process has made under the current KEY_PREFIX."""
    return [place for (_, prefix, _), place in list(_places.get().found.items()) if prefix == conf().KEY_PREFIX]


def all_places() -> list[Place]:
    """All places that this process has made."""
    return list(_places.get().found.values())


def get_places(using: str | None = None) -> list[Place]:
    """The place of ``using``; None: the places of all aliases that have locks, that of the settings first.

    Where several aliases lead to the same place, the first of them counts.
    """
    if using is not None:
        return [get_place(using)]
    found: dict[object, Place] = {}
    for place in map(get_place, lock_aliases(conf().CACHE)):
        found.setdefault(place.identity, place)
    return list(found.values())


def _drop(key: _Key, closed: Place) -> None:
    """Stop giving out a closed place: nothing listens there."""
    places = _places.get()
    with places.mutex:
        if places.found.get(key) is closed:
            del places.found[key]


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "CACHES":
        closing = _places.reset()
        forget_servers()
        for place in list(closing.found.values()) if closing is not None else ():
            place.close()


setting_changed.connect(_on_setting_changed, dispatch_uid="django_redislock.places")
