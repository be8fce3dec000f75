"""Which key a lock has in old code, and what the setting may be."""

from typing import Any
from urllib.parse import unquote

import pytest
import redis
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured

from django_redislock import Lock, LockUnavailable, force_release, lock_name
from redisserver import RedisServer
from tests.checks.conftest import check
from tests.helpers.actors import Crowd
from tests.inside import PREFIX

HERE, CACHE, OURS = f"{__name__}.", "django.core.cache.backends.", "django_redislock.cache.RedisCache"


def renamed(name: str) -> Any:
    """What ``name`` says in the settings of these tests."""
    return {"new:7": "old-7", "wrong": 5, "empty": ""}.get(name)


def renamed_by_number(name: str) -> str:
    return f"old-{int(name.partition(':')[2])}"


def key_function(key: str, prefix: str, version: int) -> str:
    return f"tenant:{prefix}:{version}:{key}"


TENANTS = {"KEY_FUNCTION": key_function}


def add_caches(settings: Any, **caches: dict[str, Any]) -> None:
    """Like the default alias, but for what is given."""
    default = settings.CACHES["default"]
    settings.CACHES = {**settings.CACHES, **{alias: {**default, **given} for alias, given in caches.items()}}


def taken(client: redis.Redis) -> set[str]:
    return {key.decode() for key in client.scan_iter()} - {f"{PREFIX}fence", f"{PREFIX}index"}


def while_held(crowd: Crowd, client: redis.Redis, lock: Any) -> set[str]:
    """The keys that are there for this lock, besides its own."""
    me = crowd()
    me(lock, "acquire")
    found = taken(client) - {f"{PREFIX}lock:{lock.name}"}
    me(lock, "release")
    return found


def test_a_function_can_say_what_old_code_calls_a_lock(crowd: Crowd, settings: Any, client: redis.Redis) -> None:
    settings.REDISLOCK = {"ALSO_LOCK": {"kind": "redis-py", "name": f"{HERE}renamed"}}
    assert while_held(crowd, client, Lock("new:7")) == {"old-7"}
    assert while_held(crowd, client, Lock("other")) == set()  # old code has no such lock


@pytest.mark.parametrize(("name", "shown"), [("wrong", "5"), ("empty", "''")])
def test_what_a_function_returns_is_checked_before_anything_is_sent(
    name: str, shown: str, crowd: Crowd, settings: Any, client: redis.Redis
) -> None:
    settings.REDISLOCK = {"ALSO_LOCK": {"kind": "redis-py", "name": f"{HERE}renamed"}}
    with pytest.raises(ImproperlyConfigured, match=f"must return a non-empty str or None, and returned {shown} for"):
        crowd()(Lock(name), "acquire")
    assert taken(client) == set()


@pytest.mark.parametrize("name", [None, "urllib.parse.unquote"])
def test_the_keys_of_django_redis_have_prefix_and_version(name: Any, settings: Any, client: redis.Redis) -> None:
    """Each is that which ``cache.lock()`` of django-redis takes; names that it makes are not for the function."""
    settings.REDISLOCK = {"ALSO_LOCK": {"kind": "django-redis"} | ({"name": name} if name else {})}
    shop = {"KEY_PREFIX": "shop", "VERSION": 3}
    add_caches(settings, theirs=shop, ours={**shop, "BACKEND": OURS})
    for key, version in (("a", None), ("a", 1), ("a", 12), ("a%2520b", 3), ("a b\n%:c", None), ("%x", 1)):
        theirs_now: Any = caches["theirs"].lock(key, version=version, timeout=60)  # type: ignore[attr-defined]
        assert theirs_now.acquire()
        lock: Any = caches["ours"].lock(key, version=version)  # type: ignore[attr-defined]
        assert lock.acquire(blocking=False) is False
        theirs_now.release()
        assert lock.acquire(blocking=False) is True
        assert client.exists(str(theirs_now.name))
        lock.release()


@pytest.mark.parametrize("kind", ["redis-py", "django-redis", "python-redis-lock"])
@pytest.mark.parametrize("name", [lock_name("fetch", "a:b"), lock_name("fetch", "a" * 600)])
def test_where_values_were_quoted_or_cut_the_site_says_what_old_code_does(
    name: str, kind: str, crowd: Crowd, settings: Any, client: redis.Redis
) -> None:
    """Taking another key than old code would let two in."""
    settings.REDISLOCK = {"ALSO_LOCK": kind}
    with pytest.raises(ImproperlyConfigured, match=r"What old code calls the lock 'fetch:.*is not clear: .*unquote"):
        crowd()(Lock(name), "acquire")
    assert taken(client) == set()
    for function, text in (("urllib.parse.unquote", unquote(name)), ("builtins.str", name)):
        client.flushall()
        settings.REDISLOCK = {"ALSO_LOCK": {"kind": kind, "name": function}}
        (key,) = while_held(crowd, client, Lock(name))
        assert key == {"redis-py": text, "django-redis": f":1:{text}", "python-redis-lock": f"lock:{text}"}[kind]


def test_what_is_held_though_its_old_key_is_unclear_can_be_released(settings: Any) -> None:
    """It was acquired before the setting came."""
    name = lock_name("fetch", "a:b")
    assert Lock(name).acquire()
    settings.REDISLOCK = {"ALSO_LOCK": "redis-py"}
    assert force_release(name)


def test_with_a_key_function_the_site_names_the_key(settings: Any, crowd: Crowd, client: redis.Redis) -> None:
    add_caches(settings, default=TENANTS)
    settings.REDISLOCK = {"ALSO_LOCK": {"kind": "django-redis", "name": f"{HERE}renamed"}}
    assert while_held(crowd, client, Lock("new:7")) == {"old-7"}


def test_old_locks_of_another_cache_are_where_that_cache_is(settings: Any, client: redis.Redis) -> None:
    """``using`` is for the locks of the settings' alias."""
    shop = {"KEY_PREFIX": "shop"}
    add_caches(settings, theirs=shop, ours={**shop, "BACKEND": OURS}, locks={}, more={})
    settings.REDISLOCK = {"CACHE": "locks", "ALSO_LOCK": {"kind": "django-redis", "using": "default"}}
    with caches["theirs"].lock("a", timeout=60):  # type: ignore[attr-defined]
        assert not caches["ours"].lock("a").acquire(blocking=False)  # type: ignore[attr-defined]
        for using in (None, "more"):  # which have no cache.lock() of ours
            with Lock("a", using=using):
                assert client.exists(":1:a")


def test_old_locks_may_be_on_another_alias(crowd: Crowd, settings: Any, client: Any, server: RedisServer) -> None:
    add_caches(settings, elsewhere={"LOCATION": f"redis://127.0.0.1:{server.port}/1"})
    settings.REDISLOCK = {"CACHE": "elsewhere", "ALSO_LOCK": {"kind": "redis-py", "using": "default"}}
    assert while_held(crowd, client, Lock("a")) == {"a"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (True, "must be one of 'redis-py', 'django-redis', 'python-redis-lock', or a dict"),
        ({"name": "a.b"}, "must be one of"),
        ({"kind": "redis-py", "key": "a.b"}, "must be one of"),
        ("redis", "must be (or have as 'kind') one of 'redis-py', 'django-redis', 'python-redis-lock', not 'redis'."),
        ({"kind": "redis-py", "using": ""}, "REDISLOCK['ALSO_LOCK']['using'] must be a non-empty str, not ''."),
    ],
)
def test_what_is_no_such_setting_is_refused_with_the_choices(value: Any, said: str, settings: Any) -> None:
    settings.REDISLOCK = {"ALSO_LOCK": value}
    with pytest.raises(ImproperlyConfigured) as caught:
        Lock("a").acquire()
    assert said in str(caught.value)
    assert [message.id for message in check()] == ["django_redislock.E001"]


@pytest.mark.parametrize(
    ("value", "old", "id", "said"),
    [
        ("redis-py", {}, "I003", "Lock('x') takes the key 'x' as well, by the rules of redis-py (cache alias"),
        ("django-redis", {}, "I003", "the key ':1:x' as well"),
        ("python-redis-lock", {}, "I003", "the key 'lock:x' as well"),
        ({"name": f"{HERE}renamed"}, {}, "I003", f"the key that {HERE}renamed names for it as well"),
        ({"using": "memory"}, {}, "I003", "(cache alias 'memory')"),
        ({"using": "nowhere"}, {}, "E002", "REDISLOCK['ALSO_LOCK'] names the cache alias 'nowhere'"),
        ({"name": f"{HERE}nothing"}, {}, "E005", f"REDISLOCK['ALSO_LOCK'] = '{HERE}nothing'"),
        ({"using": "old"}, {"BACKEND": f"{CACHE}locmem.LocMemCache"}, "W001", "The cache alias 'old' is not Redis"),
        ({"using": "old"}, {"BACKEND": f"{CACHE}db.DatabaseCache", "LOCATION": "x"}, "E003", "The cache alias 'old'"),
        ("django-redis", {"BACKEND": OURS, **TENANTS}, "E005", "The cache alias 'old' has a KEY_FUNCTION"),
        ({"kind": "django-redis", "using": "old"}, {"BACKEND": OURS, **TENANTS}, "E005", "The cache alias 'old' has a"),
    ],
)
def test_a_check_says_that_it_is_on_and_what_is_wrong_with_it(
    value: Any, old: dict[str, Any], id: str, said: str, settings: Any
) -> None:
    """``old``: another alias, and how it differs from the default one."""
    add_caches(settings, **({"old": old} if old else {}))
    settings.REDISLOCK = {"ALSO_LOCK": value if isinstance(value, str) else {"kind": "redis-py", **value}}
    (found,) = [one for one in check() if one.id == f"django_redislock.{id}"]
    assert said in found.msg
    assert value != {"using": "old"} or "REDISLOCK['ALSO_LOCK']['using']" in str(found.hint)


def test_a_check_calls_no_function_of_the_site(settings: Any) -> None:
    add_caches(settings, ours={"BACKEND": OURS, **TENANTS})
    settings.REDISLOCK = {"ALSO_LOCK": {"kind": "django-redis", "name": f"{HERE}renamed_by_number"}}
    assert "django_redislock.E005" not in [one.id for one in check()]


@pytest.mark.parametrize("using", [None, "default"])
def test_the_check_asks_where_the_old_locks_are_if_ours_have_an_alias_of_their_own(using: Any, settings: Any) -> None:
    add_caches(settings, locks={})
    settings.REDISLOCK = {"CACHE": "locks", "ALSO_LOCK": {"kind": "django-redis"} | ({"using": using} if using else {})}
    (found,) = [one for one in check() if one.id == "django_redislock.I003"]
    hint = "If the old locks are on another alias than 'locks', name it: 'using'."
    assert (hint in str(found.hint)) is (using is None)


def test_a_key_function_asks_for_a_function(settings: Any, crowd: Crowd, client: redis.Redis) -> None:
    add_caches(settings, default=TENANTS)
    settings.REDISLOCK = {"ALSO_LOCK": "django-redis"}
    with pytest.raises(ImproperlyConfigured, match="has a KEY_FUNCTION, so the keys of its old locks do not follow"):
        crowd()(Lock("a"), "acquire")
    assert "has a KEY_FUNCTION" in "".join(one.msg for one in check() if one.id == "django_redislock.E005")
    assert taken(client) == set()


def test_a_user_without_the_right_to_the_old_key_is_told(settings: Any, crowd: Crowd, own: RedisServer) -> None:
    with own.client() as root:
        root.execute_command("ACL", "SETUSER", "default", "resetkeys", f"~{PREFIX}*")
        settings.REDISLOCK = {"ALSO_LOCK": "redis-py"}
        with pytest.raises(LockUnavailable, match=r"the lock 'a'.*permission"):
            crowd()(Lock("a"), "acquire")
