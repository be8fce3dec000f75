"""Cache backends: django-redis's, and one for tests, with our locks. The only module that needs django-redis."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import django.core.cache.backends.locmem
import django_redis.cache
from django.core.cache import caches
from django.core.cache.backends.base import DEFAULT_TIMEOUT, default_key_func
from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import cached_property
from django.utils.module_loading import import_string
from django_redis.util import CacheKey

from .base.display import refuse_arguments, takes_by_name
from .base.names import fit_name
from .base.times import Seconds
from .cache_lock import CacheLock
from .cached_values import CACHED, aget_or_set, get_or_set

# the last locks that cache.lock() was asked for in this process: the server, the prefix of the cache, and the name
_locked: deque[tuple[object, str, str]] = deque(maxlen=200)


def _no_lock(method: Callable[..., Any], instead: str) -> Callable[..., Any]:
    """``method``, which looks for a cache key, but warns if that is not there and is known as the name of a lock."""

    @wraps(method)
    def call(self: RedisCache, key: Any, version: Any = None, *args: Any, **options: Any) -> Any:
        answer = method(self, key, version, *args, **options)
        if answer is not None and not answer and self._known_as(self._lock_name(key, version)) in tuple(_locked):
            warnings.warn(
                f"cache.{method.__name__}({key!r}) does not see the lock of that name, which is no cache key: use "
                f"{instead}.",
                RuntimeWarning,
                stacklevel=2,
            )
        return answer

    return call


def _not_ours(client: Any) -> Any:
    """The redis-py client of a cache, as ``get_redis_connection()`` returns it, whose ``lock()`` warns."""
    lock = client.lock

    @wraps(lock)
    def warned(*args: Any, **options: Any) -> Any:
        warnings.warn(
            "lock() of a redis-py client is redis-py's: its locks and those of cache.lock() do not exclude each other. "
            "Use cache.lock(), or Lock(name, using=alias).",
            RuntimeWarning,
            stacklevel=2,
        )
        return lock(*args, **options)

    client.lock = warned
    return client


class _Locks:
    """What our backends add to a cache."""

    _server: Any
    _params: dict[str, Any]
    key_func: Callable[..., str]
    key_prefix: str
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

    @takes_by_name
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
        **unknown: NoReturn,
    ) -> CacheLock:
        """A lock as redis-py's and django-redis's are, but ours: see :class:`CacheLock`.

        ``cache.lock("x")`` and ``Lock("x", using=alias)`` are the same lock. A ``version`` other than Django's default,
        1, stands in the name (``%2:x``), even if it is the alias's own: so aliases that differ only in ``VERSION``
        exclude each other exactly as django-redis's do. Where the alias has a ``KEY_FUNCTION``, the name is what that
        makes, without the ``KEY_PREFIX``, which all locks of the alias have anyway. What cannot be a lock's name
        (control characters, more than 512 bytes) is quoted or hashed. ``client`` is ignored; kept for compatibility.
        """
        if unknown:
            choices = ["version", "timeout", "sleep", "blocking", "blocking_timeout", "thread_local"]
            refuse_arguments("cache.lock()", (), unknown, choices)
        name = self._lock_name(key, version)
        if self._known_as(name) not in tuple(_locked):
            _locked.append(self._known_as(name))
        return CacheLock(
            name,
            timeout=timeout,
            sleep=sleep,
            blocking=blocking,
            blocking_timeout=blocking_timeout,
            thread_local=thread_local,
            using=self.lock_alias,
        )

    @takes_by_name
    def locked_get_or_set(
        self,
        key: str,
        default: Any,
        *wrong: NoReturn,
        timeout: float | None = DEFAULT_TIMEOUT,
        version: int | None = None,
        blocking_timeout: Seconds | None = None,
        **unknown: NoReturn,
    ) -> Any:
        """See :func:`django_redislock.locked_get_or_set`; the lock is on the Redis of this alias."""
        if wrong or unknown:
            refuse_arguments("locked_get_or_set()", wrong, unknown, CACHED, "")  # by position: a version or a timeout
        return get_or_set(
            self, self.lock_alias, key, default, timeout=timeout, version=version, blocking_timeout=blocking_timeout
        )

    @takes_by_name
    async def alocked_get_or_set(
        self,
        key: str,
        default: Any,
        *wrong: NoReturn,
        timeout: float | None = DEFAULT_TIMEOUT,
        version: int | None = None,
        blocking_timeout: Seconds | None = None,
        **unknown: NoReturn,
    ) -> Any:
        """See locked_get_or_set()."""
        if wrong or unknown:
            refuse_arguments("alocked_get_or_set()", wrong, unknown, CACHED, "")  # by position: a version or a timeout
        return await aget_or_set(
            self, self.lock_alias, key, default, timeout=timeout, version=version, blocking_timeout=blocking_timeout
        )

    def _known_as(self, name: str) -> tuple[object, str, str]:
        return self._server, self.key_prefix, name

    def _lock_name(self, key: object, version: int | None) -> str:
        version = self.version if version is None else version
        if self.key_func is not default_key_func:
            return fit_name(str(key if isinstance(key, CacheKey) else self.key_func(key, "", version)))
        return fit_name(str(key), "" if str(version) == "1" else str(version))


class RedisCache(_Locks, django_redis.cache.RedisCache):  # type: ignore[misc]
    """django-redis's cache backend whose ``lock()`` is ours, so that a site changes one setting and none of its code::

        CACHES = {"default": {"BACKEND": "django_redislock.cache.RedisCache", ...}}

    The locks are on the Redis of this alias, whatever ``REDISLOCK["CACHE"]`` says, through connections of their own.
    The command, the admin and the checks cover them. Processes with the old setting and processes with the new one do
    not see each other's locks: change it for all of them at once.
    """

    @property
    def client(self) -> Any:
        """django-redis's, with our ``lock()``."""
        if self._client is None:
            client = super().client
            connect = client.connect
            client.lock = self.lock
            client.connect = lambda *args, **options: _not_ours(connect(*args, **options))
        return self._client

    has_key: Callable[..., Any] = _no_lock(django_redis.cache.RedisCache.has_key, "cache.lock(key).locked()")
    ttl: Callable[..., Any] = _no_lock(django_redis.cache.RedisCache.ttl, "get_lock(name, using=alias)")
    pttl: Callable[..., Any] = _no_lock(django_redis.cache.RedisCache.pttl, "get_lock(name, using=alias)")
    delete: Callable[..., Any] = _no_lock(django_redis.cache.RedisCache.delete, "force_release(name, using=alias)")


class LocMemCache(_Locks, django.core.cache.backends.locmem.LocMemCache):
    """Django's ``LocMemCache`` with our ``lock()`` in the memory mode, for tests of code that uses ``cache.lock()``."""

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        super().__init__(name, params)
        self._server, self._params = name, params
