"""The state of one lock in Redis, foreign values, suspensions, ``force_release()``; and lists of locks and pools."""

import json
import logging
import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.test import Client

import django_redislock
from django_redislock import (
    Lock,
    LockInfo,
    LockPool,
    LockStatus,
    LockUnavailable,
    PoolSummary,
    Semaphore,
    force_release,
    get_lock,
    list_locks,
    list_pools,
)
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd, Ghost, server_time, until
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.state import INDEX, hold, known, put
from tests.helpers.ways import DJANGO, DJANGO_REDIS, alias, caches
from tests.inside import FORCE, PREFIX, limit, names_everywhere, page

HOUR = 3600
FOREIGN = [
    b"",
    b"\xff\xfe\x00",
    b"id channel c 1 1 -",
    b"id channel c one two - owner",
    b"id channel c -1 -1 - owner",
    b"id channel c \xc2\xb2 \xc2\xb2 - owner",
    b"id channel c 1 " + b"9" * 18 + b" - owner",
    b"id channel c " + b"9" * 5000 + b" 1 - owner",
]
COLUMNS = ["name", "owner", "held_for", "lease_left", "fence", "waiters"]
FAR = 4e15  # microseconds
each_way = pytest.mark.parametrize("way", ["list_locks", "name", "lease_left", "owner"])
both_ways = pytest.mark.parametrize("way", ["list_locks", "name"])


def queue_up(there: Ghost, count: int) -> list[str]:
    """Let so many waiters queue for the lock "a", one after the other; return their owners in order."""
    owners = [f"waiter-{number}" for number in range(count)]
    for number, owner in enumerate(owners):
        there.acquire(there.request(f"a-{number:022}", name="a", owner=owner))
    return owners


def test_info_lists_the_first_hundred_waiters_in_order_and_counts_all(ghost: Any, crowd: Crowd, client: Any) -> None:
    hold("a")
    owners = queue_up(ahead := ghost(), 130)
    info = crowd()(django_redislock, "get_lock", "a")
    assert info.waiters == 130
    assert [waiter.owner for waiter in info.queue] == owners[:100]
    waited = [waiter.waited for waiter in info.queue]
    assert waited == sorted(waited, reverse=True)
    assert waited[-1] >= 0
    client.delete(f"{PREFIX}queue:a")
    ahead.queue("1" * 22, name="a", age=-GENEROUS)  # it came when the clock was ahead
    assert known("a").queue[0].waited == 0
    client.delete(f"{PREFIX}lock:a")  # a queue without a holder
    assert get_lock("a") is None


def test_it_tells_which_waiters_redis_cannot_reach(ghost: Callable[..., Ghost], client: redis.Redis) -> None:
    hold("a", ttl=600)
    killed, there = ghost(alive=False), ghost()
    killed.queue("1" * 22, name="a")
    there.queue("2" * 22, name="a")
    client.zadd(f"{PREFIX}queue:a", {"3" * 22: "inf", "4" * 22: "inf"})
    now = server_time(client)
    for id, polls_until in (("3" * 22, now - 1), ("4" * 22, now + 30_000_000)):
        client.hset(f"{PREFIX}waiters:a", id, f"- 30000 {polls_until} - ghost")
    assert [waiter.gone for waiter in known("a").queue] == [True, False, True, False]
    assert known("a").waiters == 4
    LockPool("accounts").extend(["alice"])
    LockPool("accounts").acquire(ttl=600)
    killed.queue("1" * 22, name="pool:accounts:")
    assert [waiter.gone for waiter in LockPool("accounts").info().queue] == [True]
    assert [waiter.gone for waiter in known("pool:accounts:alice").pool_queue] == [True]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    call_command("redislocks", *arguments)
    return capsys.readouterr().out


def all_show(name: str, capsys: Any, admin: Client, key: str, words: str) -> None:
    """The command, as text and as JSON, and both pages of the admin."""
    assert f" s ({words})  " in printed(capsys, "list")
    assert f" s ({words})\n" in printed(capsys, "show", name)
    assert json.loads(printed(capsys, "show", name, "--format=json"))[key] is True
    for part in ("", f"{name}/change/"):
        path = f"/admin/django_redislock/heldlock/{part}".replace(":", "_3A")
        assert f" s ({words})" in admin.get(path).content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["order:42", "pool:accounts:alice"])
def test_all_who_show_a_lock_say_that_it_is_being_handed_over(
    name: str, ghost: Callable[..., Ghost], capsys: Any, admin_client: Client
) -> None:
    there, pool, of_pool = ghost(), LockPool("accounts"), name.startswith("pool:")
    pool.assign(["alice"])
    with pool.acquire() if of_pool else Lock(name):
        assert not known(name).handed_over
        there.queue("a" * 22, name="pool:accounts:" if of_pool else name, ttl=30)
    for info in (known(name), *list_locks()):
        assert (info.owner, info.handed_over) == ("ghost", True)
        assert info.lease_left <= 10
    assert [lock.handed_over for lock in pool.info().locks] == [True] * of_pool
    all_show(name, capsys, admin_client, "handed_over", "being handed over")


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["order:42", "pool:accounts:alice"])
def test_all_who_show_a_lock_say_that_it_was_detached(name: str, capsys: Any, admin_client: Client) -> None:
    LockPool("accounts").assign(["alice"])
    lock = Lock(name)
    lock.acquire()
    assert not known(name).detached
    lock.detach(ttl=600)
    info = known(name)
    assert (info.detached, info.handed_over) == (True, False)
    assert 500 < info.lease_left <= 600
    all_show(name, capsys, admin_client, "detached", "detached")


@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: repr(value[:40]))
def test_a_foreign_value_keeps_the_lock_from_everybody_until_it_is_forced_away(value: bytes, client: Any) -> None:
    for left in (60, math.inf):
        client.set(f"{PREFIX}lock:foreign", value, px=60_000 if left == 60 else None)
        info = known("foreign")
        assert (info.status, info.owner, info.fence, info.note, info.token_hint) == (LockStatus.ERROR, "?", 0, "", "")
        assert info.held_for == 0
        assert left - 10 < info.lease_left <= left or info.lease_left == left
        assert Lock("foreign").status() is LockStatus.ERROR
        assert not Lock("foreign").acquire(blocking=False)
        force_release("foreign")
        with Lock("foreign", blocking=False):
            pass


# -- suspensions; for their effects, see tests/protocol/test_r2_r15_r20_scripts.py -------------------------------


def test_it_says_who_suspended_the_lock_until_when_and_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_redislock")
    hold("another")
    me = known("another").owner
    force_release("another")
    caplog.clear()
    token = hold("a", note="of the holder")
    Lock("a").suspend(timedelta(hours=1), note="rate\nlimited")
    info = known("a")
    assert info.suspension is not None
    assert (info.held, info.owner, info.note) == (True, me, "of the holder")
    assert info.suspension.note == "rate\nlimited"
    assert info.lease_left < HOUR - 100 < info.suspension.left
    Lock("a", token=token).release()
    for info in (*list_locks(), known("a")):
        assert (info.held, info.owner, info.note) == (False, f"nobody (suspended by {me})", "rate\nlimited")
        assert info.suspension is not None
        assert (info.suspension.owner, info.suspension.note) == (me, "rate\nlimited")
        assert HOUR - 100 < info.suspension.left == info.lease_left <= HOUR
    for _ in range(2):
        Lock("a").resume()
    assert caplog.messages == [
        rf'event=suspended name=a seconds=3600.000000 by={me} note="rate\nlimited"',
        f"event=resumed name=a by={me}",
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((0,), ValueError, "seconds must be at least 0.001 seconds and finite, not 0"),
        (("60",), TypeError, "seconds must be seconds"),
        ((60, 7), TypeError, "note must be a str, not 7"),
        ((60, "x" * 1001), ValueError, "note must have at most 1000 bytes, not 1001"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent_and_then_redis_is_missed(
    arguments: tuple[Any, ...], error: type[Exception], says: str, own: RedisServer, retry_for: Any
) -> None:
    retry_for(0.0)
    own.stop()
    with pytest.raises(error, match=says):
        Lock("a").suspend(*arguments)
    for call in (lambda: Lock("a").suspend(60), Lock("a").resume):
        with pytest.raises(LockUnavailable):
            call()


def test_it_returns_what_was_released_and_tells_by_whom(me: Any, ghost: Any, heard: Any, caplog: Any) -> None:
    assert me(django_redislock, "force_release", "a") is None
    assert (heard, caplog.messages) == ([], [])
    token = hold("a", note="for people")
    queue_up(ghost(), 2)
    before = known("a")
    heard.clear()
    released = me(django_redislock, "force_release", "a", by="jo")
    facts = ("name", "owner", "fence", "since", "waiters", "note")
    assert [getattr(released, fact) for fact in facts] == [getattr(before, fact) for fact in facts]
    assert released.waiters == 2
    assert [(which, facts["name"], facts["by"]) for which, facts in heard if which == "force"] == [("force", "a", "jo")]
    assert f"event=force-released name=a by=jo owner={before.owner}" in caplog.text
    assert token not in caplog.text


def test_the_next_waiter_gets_the_lock_at_once_past_any_number_of_dead_ones(
    me: Any, you: Any, queue: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=1000.0)  # it is told
    hold("a", ttl=600)
    waiting = queue(Lock("a"), me)
    dead = {f"dead-{number:017}": number for number in range(1, 11_001)}
    client.zadd(f"{PREFIX}queue:a", dead)
    client.hset(f"{PREFIX}waiters:a", mapping=dict.fromkeys(dead, "no-such-channel 30000 0 - dead"))
    assert you(django_redislock, "force_release", "a")
    assert waiting.result(GENEROUS)
    assert client.zcard(f"{PREFIX}queue:a") == 0


def test_a_fence_spares_whoever_came_later(me: Any, you: Any, caplog: pytest.LogCaptureFixture) -> None:
    lock = Lock("a")
    me(lock, "acquire")
    seen = me.read(lambda: lock.fence)
    assert you(django_redislock, "force_release", "a", fence=seen - 1) is None
    assert you(django_redislock, "force_release", "a", fence=seen)
    hold("a", ttl=600)
    until(lambda: "event=lost" in caplog.text)  # of the first holder, told by a thread
    caplog.clear()
    assert you(django_redislock, "force_release", "a", fence=seen) is None
    assert not caplog.records
    for fence in (True, "abc", 3.5, math.nan, -1):
        with pytest.raises((TypeError, ValueError), match=r"^fence must be "):
            force_release("a", fence=fence)  # type: ignore[arg-type]
    assert get_lock("a")


@pytest.fixture
def road(server: RedisServer) -> Iterator[Proxy]:
    """That to Redis; "straight" is an alias with another one. Redis knows the script."""
    with proxy(server.port) as network, caches(alias(DJANGO, network.url), straight=alias(DJANGO, server.url)):
        hold("another")
        assert force_release("another")
        yield network


def test_whoever_gets_the_lock_after_the_call_is_spared(road: Proxy, crowd: Crowd, caplog: Any) -> None:
    me, token, after = crowd(), hold("a"), Lock("a", using="straight")
    caplog.clear()
    late = road.hold_request(FORCE)
    forced = me.start(django_redislock, "force_release", "a")
    assert late.caught.wait(GENEROUS)
    Lock("a", token=token, using="straight").release()
    with after:
        late.let_go()
        assert forced.result(GENEROUS) is None
        assert after.owned()
    assert "force-released" not in caplog.text


def test_so_is_the_next_one_in_order_where_the_answer_is_lost(
    road: Proxy, me: Any, you: Any, queue: Any, caplog: Any
) -> None:
    wanted = Lock("a", using="straight")
    hold("a", ttl=600, note="stuck")
    waiting = queue(wanted, you)
    lost = road.lose_answer(FORCE)
    released = me(django_redislock, "force_release", "a")
    assert lost.over.is_set()
    assert (released.note, released.waiters) == ("stuck", 1)
    assert caplog.text.count("event=force-released name=a ") == 1
    assert waiting.result(GENEROUS)
    assert you(wanted, "owned")
    you(wanted, "release")


@pytest.mark.parametrize("held", [False, True])
def test_a_suspension_that_ends_without_an_answer_has_ended(held: bool, road: Proxy, crowd: Crowd) -> None:
    me, lock = crowd(), Lock("a")
    if held:
        hold("a", ttl=600)
    me(lock, "suspend", 600)
    lost = road.lose_answer(FORCE)
    assert me(lock, "resume") is True
    assert lost.over.is_set()
    assert me(lock, "resume") is False
    info = get_lock("a")
    assert (info is not None, info and info.suspension) == (held, None)


def listed(way: str) -> list[LockInfo]:
    """The held locks by ``list_locks()``, or those of a page with this order."""
    return list_locks() if way == "list_locks" else page(way).locks


def names(locks: list[LockInfo]) -> list[str]:
    return [lock.name for lock in locks]


def statuses(way: str) -> dict[str, LockStatus]:
    return {lock.name: lock.status for lock in listed(way)}


@both_ways
def test_members_of_pools_are_listed_among_the_others_with_those_who_want_any(way: str, client: redis.Redis) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice", "bob"])
    with pool.acquire(ttl=600) as alice, pool.acquire(ttl=300), Lock("a"):
        client.zadd(f"{PREFIX}queue:pool:accounts:", {"any": 1})
        client.zadd(f"{PREFIX}queue:pool:accounts:bob", {"first": 1, "second": 2})
        found = {lock.name: (lock.waiters, lock.pool_waiters) for lock in listed(way)}
        assert found == {"a": (0, 0), "pool:accounts:alice": (0, 1), "pool:accounts:bob": (2, 1)}
        _, first, second = listed(way)
        assert first.fence == alice.fence
        assert 270 < second.lease_left <= 300 < 570 < first.lease_left <= 600
        assert names(page("-waiters", "name").locks) == ["pool:accounts:bob", "pool:accounts:alice", "a"]
        assert names(page("lease_left").locks)[1:] == ["pool:accounts:bob", "pool:accounts:alice"]
    assert listed(way) == page("owner").locks == []


def test_other_prefixes_and_aliases_have_locks_of_their_own(server: RedisServer, settings: Any) -> None:
    entry = alias(DJANGO_REDIS, server.url)
    settings.CACHES = {**settings.CACHES, "default": entry, "other": {**entry, "KEY_PREFIX": "other"}}
    for using in ("default", "other", "memory"):
        hold(using, using=using)
    for using in ("default", "other", "memory"):
        assert names(list_locks(using=using)) == names(page(using=using).locks) == [using]
    settings.REDISLOCK = {"KEY_PREFIX": "elsewhere"}
    assert list_locks() == []


def test_more_locks_than_one_batch_are_all_listed_without_a_scan(client: redis.Redis, monkeypatch: Any) -> None:
    limit(monkeypatch, list_batch=7)
    held = [f"a:{number:02}" for number in range(30)]
    for name in held:
        hold(name)
    pool = LockPool("accounts")
    pool.extend([f"{number:02}" for number in range(20)])
    for _ in range(20):
        pool.acquire()
    client.config_resetstat()
    assert names(list_locks()) == [*held, *(f"pool:accounts:{number:02}" for number in range(20))]
    assert not [command for command in client.info("commandstats") if "scan" in command or "keys" in command]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["Order:1", "a[1]*", "order:1", "order:12", "order:2"]),
        ("order:?", ["order:1", "order:2"]),
        ("order:[13]", ["order:1"]),
        ("order:[!1]", ["order:2"]),
        ("a[[]1][*]", ["a[1]*"]),
        *((text, []) for text in ("order", "", "[", "[z-a]", "\\", "(", "^order:1$", ".*", "order:1\n", "?" * 600)),
    ],
)
def test_patterns_are_shell_style_and_match_the_whole_name_case_sensitively(pattern: str, found: list[str]) -> None:
    for name in ("order:1", "order:12", "order:2", "Order:1", "a[1]*"):
        hold(name)
    assert names(list_locks(pattern)) == found


@pytest.mark.parametrize("ask", [list_locks, list_pools])
def test_a_pattern_that_is_no_text_is_refused(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"^A pattern of names must be a str, not None\.$"):
        ask(None)


def test_expired_locks_are_not_listed_and_their_entries_vanish_as_others_are_taken(client: redis.Redis) -> None:
    for number in range(40):
        hold(f"expired:{number}", ttl=0.3)
    hold("held", ttl=600)
    until(lambda: len(list(client.scan_iter(f"{PREFIX}lock:*"))) == 1)
    assert client.zcard(INDEX) > 1
    assert names(list_locks()) == names(page().locks) == ["held"]

    def vanished() -> bool:
        with Lock("other"):
            pass
        return bool(client.zcard(INDEX) == 1)

    until(vanished)
    assert names(list_locks()) == ["held"]


@each_way
def test_what_others_wrote_under_our_keys_hides_no_lock(way: str, client: redis.Redis) -> None:
    put(client, "ours", waiters=1)
    client.zadd(INDEX, {b"\x1b[2J": FAR, b"\xff\xfe": FAR, b"no such lock": FAR, b"": FAR, b"pool:a:": FAR})
    client.set(f"{PREFIX}lock:\x1b[2J", f"{'t' * 22} channel c 5 1700000000000000 - owner")
    foreign = {f"foreign:{value!r}": value for value in (b"", b"x", b"\xff\xfe\x00", b"id channel c 1 1 -")}
    for name, value in foreign.items():
        put(client, name)
        client.set(f"{PREFIX}lock:{name}", value, px=60_000)
    for name in ("list", "queue"):
        put(client, name)
    client.delete(f"{PREFIX}lock:list")
    client.lpush(f"{PREFIX}lock:list", "x")
    client.set(f"{PREFIX}queue:queue", "no queue")
    for score in ("1e300", "inf"):
        client.zadd(INDEX, {"ours": score})
        ours = {"ours": LockStatus.UNAVAILABLE, "queue": LockStatus.UNAVAILABLE}
        assert statuses(way) == {**ours, **dict.fromkeys(foreign, LockStatus.ERROR)}
        assert {lock.name: lock.waiters for lock in listed(way) if lock.name in ours} == {"ours": 1, "queue": 0}
        assert all(0 < lock.lease_left <= 60 for lock in listed(way) if lock.name == "ours")


@pytest.mark.parametrize(
    ("key", "others"),
    [("permits:semaphore:s", ["a", "pool:p:m"]), ("ends:semaphore:s", ["a", "pool:p:m"]),
     ("held:pool:p:", ["a", "semaphore:s"]), ("busy:pool:p:", ["a", "pool:p:m", "semaphore:s"])],
)  # fmt: skip
def test_nor_do_keys_of_another_type(key: str, others: list[str], client: redis.Redis) -> None:
    """Those of a semaphore and of a pool; its locks may be missing."""
    pool, semaphore, lock = LockPool("p"), Semaphore("s", limit=2), Lock("a")
    pool.assign(["m"])
    held = [pool.acquire(), semaphore.acquire(), lock.acquire()]
    assert len(held) == 3
    client.set(f"{PREFIX}{key}", "foreign")
    assert [lock.name for lock in list_locks()] == others
    assert [pool.name for pool in list_pools()] == ["p"]
    assert force_release("a")


@pytest.mark.parametrize(("field", "value"), [(":", "many"), (b"\xff\xfe", "id channel c 1 1 - owner")])
def test_nor_does_what_others_wrote_into_a_semaphore(field: Any, value: str, client: redis.Redis) -> None:
    semaphore = Semaphore("s", limit=2)
    assert semaphore.acquire()
    client.hset(f"{PREFIX}permits:semaphore:s", field, value)
    client.zadd(f"{PREFIX}ends:semaphore:s", {field: FAR})
    assert [lock.name for lock in list_locks()] == ["semaphore:s"]
    assert force_release("semaphore:s")


@both_ways
@pytest.mark.parametrize("denied", ["mget", "zrange"])
def test_a_user_that_may_not_read_locks_is_lock_unavailable(way: str, denied: str, client: Any, server: Any) -> None:
    hold("a")
    client.acl_setuser("blind", enabled=True, nopass=True, keys=["*"], commands=["+@all", f"-{denied}"])
    blind = alias(DJANGO_REDIS, server.url.replace("//", "//blind:any@"))
    with caches(blind), pytest.raises(LockUnavailable, match=r"refuses .*'default'"):
        listed(way)
    client.acl_deluser("blind")


@pytest.mark.usefixtures("endless")
@each_way
def test_locks_that_never_end_are_listed_and_found(way: str, trips: list[int]) -> None:
    everyone = {"persisted": LockStatus.ERROR, "foreign": LockStatus.ERROR, "sound": LockStatus.UNAVAILABLE}
    assert statuses(way) == everyone
    assert len(trips) <= 3
    if way != "list_locks":
        searched = page(way, words="WEB")
        assert (names(searched.locks), searched.total) == (["persisted"], 3)
        assert {lock.owner for lock in page(way).locks if lock.name != "sound"} == {"?", "web-1"}
    info = known("persisted")
    assert (info.lease_left, info.expires.year) == (math.inf, 9999)
    assert names(page("lease_left").locks)[0] == names(page("-lease_left").locks)[-1] == "sound"


def test_lists_are_sorted_and_searched(client: redis.Redis) -> None:
    put(client, "a", owner="web-2", since=10, ttl=300, waiters=2)
    put(client, "b", owner="web-1", since=30, ttl=100)
    put(client, "c", owner="Web-2", since=20, ttl=200, waiters=5)
    orders = zip(COLUMNS, ["abc", "cba", "acb", "bca", "bca", "bac"], strict=True)
    for column, ascending in (each for each in orders if each[0] != "owner"):
        assert "".join(names(page(column).locks)) == ascending
        assert "".join(names(page(f"-{column}").locks)) == ascending[::-1]
    for words, matching in (("WEB", "abc"), ("web-2", "ac"), ("WEB c", "c"), ("*", ""), ("[", "")):
        found = page(words=words)
        assert ("".join(names(found.locks)), found.total) == (matching, 3)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("words", ["", "a"])
def test_the_number_of_round_trips_does_not_grow_with_the_locks(
    column: str, words: str, client: redis.Redis, trips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "a:0")
    page(column, words=words)
    few = len(trips)
    for number in range(1, 25):
        put(client, f"a:{number}", waiters=number % 3)
    trips.clear()
    limit(monkeypatch, list_batch=7)
    assert len(page(column, words=words).locks) == 25
    assert len(trips) == few == 2


@pytest.mark.usefixtures("two_aliases")
def test_a_list_has_the_locks_of_every_alias_sorted_together(trips: list[int]) -> None:
    for number, using in enumerate(["locks", "default", "again", "locks"]):
        assert Lock(f"order:{number}", using=using).acquire()
    pairs = [("order:3", "locks"), ("order:2", "default"), ("order:1", "default"), ("order:0", "locks")]
    assert [(lock.name, lock.alias) for lock in page("-fence").locks] == pairs
    trips.clear()
    assert names(page(using="default").locks) == ["order:1", "order:2"]
    assert len(trips) == 2


@pytest.mark.usefixtures("two_aliases")
async def test_so_has_one_that_a_coroutine_asks_for_or_the_alias_that_refuses_to_connect_is_named(
    settings: Any, server: RedisServer
) -> None:
    for using in ("locks", "default"):
        assert await Lock(f"order:{using}", using=using).aacquire()
    assert await names_everywhere() == ["order:default", "order:locks"]
    missing = f"redis://127.0.0.1:{server.port}/99"  # there is no such database
    settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": missing}}
    with pytest.raises(LockUnavailable, match=r"refuses to serve locks \(cache alias 'default'\): "):
        await names_everywhere()


def summary(name: str, members: int, held: int = 0, waiters: int = 0) -> PoolSummary:
    return PoolSummary(name, "default", members, held, waiters)


def test_every_pool_is_listed_by_name_as_long_as_it_has_members(me: Any, you: Any, client: redis.Redis) -> None:
    assert you(django_redislock, "list_pools") == []
    for name, members in (("b", "xyz"), ("a:ä", "x"), ("c", "x")):
        me(LockPool(name), "assign", list(members))
    assert you(django_redislock, "list_pools") == [summary("a:ä", 1), summary("b", 3), summary("c", 1)]
    assert you(django_redislock, "list_pools", "?") == [summary("b", 3), summary("c", 1)]
    me(LockPool("b"), "shrink", ["x", "y"])
    me(LockPool("c"), "clear")
    me(LockPool("a:ä"), "shrink", ["x"])
    assert you(django_redislock, "list_pools") == [summary("b", 1)]
    client.set(f"{PREFIX}pools", "a text")
    with pytest.raises(LockUnavailable, match="pools"):
        you(django_redislock, "list_pools")


def test_members_that_are_held_suspended_or_waited_for_are_counted(crowd: Crowd) -> None:
    me, you, pool = crowd(), crowd(), LockPool("accounts")
    me(pool, "extend", ["alice", "bob", "carol"])
    member = me(pool, "acquire")
    me(pool, "suspend", "carol", 600)
    assert list_pools() == [summary("accounts", 3, held=2)]
    me(pool, "acquire")
    waiting = you.start(pool, "acquire")
    until(lambda: list_pools() == [summary("accounts", 3, held=3, waiters=1)])
    me(member, "release")
    waiting.result(30)
    assert list_pools() == [summary("accounts", 3, held=3)]
