"""What others have written under our keys, or sent to our channels: a clear error, no crash, and never two holders."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from django_redislock import (
    ConditionalValue,
    Counter,
    FairLock,
    Lock,
    LockError,
    LockNotAcquired,
    LockPool,
    LockUnavailable,
    force_release,
    list_locks,
)
from django_redislock.connection import get_backend
from django_redislock.listener import get_listener

from .actors import GENEROUS, KEYS, NAME, TOKEN, Other

PREFIX = "redislock{0}:"
LOCK, QUEUE, WAITERS, INDEX, FENCE = KEYS.all
OTHER_TYPES = {"string", "list", "hash", "zset"}
POOL = "pool:accounts:"
Eventually = Callable[..., Any]


def put(client: redis.Redis, key: str, kind: str) -> None:
    """Write something of this Redis type."""
    client.delete(key)
    writes: dict[str, Callable[[], Any]] = {
        "string": lambda: client.set(key, "foreign"),
        "list": lambda: client.rpush(key, "foreign"),
        "hash": lambda: client.hset(key, "foreign", "1"),
        "zset": lambda: client.zadd(key, {"foreign": 1}),
    }
    writes[kind]()


def wrong(*keys: tuple[str, str]) -> pytest.MarkDecorator:
    """Every wrong type of these keys (and the type that each should have)."""
    cases = [(key, kind) for key, ours in keys for kind in sorted(OTHER_TYPES - {ours})]
    return pytest.mark.parametrize(("key", "kind"), cases, ids=lambda value: value.removeprefix(PREFIX))


def take_and_release(kind: type[Lock] = Lock, **options: Any) -> None:
    with kind(NAME, **{"blocking_timeout": 0.2, **options}):
        pass


TRIES: dict[str, Callable[[], Any]] = {
    "Lock": take_and_release,
    "FairLock": lambda: take_and_release(FairLock),
    "poll": lambda: take_and_release(wait="poll"),
    "seize": lambda: Lock(NAME).seize(),
}
LOOKS: dict[str, Callable[[], Any]] = {
    "status": lambda: Lock(NAME).status(),
    "info": lambda: Lock(NAME).info(),
    "force": lambda: force_release(NAME),
    "show": lambda: call_command("redislocks", "show", NAME),
    "clear": lambda: call_command("redislocks", "clear", NAME, "--noinput"),
}


# -- keys of another type ---------------------------------------------------------------------------------------------


@wrong((LOCK, "string"), (QUEUE, "zset"), (INDEX, "zset"))
@pytest.mark.parametrize("call", TRIES)
def test_a_key_of_another_type_is_an_error_that_names_it_and_says_what_it_is(
    key: str, kind: str, call: str, client: redis.Redis
) -> None:
    put(client, key, kind)
    before = client.dump(key)
    with pytest.raises(LockUnavailable) as caught:
        TRIES[call]()
    text = str(caught.value)
    assert f"Somebody else has written the key {key!r}, which is a {kind}" in text
    assert NAME in text
    assert "user_script" not in text
    assert client.dump(key) == before


@wrong((LOCK, "string"))
@pytest.mark.parametrize("call", LOOKS)
def test_whoever_looks_at_a_lock_of_another_type_is_told_which_key_it_is(
    key: str, kind: str, call: str, client: redis.Redis
) -> None:
    put(client, key, kind)
    before = client.dump(key)
    with pytest.raises((LockUnavailable, CommandError), match=r"the key 'redislock\{0\}:lock:order:42', which is a"):
        LOOKS[call]()
    assert client.dump(key) == before


@wrong((LOCK, "string"), (QUEUE, "zset"), (WAITERS, "hash"))
def test_other_locks_go_on(key: str, kind: str, client: redis.Redis) -> None:
    put(client, key, kind)
    with Lock("other", blocking_timeout=0), FairLock("another", blocking_timeout=0):
        assert [lock.name for lock in list_locks()] == ["another", "other"]


@wrong((WAITERS, "hash"))
def test_who_queues_is_told_that_the_waiters_are_of_another_type(
    key: str, kind: str, client: redis.Redis, other: Callable[[], Other]
) -> None:
    holder = Lock(NAME)
    other()(holder.acquire)
    put(client, key, kind)
    with pytest.raises(LockUnavailable, match=r"the key 'redislock\{0\}:waiters:order:42', which is a"):
        Lock(NAME).acquire(blocking_timeout=5)


@wrong((INDEX, "zset"))
def test_an_index_of_another_type_is_named_to_who_lists(key: str, kind: str, client: redis.Redis) -> None:
    put(client, key, kind)
    with pytest.raises(LockUnavailable, match=r"the key 'redislock\{0\}:index', which is a"):
        list_locks()


@wrong((LOCK, "string"))
def test_a_lock_that_is_overwritten_while_held_is_an_error_at_the_release_and_then_lost(
    key: str, kind: str, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    lock = Lock(NAME, ttl=1)
    lock.acquire()
    put(client, key, kind)
    with pytest.raises(LockUnavailable, match=r"the key 'redislock\{0\}:lock:order:42'"):
        lock.release()
    eventually(lambda: lock.lost)
    client.delete(key)
    take_and_release()


def test_a_user_who_may_not_ask_for_types_is_told_what_redis_said(
    client: redis.Redis, settings: Any, server: Any
) -> None:
    put(client, QUEUE, "list")
    client.acl_setuser("blind", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=["+@all", "-type"])
    location = server.url.replace("//", "//blind:any@")
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": location}}
    with pytest.raises(LockUnavailable, match=r"WRONGTYPE .*wrong kind of value\.$"):
        take_and_release()
    client.acl_deluser("blind")


# -- the fence --------------------------------------------------------------------------------------------------------


@wrong((FENCE, "string"))
def test_a_fence_of_another_type_is_named(key: str, kind: str, client: redis.Redis) -> None:
    put(client, key, kind)
    with pytest.raises(LockUnavailable, match=r"the key 'redislock\{0\}:fence', which is a"):
        take_and_release()


NO_FENCES = ["foreign", "", "nan", "inf", "1e400", "9" * 400, "9007199254740991", "9" * 18, "9223372036854775807", "\0"]


@pytest.mark.parametrize("text", NO_FENCES)
@pytest.mark.parametrize("alias", ["default", "memory"])
def test_what_is_no_fence_is_named_and_left_alone_and_nothing_is_locked(text: str, alias: str) -> None:
    backend = get_backend(alias)
    backend.execute(("FLUSHALL",))
    backend.execute(("SET", FENCE, text))
    for _ in range(2):
        with pytest.raises(LockUnavailable, match=r"the key 'redislock\{0\}:fence', which holds no fence\. Delete it"):
            take_and_release(using=alias)
    assert backend.execute(("GET", FENCE)) == text.encode()
    assert not backend.execute(("EXISTS", LOCK))
    backend.execute(("DEL", FENCE))
    take_and_release(using=alias)


def test_fences_grow_up_to_the_highest_that_doubles_can_count(client: redis.Redis, fresh: None) -> None:
    client.set(FENCE, 2**53 - 3)
    lock = Lock(NAME)
    lock.acquire()
    assert lock.fence == 2**53 - 2
    lock.release()


# -- forged locks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rest",
    ["", "foreign", "channel c 1 1", "channel c -1 1 owner", "channel c nan 1 x", f"channel c {'9' * 400} 1 owner"],
)
@pytest.mark.parametrize("ours", [True, False], ids=["our token", "another"])
@pytest.mark.parametrize("wait", ["wake", "poll"])
def test_whatever_stands_in_a_lock_it_is_held_and_not_by_us(
    rest: str, ours: bool, wait: Any, client: redis.Redis
) -> None:
    client.set(LOCK, f"{TOKEN if ours else 'x' * 22} {rest}", px=60_000)
    assert not Lock(NAME, token=TOKEN).acquire(blocking=False)
    assert not Lock(NAME, token=TOKEN, wait=wait).acquire(blocking_timeout=0.1)
    force_release(NAME)
    take_and_release(blocking_timeout=GENEROUS)


def test_a_token_that_only_begins_like_the_holders_releases_nothing(client: redis.Redis) -> None:
    lock = Lock(NAME)
    lock.acquire()
    for forged in (str(lock.token)[:-1], f"{lock.token}x", str(lock.token).swapcase()):
        with pytest.raises(LockError):
            Lock(NAME, token=forged if len(forged) >= 22 else forged.ljust(22, "-")).release()
    assert lock.owned()
    lock.release()


def test_a_lock_that_never_ends_is_looked_at_no_more_often_than_any_other(client: redis.Redis) -> None:
    client.set(LOCK, "foreign")
    with pytest.raises(LockNotAcquired) as caught, Lock(NAME, blocking_timeout=1):
        pass
    assert caught.value.attempts <= 4


@pytest.mark.parametrize("command", [["show"], ["clear", "--noinput"]])
def test_the_command_says_which_key_stands_where_a_lock_should(command: list[str], client: redis.Redis) -> None:
    client.set(LOCK, "foreign")
    with pytest.raises(CommandError, match=r"Somebody else has written the key 'redislock\{0\}:lock:order:42'"):
        call_command("redislocks", *command, NAME)


# -- forged queues ----------------------------------------------------------------------------------------------------

NO_ENTRIES = [
    "foreign",
    "",
    "F",
    "X redislock:channel 30000 0 owner",
    "F {channel} 0 0 owner",
    "F {channel} 9999999999999 0 owner",
    f"F {{channel}} {'9' * 400} 0 owner",
    "F {channel} 30000 x owner",
    f"F - 30000 {'9' * 17} owner",
    f"F - 30000 {'9' * 400} owner",
]


@pytest.mark.parametrize("score", [1, -math.inf, math.inf, 1e300])
@pytest.mark.parametrize("entry", NO_ENTRIES, ids=lambda entry: entry[:40])
def test_an_entry_that_is_none_is_dropped_from_the_queue(
    entry: str, score: float, client: redis.Redis, kind: type[Lock]
) -> None:
    client.zadd(QUEUE, {"forged": score})
    client.hset(WAITERS, "forged", entry.format(channel=get_backend().channel))
    with kind(NAME, blocking_timeout=5):
        assert not client.zscore(QUEUE, "forged")


@pytest.mark.parametrize("entry", NO_ENTRIES, ids=lambda entry: entry[:40])
def test_a_release_goes_past_entries_that_are_none_to_whoever_waits(
    entry: str, client: redis.Redis, other: Callable[[], Other], eventually: Callable[..., Any]
) -> None:
    holder = Lock(NAME)
    holder.acquire()
    waiting = other().start(lambda: FairLock(NAME).acquire(blocking_timeout=GENEROUS))
    eventually(lambda: client.zcard(QUEUE) == 1)
    client.zadd(QUEUE, {"forged": 1})
    client.hset(WAITERS, "forged", entry.format(channel=get_backend().channel))
    holder.release()
    assert waiting.result(GENEROUS)
    assert not client.exists(QUEUE)


@pytest.mark.parametrize("score", [-math.inf, math.inf, -1e300])
def test_a_place_in_the_queue_that_cannot_be_is_still_shown(score: float, client: redis.Redis) -> None:
    with Lock(NAME):
        client.zadd(QUEUE, {"forged": score})
        client.hset(WAITERS, "forged", b"F \xff 1 1 " + b"\xff" * 100_000)
        (waiter,) = Lock(NAME).info().queue  # type: ignore[union-attr]
        assert math.isfinite(waiter.waited)
        assert len(waiter.owner) <= 2000
        call_command("redislocks", "show", NAME, "--format", "json")
        call_command("redislocks", "show", NAME)


# -- forged messages --------------------------------------------------------------------------------------------------

MESSAGES = [
    b"",
    b"g",
    b"g ",
    b"\xff\xfe",
    b"\x00" * 100,
    b"p p p",
    b"g {token} 1 2 order:42",
    b"g {token} x y z order:42",
    b"g {token} 1 1 " + b"9" * 5000 + b" order:42",
    b"g {token} " + b"9" * 5000 + b" 1 1 order:42",
    b"g {token} 1 1 1 \xff",
    b"w",
    b"w {token}",
    b"w no-such-token-0123456789 \xff",
    b"w no-such-token-0123456789 " + b"x" * 5000,
    b"w no-such-token-0123456789 a\nb",
    b"w no-such-token-0123456789 pool:x:",
    b"f no-such-token-0123456789 order:42",
    b"d no-such-token-0123456789 order:42",
    b"x short order:42",
    b"\xd0" * 1_000_000,
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: repr(message[:32]))
def test_a_message_that_nobody_of_ours_has_sent_ends_neither_who_waits_nor_the_listener(
    message: bytes,
    client: redis.Redis,
    other: Callable[[], Other],
    eventually: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    holder = Lock(NAME)
    holder.acquire()
    waiting = other().start(lambda: FairLock(NAME).acquire(blocking_timeout=GENEROUS))
    eventually(lambda: client.zcard(QUEUE) == 1)
    listener = get_listener(get_backend())
    generation = listener.generation
    queued: Any = client.zrange(QUEUE, 0, -1)
    (token,) = queued
    assert client.publish(get_backend().channel, message.replace(b"{token}", token)) == 1
    holder.release()
    assert waiting.result(GENEROUS)
    assert listener.generation == generation
    assert caplog.messages == []


# -- pools ------------------------------------------------------------------------------------------------------------

NO_MEMBERS = [b"\xff\xfe", b"a:b", b"", b"x\ny", b"\0", b"%zz", b"%41", b"x" * 600, b"{a}"]


def take_one(pool: LockPool) -> str:
    try:
        with pool.acquire(blocking_timeout=GENEROUS) as member:
            return member.key
    except LockError as error:
        return str(error)


@pytest.mark.parametrize("raw", NO_MEMBERS, ids=lambda raw: repr(raw[:20]))
def test_a_member_that_is_none_is_named_and_the_others_go_on(
    raw: bytes, client: redis.Redis, eventually: Eventually
) -> None:
    pool = LockPool("accounts")
    pool.assign(["alice"])
    client.zadd(f"{PREFIX}members:{POOL}", {raw: 0})
    client.zadd(f"{PREFIX}free:{POOL}", {raw: -1})
    for look in (pool.keys, pool.items_locked_status, pool.info, lambda: pool.acquire(blocking_timeout=0)):
        with pytest.raises(LockError, match=r"is no member of a pool.*Remove it") as caught:
            look()
        assert len(str(caught.value)) < 400
        assert caught.value.name == "accounts"
    taken = [take_one(pool) for _ in range(4)]
    assert taken.count("alice") >= 2
    eventually(lambda: not client.keys(f"{PREFIX}lock:*"))  # what was got for nobody is given back in the background
    pool.assign(["alice"])
    assert pool.keys() == ["alice"]


@pytest.mark.parametrize("raw", NO_MEMBERS, ids=lambda raw: repr(raw[:20]))
def test_assigning_the_members_anew_takes_out_what_is_none(raw: bytes, client: redis.Redis) -> None:
    pool = LockPool("accounts")
    pool.assign(["alice"])
    client.zadd(f"{PREFIX}members:{POOL}", {raw: 0})
    client.zadd(f"{PREFIX}free:{POOL}", {raw: -1})
    pool.assign(["alice"])
    assert pool.keys() == ["alice"]


@wrong(*((f"{PREFIX}{word}:{POOL}", "zset") for word in ("members", "free", "busy", "leaving", "queue")))
def test_a_key_of_a_pool_that_is_of_another_type_is_named(key: str, kind: str, client: redis.Redis) -> None:
    pool = LockPool("accounts")
    pool.assign(["alice"])
    put(client, key, kind)

    def use() -> None:
        pool.acquire(blocking_timeout=0).release()
        pool.info()

    with pytest.raises(LockUnavailable) as caught:
        use()
    assert f"Somebody else has written the key {key!r}, which is a {kind}" in str(caught.value)
    other = LockPool("others")
    other.assign(["bob"])
    other.acquire(blocking_timeout=0).release()


# -- slots ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [lambda: Counter("hits").incr(), lambda: ConditionalValue("high").setgt(1)])
@pytest.mark.parametrize("kind", ["list", "hash", "zset"])
def test_a_slot_of_another_type_is_named_and_not_used_again(
    call: Callable[[], Any], kind: str, client: redis.Redis
) -> None:
    Counter("other").incr()
    slots: Any = client.keys(f"{PREFIX}slot:*")
    for slot in slots:
        put(client, slot.decode(), kind)
    with pytest.raises(LockUnavailable, match=r"the key 'redislock\{0\}:slot:.*', which is a"):
        call()
    assert call()
