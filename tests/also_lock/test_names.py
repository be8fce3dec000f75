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

HERE = f"{__name__}."


def renamed(name: str) -> Any:
    """What ``name`` says in the settings of these tests."""
    return {"new:7": "old-7", "wrong": 5, "empty": ""}.get(name)


def renamed_by_number(name: str) -> str:
    return f"old-{int(name.partition(':')[2])}"


def taken(client: redis.Redis) -> set[str]:
    return {key.decode() for key in client.scan_iter()} - {f"{PREFIX}fence", f"{PREFIX}index"}


def while_held(crowd: Crowd, client: redis.Redis, lock: Any) -> set[str]:
    """The keys that are there for this lock, besides its own."""
    me = crowd()
    me(lock, "acquire")
    found = taken(client) - {f"{PREFIX}lock:{lock.name}"}
    me(lock, "release")
    return found


@pytest.mark.parametrize(
    ("kind", "key"), [("redis-py", "old-7"), ("django-redis", ":1:old-7"), ("python-redis-lock", "lock:old-7")]
)
def test_a_function_can_say_what_old_code_calls_a_lock(
    kind: str, key: str, crowd: Crowd, settings: Any, client: redis.Redis
) -> None:
    settings.REDISLOCK = {"ALSO_LOCK": {"kind": kind, "name": f"{HERE}renamed"}}
    assert while_held(crowd, client, Lock("new:7")) == {key}
    client.flushall()
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
    theirs = {**settings.CACHES["default"], "KEY_PREFIX": "shop", "VERSION": 3}
    ours = {**theirs, "BACKEND": "django_redislock.cache.RedisCache"}
    settings.CACHES = {**settings.CACHES, "theirs": theirs, "ours": ours}
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
    tenants = {**settings.CACHES["default"], "KEY_FUNCTION": key_function}
    settings.CACHES = {**settings.CACHES, "default": tenants}
    settings.REDISLOCK = {"ALSO_LOCK": {"kind": "django-redis", "name": f"{HERE}renamed"}}
    assert while_held(crowd, client, Lock("new:7")) == {"old-7"}


def test_old_locks_of_another_cache_are_where_that_cache_is(settings: Any, client: redis.Redis) -> None:
    """``using`` is for the locks of the settings' alias."""
    theirs = {**settings.CACHES["default"], "KEY_PREFIX": "shop"}
    ours = {**theirs, "BACKEND": "django_redislock.cache.RedisCache"}
    settings.CACHES = {**settings.CACHES, "theirs": theirs, "ours": ours}
    settings.CACHES |= {"locks": settings.CACHES["default"], "more": settings.CACHES["default"]}
    settings.REDISLOCK = {"CACHE": "locks", "ALSO_LOCK": {"kind": "django-redis", "using": "default"}}
    with caches["theirs"].lock("a", timeout=60):  # type: ignore[attr-defined]
        assert not caches["ours"].lock("a").acquire(blocking=False)  # type: ignore[attr-defined]
        for using in (None, "more"):  # which have no cache.lock() of ours
            with Lock("a", using=using):
                assert client.exists(":1:a")


def test_old_locks_may_be_on_another_alias(
    crowd: Crowd, settings: Any, client: redis.Redis, server: RedisServer
) -> None:
    elsewhere = f"redis://127.0.0.1:{server.port}/1"
    settings.CACHES = {**settings.CACHES, "elsewhere": {**settings.CACHES["default"], "LOCATION": elsewhere}}
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
    ("value", "id", "said"),
    [
        ("redis-py", "I003", "Lock('x') takes the key 'x' as well, by the rules of redis-py (cache alias 'default')"),
        ("django-redis", "I003", "the key ':1:x' as well"),
        ("python-redis-lock", "I003", "the key 'lock:x' as well"),
        ({"kind": "redis-py", "name": f"{HERE}renamed"}, "I003", f"the key that {HERE}renamed names for it as well"),
        ({"kind": "redis-py", "using": "memory"}, "I003", "(cache alias 'memory')"),
        ({"kind": "redis-py", "using": "nowhere"}, "E002", "REDISLOCK['ALSO_LOCK'] names the cache alias 'nowhere'"),
        ({"kind": "redis-py", "name": f"{HERE}nothing"}, "E005", f"REDISLOCK['ALSO_LOCK'] = '{HERE}nothing'"),
    ],
)
def test_a_check_says_that_it_is_on_and_what_is_wrong_with_it(value: Any, id: str, said: str, settings: Any) -> None:
    settings.REDISLOCK = {"ALSO_LOCK": value}
    (found,) = [one for one in check() if one.id in (f"django_redislock.{id}",)]
    assert said in found.msg


@pytest.mark.parametrize(
    ("alias", "id", "said"),
    [
        ({"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}, "W001", "The cache alias 'old' is not Redis"),
        ({"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "x"}, "E003", "The cache alias 'old'"),
    ],
)
def test_a_check_tells_of_an_alias_that_has_no_old_locks(
    alias: dict[str, str], id: str, said: str, settings: Any
) -> None:
    settings.CACHES = {**settings.CACHES, "old": alias}
    settings.REDISLOCK = {"ALSO_LOCK": {"kind": "redis-py", "using": "old"}}
    (found,) = [one for one in check() if one.id == f"django_redislock.{id}"]
    assert said in found.msg
    assert "REDISLOCK['ALSO_LOCK']['using']" in str(found.hint)


def test_a_check_asks_for_a_function_where_another_cache_of_ours_has_a_key_function(settings: Any) -> None:
    ours = {**settings.CACHES["default"], "BACKEND": "django_redislock.cache.RedisCache", "KEY_FUNCTION": key_function}
    settings.CACHES = {**settings.CACHES, "ours": ours}
    settings.REDISLOCK = {"ALSO_LOCK": "django-redis"}
    (found,) = [one for one in check() if one.id == "django_redislock.E005"]
    assert "The cache alias 'ours' has a KEY_FUNCTION" in found.msg
    settings.REDISLOCK = {"ALSO_LOCK": {"kind": "django-redis", "name": f"{HERE}renamed_by_number"}}
    assert "django_redislock.E005" not in [one.id for one in check()]  # which calls no function of the site


@pytest.mark.parametrize("using", [None, "default"])
def test_the_check_asks_where_the_old_locks_are_if_ours_have_an_alias_of_their_own(using: Any, settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "locks": settings.CACHES["default"]}
    settings.REDISLOCK = {"CACHE": "locks", "ALSO_LOCK": {"kind": "django-redis"} | ({"using": using} if using else {})}
    (found,) = [one for one in check() if one.id == "django_redislock.I003"]
    assert ("If the old locks are on another alias than 'locks', name it: 'using'." in str(found.hint)) is (
        using is None
    )


def key_function(key: str, prefix: str, version: int) -> str:
    return f"tenant:{prefix}:{version}:{key}"


def test_a_key_function_asks_for_a_function(settings: Any, crowd: Crowd, client: redis.Redis) -> None:
    tenants = {**settings.CACHES["default"], "KEY_FUNCTION": key_function}
    settings.CACHES = {**settings.CACHES, "default": tenants}
    settings.REDISLOCK = {"ALSO_LOCK": "django-redis"}
    with pytest.raises(ImproperlyConfigured, match="has a KEY_FUNCTION, so the keys of its old locks do not follow"):
        crowd()(Lock("a"), "acquire")
    (found,) = [one for one in check() if one.id == "django_redislock.E005"]
    assert "KEY_FUNCTION" in found.msg
    assert taken(client) == set()


def test_a_user_without_the_right_to_the_old_key_is_told(settings: Any, crowd: Crowd, own: RedisServer) -> None:
    with own.client() as root:
        root.execute_command("ACL", "SETUSER", "default", "resetkeys", f"~{PREFIX}*")
        settings.REDISLOCK = {"ALSO_LOCK": "redis-py"}
        with pytest.raises(LockUnavailable, match=r"the lock 'a'.*permission"):
            crowd()(Lock("a"), "acquire")
