"""The lock stores of this process, by cache alias and settings, and the partition of each name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.signals import setting_changed

from ..base.processes import PerProcess
from ..conf import conf
from ..exceptions import LockUnavailable
from .aliases import check_alias, check_allowed, find_config, forget_servers, lock_aliases
from .lock_store import LockStore, Partition

_Key = tuple[str, str, bool]  # alias, prefix, whether CLUSTER names it


_stores: PerProcess[dict[_Key, LockStore]] = PerProcess(dict)
# called with each store whose alias may lead elsewhere by now, as CACHES has changed
when_outdated: list[Callable[[LockStore], object]] = []


def make_store(alias: str, key_prefix: str) -> LockStore:
    """Make a lock store; ImproperlyConfigured if locks cannot use the alias."""
    config = find_config(alias)
    if not config.clustered:
        return LockStore(config, key_prefix)
    from .cluster import Cluster  # which few need

    return Cluster(config, key_prefix)


def get_store(using: str | None = None) -> LockStore:
    """The store of the alias ``using`` (None: the one in the settings). One per alias and process."""
    settings, stores = conf(), _stores.get()
    alias = settings.CACHE if using is None else using
    if not isinstance(alias, str):
        check_alias(alias)  # a list, say, could not be looked up
    key = (alias, settings.KEY_PREFIX, settings.is_cluster(alias))
    found = stores.get(key)
    if found is None:
        made = make_store(alias, settings.KEY_PREFIX)
        found = stores.setdefault(key, made)  # another thread may have come first
        made.when_closed(lambda: _drop(key, made))
        if _stores.peek() is not stores:  # CACHES has changed meanwhile, and whoever closed the others did not see it
            found.close()
    elif found.memory:
        check_allowed(found.alias)  # the setting may have changed
    return found


def get_partition(using: str | None = None, name: str = "") -> Partition:
    """The partition that has all keys of ``name``: the name of a lock, a pool or a value."""
    return get_store(using).partition_for(name)


def made_stores() -> list[LockStore]:
    """The stores that this process has made under the current KEY_PREFIX."""
    return [store for (_, prefix, _), store in list(_stores.get().items()) if prefix == conf().KEY_PREFIX]


def all_stores() -> list[LockStore]:
    """All stores that this process has made."""
    return list(_stores.get().values())


def get_stores(using: str | None = None) -> list[LockStore]:
    """The store of ``using``; None: the stores of all aliases that have locks, that of the settings first.

    Where several aliases lead to the same store, the first of them counts.
    """
    if using is not None:
        return [get_store(using)]
    stores = []
    for reached in reach_stores().values():
        if isinstance(reached, LockUnavailable):
            raise reached
        stores.append(reached)
    return stores


def reach_stores() -> dict[str, LockStore | LockUnavailable]:
    """The same by alias, with the error in place of a store that could not be made.

    The client of a cluster may connect as soon as it is made.
    """
    found: dict[object, tuple[str, LockStore | LockUnavailable]] = {}
    for alias in lock_aliases():
        try:
            store = get_store(alias)
        except LockUnavailable as error:
            found[alias] = alias, error
        else:
            found.setdefault(store.identity, (alias, store))
    return dict(found.values())


def _drop(key: _Key, closed: LockStore) -> None:
    """Stop giving out a closed store: nothing listens there."""
    stores = _stores.get()
    if stores.get(key) is closed:
        stores.pop(key, None)


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "CACHES":
        closing = _stores.reset()
        forget_servers()
        for store in list((closing or {}).values()):
            store.close()
            for callback in when_outdated:
                callback(store)


setting_changed.connect(_on_setting_changed, dispatch_uid="django_redislock.stores")
