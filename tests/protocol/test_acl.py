"""Scripts declare every key that they touch, so locks fit a cluster. For a Redis user with the rights in
docs/redis-user.rst, everything works, nothing else is tried, and no right is superfluous."""

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from django.core.management import call_command

from django_redislock import Lock, LockPool, LockUnavailable
from redisserver import RedisServer
from tests.helpers.actors import Crowd
from tests.helpers.docs import redis_user
from tests.helpers.operations import all_of_them, locks_alone, use_values
from tests.helpers.state import Monitor, Touched
from tests.inside import Ears, page, redis_py_lock, scripts

DATABASE = 3
LOCKS, POOLS = redis_user()
RULES = [*LOCKS, *POOLS]


def give(client: redis.Redis, *rules: str) -> None:
    client.execute_command("ACL", "SETUSER", "locks", "reset", *rules)
    client.execute_command("ACL", "LOG", "RESET")


def commands(rules: list[str]) -> set[str]:
    return {rule[1:].partition("|")[0] for rule in rules if rule.startswith("+")}


def used(monitor: Monitor) -> set[str]:
    """The commands of the user, also in scripts: other connections are recognized by their addresses."""
    seen = {seen.name for seen in monitor.seen() if not seen.source.startswith("unix:")}
    return seen - {"auth", "echo", "client", "hello"}


def refused(client: redis.Redis) -> set[str]:
    """The commands, without CLIENT SETINFO, which redis-py sends to Redis 7.2 and later."""
    entries: Any = client.acl_log()
    return {str(entry["object"]).partition("|")[0] for entry in entries} - {"client"}


@pytest.fixture
def root(own: RedisServer, settings: Any) -> Iterator[redis.Redis]:
    """The administrator of a server on which the locks use the restricted user."""
    with redis.Redis(unix_socket_path=str(own.socket), db=DATABASE) as client:
        location = f"redis://locks:s3cret@127.0.0.1:{own.port}/{DATABASE}"
        give(client, *RULES)
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": location}}
        yield client


def use_what_is_around_them(client: redis.Redis) -> None:
    """Use the command, the admin's list and redis-py's interface, and read a foreign value."""
    lock = Lock("a")
    lock.acquire()
    for column in ("name", "waiters", "held_for"):
        assert page(column).total == 1
    call_command("redislocks", "show", "a", verbosity=0)
    call_command("redislocks", "run", "program", "--", sys.executable, "-c", "", verbosity=0)
    lock.release()
    with redis_py_lock("as-before", timeout=10) as before:
        before.extend(5)
        assert before.owned()
    client.rpush("redislock{0}:queue:foreign", "x")
    with pytest.raises(LockUnavailable, match="which is a list"):
        Lock("foreign").acquire()
    client.set("redislock{0}:fence", "x")
    with pytest.raises(LockUnavailable, match="which does not hold a fence"):
        Lock("b").acquire()
    client.delete("redislock{0}:fence")


def test_the_documented_user_can_do_everything_and_needs_every_right(
    crowd: Crowd, root: redis.Redis, own: RedisServer
) -> None:
    with closing(Monitor(own)) as monitor:
        all_of_them(crowd)
        use_what_is_around_them(root)
        call_command("redislocks", "pool", "accounts", verbosity=0)
        call_command("redislocks", "pool", verbosity=0)
        assert refused(root) == set()
        keys: Any = root.keys("*")
        assert all(key.startswith(b"redislock{0}:") for key in keys)
        assert (Ears().ready, Ears().polled) == (True, False)
        assert used(monitor) == commands(RULES)


def test_locks_and_values_need_only_the_rights_of_the_first_line(
    crowd: Crowd, root: redis.Redis, own: RedisServer
) -> None:
    give(root, *LOCKS)
    with closing(Monitor(own)) as monitor:
        locks_alone(crowd)
        use_what_is_around_them(root)
        assert used(monitor) == commands(LOCKS)
    use_values(crowd)
    assert refused(root) == set()
    with pytest.raises(LockUnavailable, match="refuses to serve the pool 'accounts'"):
        LockPool("accounts").assign(["alice"])


def test_an_assign_that_redis_refuses_leaves_the_pool_as_it_was(me: Any, root: redis.Redis) -> None:
    pool = LockPool("accounts")
    pool.assign(["alice", "bob"])
    give(root, *(rule for rule in RULES if rule != "+rename"))
    with pytest.raises(LockUnavailable, match="refuses to serve the pool 'accounts'"):
        me(pool, "assign", ["alice", "carol"])
    assert pool.keys() == ["alice", "bob"]
    assert [me(pool, "acquire", blocking_timeout=0).key for _ in range(2)] == ["alice", "bob"]


def test_without_the_right_to_evalsha_scripts_are_sent_as_text(crowd: Crowd, root: redis.Redis) -> None:
    give(root, *(rule for rule in RULES if rule != "+evalsha"), "+scan")
    all_of_them(crowd)
    assert refused(root) == {"evalsha"}


@pytest.mark.parametrize(
    ("right", "message"),
    [
        ("select", r"Redis refuses to serve the lock 'a'.*'select'"),
        ("type", r"WRONGTYPE .*wrong kind of value\.$"),  # which key it is, the client asks by TYPE
    ],
)
def test_a_user_who_may_not_connect_or_ask_sees_the_error_of_redis(
    right: str, message: str, root: redis.Redis, crowd: Crowd
) -> None:
    give(root, *(rule for rule in RULES if rule != f"+{right}"))
    root.rpush("redislock{0}:queue:a", "foreign")
    with pytest.raises(LockUnavailable, match=message):
        crowd()(Lock("a"), "acquire")


def test_scripts_touch_no_key_that_they_do_not_declare(server: RedisServer, crowd: Crowd, client: redis.Redis) -> None:
    """As the server sees it, over all main operations."""
    body = "redis.call('GET', KEYS[1]); redis.call('EXISTS', KEYS[1], 'b{0}'); redis.call('PUBLISH', 'c', 'd')"
    monitor, touched, declared, wrong = Monitor(server), Touched(server), dict[str, int](), set[str]()
    client.script_flush()
    all_of_them(crowd)
    client.eval(body, 1, "a{0}")  # one that does is seen
    for call, inner in monitor.scripts():
        keys = set(call.words[3 : 3 + int(call.words[2])])
        declared[call.words[1]] = len(keys)
        wrong |= {" ".join(seen.words) for seen in inner if not touched.by(seen) <= keys}
    monitor.close()
    touched.close()
    assert wrong == {"EXISTS a{0} b{0}"}
    assert all(count >= 1 for count in declared.values())
    by_hash = {name: script.sha for name, script in scripts().items() if name != "probe"}  # that one is sent as a text
    assert not [name for name, sha in by_hash.items() if sha not in declared], "not all have run"
