"""Cache backends: django-redis's, and one for tests, with our locks. The only module that needs django-redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import django.core.cache.backends.locmem
import django_redis.cache
from django.core.cache import caches
from django.core.cache.backends.base import default_key_func
from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import cached_property
from django.utils.module_loading import import_string
from django_redis.util import CacheKey

from .base.names import fit_name
from .cache_lock import CacheLock
from .cached_values import alocked_get_or_set, locked_get_or_set


class _Locks:
    """What our backends add to a cache."""

    _server: Any
    _params: dict[str, Any]
    key_func: Callable[..., str]
    version: Any

    @cached_property
    def lock_alias(self) -> str:
        """The alias in ``CACHES`` that this object was made for, which Django does not tell it.

        Found by its settings. Of two aliases with the same settings it does not matter which: their keys and locks are
        the same.
        """
        for alias, settings in caches.settings.items():
            mine = {key: value for key, value in settings.items() if key not in ("BACKEND", "LOCATION")}
            same = (settings.get("LOCATION", ""), mine) == (self._server, self._params)
            if same and import_string(settings["BACKEND"]) is type(self):
                return alias
        raise ImproperlyConfigured(
            f"This {type(self).__qualname__} was not made from an alias in CACHES, and locks need one. The aliases "
            f"are: {', '.join(caches.settings)}."
        )

    def lock(
        self,
        key: object,
        version: int | None = None,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        client: object = None,
        thread_local: bool = True,
    ) -> CacheLock:
        """A lock as redis-py's and django-redis's are, but ours: see :class:`CacheLock`.

        ``cache.lock("x")`` and ``Lock("x", using=alias)`` are the same lock. A ``version`` other than Django's default,
        1, stands in the name (``%2:x``), even if it is the alias's own: so aliases that differ only in ``VERSION``
        exclude each other exactly as django-redis's do. Where the alias has a ``KEY_FUNCTION``, the name is what that
        makes, without the ``KEY_PREFIX``, which all locks of the alias have anyway. What cannot be a lock's name
        (control characters, more than 512 bytes) is quoted or hashed. ``client`` is ignored; kept for compatibility.
        """
        return CacheLock(
            self._lock_name(key, version),
            timeout=timeout,
            sleep=sleep,
            blocking=blocking,
            blocking_timeout=blocking_timeout,
            thread_local=thread_local,
            using=self.lock_alias,
        )

    def locked_get_or_set(self, key: str, default: Any, **options: Any) -> Any:
        """See :func:`django_redislock.locked_get_or_set`; the lock is on the Redis of this alias."""
        return locked_get_or_set(key, default, using=self.lock_alias, **options)

    async def alocked_get_or_set(self, key: str, default: Any, **options: Any) -> Any:
        """See locked_get_or_set()."""
        return await alocked_get_or_set(key, default, using=self.lock_alias, **options)

    def _lock_name(self, key: object, version: int | None) -> str:
        version = self.version if version is None else version
        if self.key_func is not default_key_func:
            return fit_name(str(key if isinstance(key, CacheKey) else self.key_func(key, "", version)))
        if isinstance(key, CacheKey):  # what default_key_func has made
            version, _, key = key.removeprefix(f"{self.key_prefix}:").partition(":")  # type: ignore[attr-defined]
        return fit_name(str(key), "" if str(version) == "1" else str(version))


class RedisCache(_Locks, django_redis.cache.RedisCache):  # type: ignore[misc]
    """django-redis's cache backend whose ``lock()`` is ours, so that a site changes one setting and none of its code::

        CACHES = {"default": {"BACKEND": "django_redislock.cache.RedisCache", ...}}

    The locks are on the Redis of this alias, whatever ``REDISLOCK["CACHE"]`` says, through connections of their own.
    The command, the admin and the checks cover them. Processes with the old setting and processes with the new one do
    not see each other's locks: change it for all of them at once, or set ``REDISLOCK["ALSO_LOCK"]`` meanwhile.
    """

    @property
    def client(self) -> Any:
        """django-redis's, with our ``lock()``."""
        if self._client is None:
            super().client.lock = self.lock
        return self._client


class LocMemCache(_Locks, django.core.cache.backends.locmem.LocMemCache):
    """Django's ``LocMemCache`` with our ``lock()`` in the memory mode, for tests of code that uses ``cache.lock()``."""

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        super().__init__(name, params)
        self._server, self._params = name, params
