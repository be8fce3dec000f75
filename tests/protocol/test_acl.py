"""A Redis user with the rights in docs/redis-user.rst: everything works, nothing else is tried, and no right is
superfluous."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
import redis
from django.core.checks import run_checks
from django.core.management import call_command

import django_redislock
from django_redislock import Lock, LockPool, LockUnavailable
from redisserver import RedisServer
from tests.helpers.actors import Crowd, Other
from tests.helpers.docs import redis_user
from tests.helpers.monitor import Monitor
from tests.helpers.operations import all_of_them, locks_alone, use_values
from tests.helpers.processes import Worker
from tests.inside import listener, page, redis_py_lock

SECRET = "s3cret"
DATABASE = 3

LOCKS, POOLS = redis_user()
RULES = [*LOCKS, *POOLS]

Eventually = Callable[..., Any]


def give(client: redis.Redis, *rules: str) -> None:
    """Set the rights of the user."""
    client.execute_command("ACL", "SETUSER", "locks", "reset", *rules)
    client.execute_command("ACL", "LOG", "RESET")


def commands(rules: list[str]) -> set[str]:
    return {rule[1:].partition("|")[0] for rule in rules if rule.startswith("+")}


def used(monitor: Monitor) -> set[str]:
    """The commands of the user, also in scripts: other connections are recognized by their addresses."""
    seen = {seen.name for seen in monitor.seen() if not seen.source.startswith("unix:")}
    return seen - {"auth", "echo", "client", "hello"}


def refused(client: redis.Redis) -> set[tuple[str, str]]:
    """(reason, command) of everything that was refused, without CLIENT SETINFO, which redis-py sends to Redis 7.2 and
    later."""
    entries: Any = client.acl_log()
    found = {(str(entry["reason"]), str(entry["object"])) for entry in entries}
    return {entry for entry in found if not entry[1].startswith("client")}


@pytest.fixture
def root(own: RedisServer, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """The administrator of a server on which the locks use the restricted user, here and in workers."""
    with redis.Redis(unix_socket_path=str(own.socket), db=DATABASE) as client:
        location = f"redis://locks:{SECRET}@127.0.0.1:{own.port}/{DATABASE}"
        give(client, *RULES)
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": location}}
        monkeypatch.setenv("REDISLOCK_TEST_URL", location)
        yield client


@pytest.fixture
def monitor(own: RedisServer) -> Iterator[Monitor]:
    made = Monitor(own)
    yield made
    made.close()


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
    crowd: Crowd, root: redis.Redis, monitor: Monitor, eventually: Eventually
) -> None:
    all_of_them(crowd, eventually)
    use_what_is_around_them(root)
    call_command("redislocks", "pool", "seats", verbosity=0)
    call_command("redislocks", "pool", verbosity=0)
    assert refused(root) == set()
    keys: Any = root.keys("*")
    assert all(key.startswith(b"redislock{0}:") for key in keys)
    assert (listener().ready, listener().polled) == (True, False)
    assert used(monitor) == commands(RULES)


def test_locks_and_values_need_only_the_rights_of_the_first_line(
    crowd: Crowd, root: redis.Redis, monitor: Monitor, eventually: Eventually
) -> None:
    give(root, *LOCKS)
    locks_alone(crowd, eventually)
    use_what_is_around_them(root)
    assert used(monitor) == commands(LOCKS)
    use_values(crowd)
    assert refused(root) == set()
    with pytest.raises(LockUnavailable, match="refuses to serve the pool 'accounts'"):
        LockPool("accounts").assign(["alice"])


@pytest.mark.parametrize("command", ["evalsha", "subscribe", "zadd", "mget"])
def test_with_one_right_less_something_is_refused(
    command: str, crowd: Crowd, root: redis.Redis, eventually: Eventually
) -> None:
    give(root, *(rule for rule in RULES if rule != f"+{command}"))
    me = crowd()
    tries: list[Callable[[], Any]] = [
        lambda: me(Lock("a"), "acquire"),
        lambda: me(django_redislock, "list_locks"),
    ]
    for attempt in tries:
        with suppress(LockUnavailable):
            attempt()
    if command == "subscribe":
        listener().start()
    eventually(lambda: refused(root))
    assert {what.partition("|")[0] for _, what in refused(root)} == {command}


def test_without_the_right_to_evalsha_scripts_are_sent_as_text(
    crowd: Crowd, root: redis.Redis, eventually: Eventually
) -> None:
    give(root, *(rule for rule in RULES if rule != "+evalsha"), "+scan")
    all_of_them(crowd, eventually)
    assert refused(root) == {("command", "evalsha")}


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule[0] in "~&"])
def test_another_prefix_is_refused(rule: str, crowd: Crowd, root: redis.Redis) -> None:
    give(root, *(other for other in RULES if other != rule), rule.replace("redislock", "others"))
    me, you = crowd(), crowd()
    if rule[0] == "~":
        with pytest.raises(LockUnavailable):
            me(Lock("a"), "acquire")
    else:
        assert me(Lock("a"), "acquire")
        assert not you(Lock("a"), "acquire", blocking_timeout=0.5)
    assert {why for why, _ in refused(root)} == {"key" if rule[0] == "~" else "channel"}


WAITS = """
from tests.inside import limit
limit(look_every=1000.0)  # nobody looks by the clock
hear()
with Lock("stock", blocking_timeout=60) as lock:
    say("got", lock.fence)
    hear()
say("done")
"""


@pytest.mark.complete
def test_processes_wait_for_each_other(root: redis.Redis, start: Callable[..., Worker], eventually: Eventually) -> None:
    workers = [start(WAITS) for _ in range(3)]
    for number, worker in enumerate(workers):
        worker.tell()
        if number == 0:
            worker.expect("got")
        eventually(lambda number=number: root.zcard("redislock{0}:queue:stock") == number)
    for former, following in pairwise(workers):
        former.tell()
        former.expect("done")
        following.expect("got", within=15)
    workers[-1].tell()
    workers[-1].expect("done")
    assert refused(root) == set()


def test_the_deploy_checks_need_one_more_right_and_say_so(root: redis.Redis) -> None:
    def ids() -> list[str]:
        found = run_checks(include_deployment_checks=True)
        return [str(each.id) for each in found if str(each.id).startswith("django_redislock.")]

    assert "django_redislock.W004" in ids()
    assert {what for _, what in refused(root)} == {"info"}
    give(root, *RULES, "+info")
    assert {"django_redislock.W004", "django_redislock.W006"}.isdisjoint(ids())
    assert refused(root) == set()


def test_a_user_without_the_right_to_ask_for_types_sees_the_error_of_redis(
    root: redis.Redis, other: Callable[[], Other]
) -> None:
    give(root, *(rule for rule in RULES if rule != "+type"))
    root.rpush("redislock{0}:queue:a", "foreign")
    with pytest.raises(LockUnavailable, match=r"WRONGTYPE .*wrong kind of value\.$"):
        Lock("a").acquire()


def test_a_user_who_may_not_connect_sees_the_error_of_redis(root: redis.Redis, crowd: Crowd) -> None:
    give(root, *(rule for rule in RULES if rule != "+select"))
    with pytest.raises(LockUnavailable, match=r"Redis refuses to serve the lock 'a'.*'select'"):
        crowd()(Lock("a"), "acquire")
