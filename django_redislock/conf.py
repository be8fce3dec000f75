"""The settings: one dict, ``REDISLOCK``, read late, so that ``override_settings`` works."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from .base.display import did_you_mean, shown
from .base.names import check_prefix
from .base.times import seconds, ttl_seconds

T = TypeVar("T")


def _first_match(patterns: Mapping[str, T], name: str, otherwise: T) -> T:
    return next((value for pattern, value in patterns.items() if fnmatchcase(name, pattern)), otherwise)


_Reader = Callable[[Any, str], Any]  # checks the value of a setting, by its name, and returns what Conf keeps


def _only(fits: Callable[[Any], bool], values: str, error: type[Exception] = ValueError) -> _Reader:
    """The reader of values that fit (``values``, for people)."""

    def check(value: object, what: str) -> object:
        if not fits(value):
            raise error(f"{what} must be {values}, not {shown(value)}.")
        return value

    return check


_text = _only(lambda value: isinstance(value, str) and value != "", "a non-empty str", TypeError)
_status = _only(lambda value: isinstance(value, int) and 400 <= value <= 599, "an HTTP status from 400 to 599")
_reaction = _only(lambda value: value in ("warn", "error", "ignore"), "one of 'warn', 'error', 'ignore'")


def check_flag(value: Any, what: str, *, none: bool = False) -> Any:
    """``value`` if it is True or False, or None where ``none`` allows that."""
    if not isinstance(value, bool) and not (none and value is None):
        choices = "True, False or None" if none else "True or False"
        raise TypeError(f"{what} must be {choices}, not {shown(value)}.")
    return value


_seconds_or_0 = partial(seconds, least=0)


def _patience(value: object, what: str) -> float:
    number = _seconds_or_0(value, what)
    if number > 30:
        raise ValueError(
            f"{what} must be at most 30 seconds, not {shown(value)}: Redis recognises a repeated call for 60 s."
        )
    return number


def _prefix(value: object, what: str) -> str:
    return check_prefix(_text(value, what), what)


def check_count(value: object, what: str, least: int = 0) -> int:
    """``value`` if it is a whole number, ``least`` or more."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int, {least} or more, not {shown(value)}.")
    if value < least:
        raise ValueError(f"{what} must be {least} or more, not {shown(value)}.")
    return value


def _or_none(read: _Reader) -> _Reader:
    return lambda value, what: None if value is None else read(value, what)


def _by_pattern(read: _Reader, values: str) -> _Reader:
    """The reader of a dict: shell-style patterns of names, and what ``read`` reads (``values``, for people)."""

    def check(given: object, what: str) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            raise TypeError(f"{what} must be a dict of shell-style patterns to {values}, not {shown(given)}.")
        return {_text(key, f"A pattern in {what}"): read(value, f"{what}[{key!r}]") for key, value in given.items()}

    return check


def _patterns(value: object, what: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{what} must be a list of shell-style patterns, not {shown(value)}.")
    return tuple(_text(pattern, f"A pattern in {what}") for pattern in value)


def _cluster(value: object, what: str) -> bool | tuple[str, ...]:
    if isinstance(value, (list, tuple)) and all(isinstance(alias, str) for alias in value):
        return tuple(value)
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True, False or a list of cache aliases, not {shown(value)}.")
    return value


class AlsoLock(NamedTuple):
    """Which keys of old code our locks take as well."""

    kind: str
    name: str | None = None  # the dotted path of a function: our name -> that of the old code, or None
    using: str | None = None  # the alias in CACHES of the old locks; None: that of each lock


ALSO = ("redis-py", "django-redis", "python-redis-lock")


def _also_lock(value: object, what: str) -> AlsoLock:
    kinds = ", ".join(map(repr, ALSO))
    given = {"kind": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or "kind" not in given or not given.keys() <= {*AlsoLock._fields}:
        raise TypeError(
            f"{what} must be one of {kinds}, or a dict of one of them as 'kind' and, as needed, 'name' and 'using', "
            f"not {shown(value)}."
        )
    if given["kind"] not in ALSO:
        raise ValueError(f"{what} must be (or have as 'kind') one of {kinds}, not {shown(given['kind'])}.")
    return AlsoLock(**{key: _text(part, f"{what}[{key!r}]") for key, part in given.items()})


def _setting(default: Any, read: _Reader) -> Any:
    """The field of a setting that ``read`` checks."""
    return field(default_factory=lambda: default, metadata={"read": read})


@dataclass(frozen=True)
class Conf:
    """``settings.REDISLOCK``, checked and typed."""

    CACHE: str = _setting("default", _text)
    CLUSTER: bool | tuple[str, ...] = _setting(False, _cluster)
    MAX_CONNECTIONS: int = _setting(16, partial(check_count, least=2))
    REQUIRE_REDIS: bool = _setting(False, check_flag)
    TTL: float = _setting(30.0, ttl_seconds)
    TTLS: Mapping[str, float] = _setting({}, _by_pattern(ttl_seconds, "seconds"))
    BLOCKING_TIMEOUT: float | None = _setting(None, _or_none(_seconds_or_0))
    POLL: bool = _setting(False, check_flag)
    AUTO_RENEW: bool = _setting(True, check_flag)
    MAX_HOLD: float | None = _setting(None, _or_none(seconds))
    MAX_WAITERS: Mapping[str, int] = _setting({}, _by_pattern(check_count, "numbers of waiters"))
    REPLICAS: int = _setting(0, check_count)
    SLOW_WAIT: float | None = _setting(10.0, _or_none(seconds))
    RETRY_FOR: float = _setting(1.0, _patience)
    KEY_PREFIX: str = _setting("redislock", _prefix)
    VIEW_STATUS: int = _setting(423, _status)
    VIEW_ON_CONFLICT: str | None = _setting(None, _or_none(_text))
    VIEW_OWNER: str | None = _setting("django_redislock.web.request_owner", _or_none(_text))
    VIEW_MAX_RETRY_AFTER: int = _setting(30, partial(check_count, least=1))
    VIEW_UNAVAILABLE_STATUS: int | None = _setting(None, _or_none(_status))
    RELEASE_IN_TRANSACTION: str = _setting("warn", _reaction)
    FENCED: tuple[str, ...] = _setting((), _patterns)
    FENCE_TIMEOUT: float | None = _setting(10.0, _or_none(seconds))
    ALSO_LOCK: AlsoLock | None = _setting(None, _or_none(_also_lock))  # noqa: RUF009
    MAX_VALUE_BYTES: int = _setting(1_000_000, partial(check_count, least=32))  # all numbers fit

    def ttl_of(self, name: str) -> float:
        """The TTL for a lock of this name, in seconds: the first matching pattern of TTLS, else TTL."""
        return _first_match(self.TTLS, name, self.TTL)

    def is_fenced(self, name: str) -> bool:
        """Return whether a lock of this name has to be claimed in the database: a pattern of FENCED matches."""
        return any(fnmatchcase(name, pattern) for pattern in self.FENCED)

    def is_cluster(self, alias: str) -> bool:
        """Return whether the cache alias names nodes of a Redis Cluster."""
        return self.CLUSTER and alias == self.CACHE if isinstance(self.CLUSTER, bool) else alias in self.CLUSTER

    def max_waiters_of(self, name: str) -> int | None:
        """How many may wait for a lock of this name: the first matching pattern of MAX_WAITERS, else any number."""
        return _first_match(self.MAX_WAITERS, name, None)


_READ: dict[str, _Reader] = {setting.name: setting.metadata["read"] for setting in fields(Conf)}


def read(raw: object) -> Conf:
    """Check ``raw``, the value of ``settings.REDISLOCK``, or raise ``ImproperlyConfigured``."""
    if not isinstance(raw, Mapping):
        raise ImproperlyConfigured(f"REDISLOCK must be a dict, not {raw!r}.")
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in _READ:
            hint, choices = did_you_mean(str(key), _READ), ", ".join(_READ)
            raise ImproperlyConfigured(f"Unknown setting REDISLOCK[{key!r}].{hint} The settings are: {choices}.")
        try:
            values[key] = _READ[key](value, f"REDISLOCK[{key!r}]")
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(str(error)) from None
    return Conf(**values)


_changes = 0  # announced so far (override_settings): what was read before one is not kept after it
_pinned: dict[str, Any] = {}


def conf() -> Conf:
    """The settings in force; read once, and again after each ``setting_changed``."""
    return _read_at(_changes)


@lru_cache(maxsize=1)
def _read_at(changes: int) -> Conf:
    return replace(read(getattr(settings, "REDISLOCK", {})), **_pinned)


@contextmanager
def pinned(**values: Any) -> Iterator[None]:
    """For tests: these settings are in force, whatever ``REDISLOCK`` says, and however often it changes meanwhile."""
    global _pinned
    before, _pinned = _pinned, {**_pinned, **values}
    _forget()
    try:
        yield
    finally:
        _pinned = before
        _forget()


def import_function(setting: str, path: str | None = None) -> Callable[..., Any]:
    """The function of this dotted path, in ``setting`` or all of it; ImproperlyConfigured where there is none."""
    path = path or getattr(conf(), setting)
    try:
        function = import_string(path)
        trouble = "" if callable(function) else "it is not callable."
    except (ImportError, TypeError, ValueError) as error:  # of "..", and of ".x"
        trouble = str(error)
    if trouble:
        raise ImproperlyConfigured(f"Cannot use REDISLOCK[{setting!r}] = {path!r}: {trouble}")
    return function  # type: ignore[no-any-return]


def _forget() -> None:
    global _changes
    _changes += 1


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "REDISLOCK":
        _forget()


setting_changed.connect(_on_setting_changed, dispatch_uid="django_redislock.conf")
