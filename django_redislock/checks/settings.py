"""Checks of the settings: a mistake shows when the site starts. None of these connects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings
from django.core.cache import DEFAULT_CACHE_ALIAS, caches
from django.core.checks import CheckMessage, Error, Info, Warning
from django.core.exceptions import ImproperlyConfigured

from ..call_names import signature_of
from ..conf import AlsoLock, Conf, conf, import_function, read
from ..exceptions import LockUnavailable
from ..store.aliases import database, has_locks, lock_aliases
from ..store.old_key import old_keys
from ..store.stores import get_store

SHORT = 1.0  # seconds
# what they take, and return
FUNCTIONS = {
    "VIEW_ON_CONFLICT": (("request", "info"), "a response"),
    "VIEW_OWNER": (("request",), "a str"),
    "ALSO_LOCK": (("name",), "what old code passes to its lock(), or None"),
}


def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """``settings.REDISLOCK`` can be read and makes sense, and its alias can hold locks."""
    if found := list(_wrong(getattr(settings, "REDISLOCK", {}))):
        return found
    return [*_functions(conf()), *_times(conf()), *_aliases(conf())]


def _wrong(raw: object) -> Iterator[CheckMessage]:
    """One error for each wrong or unknown setting."""
    for key, part in [(key, {key: raw[key]}) for key in raw] if isinstance(raw, Mapping) else [("", raw)]:
        try:
            read(part)
        except ImproperlyConfigured as error:
            if key == "KEY_PREFIX":
                yield _wrong_prefix(error)
            else:
                hint = 'See the page "Settings" of the documentation.'
                yield Error(str(error), hint=hint, id="django_redislock.E001")


def _wrong_prefix(error: Exception) -> CheckMessage:
    hint = "Choose a prefix without braces and whitespace; the locks add their own hash tag."
    return Error(str(error), hint=hint, id="django_redislock.E004")


def _functions(known: Conf) -> Iterator[CheckMessage]:
    """The functions that settings name by their dotted paths can be imported and called."""
    for setting, (takes, _) in FUNCTIONS.items():
        path = getattr(known, setting)
        path = path.name if isinstance(path, AlsoLock) else path
        if path is not None:
            try:
                signature_of(import_function(setting, path), follow_wrapped=False).bind(*takes)
            except ImproperlyConfigured as error:
                yield _no_function(setting, error)
            except TypeError as error:
                yield _no_function(setting, f"REDISLOCK[{setting!r}] = {path!r} cannot be called: {error}.")
            except ValueError:
                pass  # its signature is not known


def _no_function(setting: str, trouble: object) -> CheckMessage:
    takes, returns = FUNCTIONS[setting]
    hint = f"Give the dotted path of a function ({', '.join(takes)}) that returns {returns}."
    return Error(str(trouble), hint=hint, id="django_redislock.E005")


def _times(known: Conf) -> Iterator[CheckMessage]:
    """Settings that are valid each, but not together."""
    ttls = {"REDISLOCK['TTL']": known.TTL}
    ttls |= {f"REDISLOCK['TTLS'][{pattern!r}]": ttl for pattern, ttl in known.TTLS.items()}
    for what, ttl in ttls.items():
        if known.MAX_HOLD is not None and ttl > known.MAX_HOLD:
            yield Warning(
                f"REDISLOCK['MAX_HOLD'] ({known.MAX_HOLD:g} s) is shorter than {what} ({ttl:g} s): nobody renews "
                f"beyond it, but a lock whose process died or hangs is held for the TTL all the same.",
                hint="Make MAX_HOLD longer than every TTL, or the TTL shorter.",
                id="django_redislock.W002",
            )
        if known.AUTO_RENEW and ttl < SHORT:
            yield Warning(
                f"{what} is {ttl:g} s, so a lock is renewed every {ttl / 3:.3g} s: one slow reply or pause of the "
                f"process outlasts the lease, and the lock is lost.",
                hint=f"Give at least {SHORT:g} s, or set AUTO_RENEW to False.",
                id="django_redislock.W003",
            )


def _aliases(known: Conf) -> Iterator[CheckMessage]:
    clusters = known.CLUSTER if isinstance(known.CLUSTER, tuple) else ()
    named = [("CACHE", known.CACHE), *(("CLUSTER", alias) for alias in clusters)]
    also = known.ALSO_LOCK
    if also is not None and also.using is not None:
        named.append(("ALSO_LOCK", also.using))
    unknown = [(setting, alias) for setting, alias in named if alias not in caches.settings]
    for setting, alias in unknown:
        yield Error(
            f"REDISLOCK[{setting!r}] names the cache alias {alias!r}, which is not in CACHES. The aliases are: "
            f"{', '.join(caches.settings)}.",
            hint=f"Name a Redis alias of CACHES in REDISLOCK[{setting!r}].",
            id="django_redislock.E002",
        )
    if unknown:
        return
    if also is not None:
        yield _moving(also, also.using or known.CACHE)
    stores: dict[object, list[str]] = {}
    ours = lock_aliases()
    used = dict.fromkeys(ours, "REDISLOCK['CACHE']")
    if also is not None and also.using is not None:
        used.setdefault(also.using, "REDISLOCK['ALSO_LOCK']['using']")
    for alias, where in used.items():
        try:
            store = get_store(alias)
        except LockUnavailable:
            continue  # its server is away: the check of the server says so
        except ImproperlyConfigured as error:
            yield _unusable(alias, where, error)
            continue
        if alias in ours:
            stores.setdefault(store.identity, []).append(alias)
            if also is not None and also.name is None and alias not in (known.CACHE, also.using):
                try:
                    old_keys(also, alias, "x")
                except ImproperlyConfigured as error:
                    yield _no_function("ALSO_LOCK", error)
        if not store.memory:
            if alias in ours:
                yield from _shared(alias, known)
        elif not settings.DEBUG:
            yield Warning(
                f"The cache alias {alias!r} is not Redis: its locks live in the memory of one process and guard that "
                f"process only.",
                hint=f"Name a Redis alias of CACHES in {where}, or silence this if there is only one process.",
                id="django_redislock.W001",
            )
    if len(stores) > 1:
        groups = "; ".join(" and ".join(map(repr, aliases)) for aliases in stores.values())
        yield Info(
            f"Locks of the same name exclude each other only within one of these groups of cache aliases: {groups}. "
            f"Lock('x') is on {known.CACHE!r} (REDISLOCK['CACHE']), cache.lock('x') on the alias of that cache.",
            hint="Use Lock('x', using=alias) where it must exclude cache.lock('x'), or name the alias of that cache in "
            "REDISLOCK['CACHE']. And give all aliases of one Redis the same address: by a unix socket and by TCP, or "
            "by a host name and by its IP, it counts as two, and a thread that holds a lock of one would wait for "
            "itself at the other.",
            id="django_redislock.I002",
        )


def _moving(also: AlsoLock, alias: str) -> CheckMessage:
    """A move is under way, from old code whose locks are on ``alias``."""
    try:
        key = f"that {also.name} names for it" if also.name else repr(old_keys(also, alias, "x")[0])
    except ImproperlyConfigured as error:
        return _no_function("ALSO_LOCK", error)
    elsewhere = (
        ""
        if also.using or alias == DEFAULT_CACHE_ALIAS
        else f" If the old locks are on another alias than {alias!r}, name it: 'using'."
    )
    return Info(
        f"REDISLOCK['ALSO_LOCK'] is on, so Lock('x') takes the key {key} as well, by the rules of {also.kind} (cache "
        f"alias {alias!r}). To acquire and to release each cost a round trip more.",
        hint=f"Once no process runs the old code any more, switch it off with the next deployment.{elsewhere}",
        id="django_redislock.I003",
    )


def _unusable(alias: str, where: str, error: Exception) -> CheckMessage:
    if "KEY_PREFIX" in str(error):
        return _wrong_prefix(error)
    hint = f"Give this alias a Redis (one server, Sentinels, or a cluster), or name another one in {where}"
    if has_locks(alias):
        hint += ", or use django-redis's own BACKEND (with redis-py's locks)"
    return Error(str(error), hint=f"{hint}.", id="django_redislock.E003")


def _shared(alias: str, known: Conf) -> Iterator[CheckMessage]:
    """The caches whose clear() would flush the locks. (``cache`` itself is the alias ``default``.)"""
    mine = database(alias)
    caching = [other for other in caches.settings if other != alias and database(other) == mine]
    if alias == "default" or alias != known.CACHE:
        caching.append(alias)
    if not caching:
        return
    names = ", ".join(map(repr, sorted(caching)))
    hint = (
        "The locks of cache.lock() always live in its own alias: empty that cache with cache.delete_pattern('*'), "
        "which spares them, instead of clear(), and give other caches another database number"
        if has_locks(alias)
        else "Give the locks an alias of their own, with another database number, and name it in REDISLOCK['CACHE']"
    )
    yield Info(
        f"The locks of the cache alias {alias!r} share a Redis database with the cache {names}: its clear() "
        f"flushes the database, and all locks with it.",
        hint=f"{hint}; or silence this if nobody calls clear().",
        id="django_redislock.I001",
    )
