"""What others have written under our keys: a clear error that names it, and never two holders."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

import django_redislock
from django_redislock import ConditionalValue, Counter, Lock, LockError, LockNotAcquired, LockPool, LockUnavailable
from tests.helpers.actors import GENEROUS, Crowd, until
from tests.helpers.state import FENCE, LOCK, NAME, QUEUE, TOKEN, WAITERS, holder
from tests.inside import PREFIX, command, heard, own_channel, subscriptions

POOL = "pool:accounts:"


def put(client: redis.Redis, key: str) -> None:
    """Write a list there, at once: a renewal in between would write the key anew."""
    with client.pipeline() as at_once:
        at_once.delete(key)
        at_once.rpush(key, "foreign")
        at_once.execute()


@contextmanager
def named(client: redis.Redis, key: str) -> Iterator[None]:
    """What is done meets a list under this key: an error names it, and it is left alone."""
    key = f"{PREFIX}{key}"
    put(client, key)
    with pytest.raises((LockUnavailable, CommandError)) as caught:
        yield
    assert f"the key {key!r}, which is a list" in str(caught.value)
    assert "user_script" not in str(caught.value)
    assert client.lrange(key, 0, -1) == [b"foreign"]


def use(me: Any, **options: Any) -> None:
    lock = Lock(NAME, **options)
    if not me(lock, "acquire", blocking_timeout=2):
        raise LockNotAcquired("busy", NAME)
    me(lock, "release")


# and the keys that they meet
CALLS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "acquire": (use, [f"lock:{NAME}", f"queue:{NAME}", "index", "fence"]),
    "poll": (lambda me: use(me, poll=True), [f"queue:{NAME}"]),
    "status": (lambda me: me(Lock(NAME), "status"), [f"lock:{NAME}"]),
    "info": (lambda me: me(Lock(NAME), "info"), [f"lock:{NAME}"]),
    "force": (lambda me: me(django_redislock, "force_release", NAME), [f"lock:{NAME}"]),
    "show": (lambda me: call_command("redislocks", "show", NAME), [f"lock:{NAME}"]),
    "clear": (lambda me: call_command("redislocks", "clear", NAME, "--noinput"), [f"lock:{NAME}"]),
    "list": (lambda me: me(django_redislock, "list_locks"), ["index"]),
}


@pytest.mark.parametrize(("call", "key"), [(call, key) for call, (_, keys) in CALLS.items() for key in keys])
def test_a_key_of_another_type_is_an_error_that_names_it_and_says_what_it_is(
    call: str, key: str, me: Any, client: redis.Redis
) -> None:
    with named(client, key):
        CALLS[call][0](me)


def test_so_are_the_waiters_of_a_held_lock_and_other_locks_go_on(me: Any, crowd: Crowd, client: redis.Redis) -> None:
    me(Lock(NAME), "acquire")
    with named(client, f"waiters:{NAME}"):
        crowd()(Lock(NAME), "acquire", blocking_timeout=5)
    for key in ("lock", "queue", "waiters"):
        put(client, f"{PREFIX}{key}:{NAME}")
    assert me(Lock("other"), "acquire", blocking=False)
    assert [lock.name for lock in me(django_redislock, "list_locks")] == ["other"]


@pytest.mark.complete
def test_a_lock_that_is_overwritten_while_held_is_an_error_at_the_release_and_then_lost(
    me: Any, client: redis.Redis
) -> None:
    lock = Lock(NAME, ttl=3)
    me(lock, "acquire")
    with named(client, f"lock:{NAME}"):
        me(lock, "release")
    until(lambda: me.read(lambda: lock.lost))
    client.delete(LOCK)
    use(me)


@pytest.mark.parametrize("word", ["members", "fresh", "free", "busy", "wanted", "queue", "held", "took", "waiters"])
def test_a_key_of_a_pool_that_is_of_another_type_is_named(word: str, client: redis.Redis) -> None:
    pool = LockPool("accounts")
    pool.assign(["alice", "bob"])
    held = [pool.acquire(blocking_timeout=0) for _ in range(2)]
    member = Lock(f"{POOL}alice", blocking_timeout=0.05)
    with named(client, f"{word}:{POOL}"):
        for ask in (lambda: pool.acquire(blocking_timeout=0.05), member.__enter__):
            with pytest.raises(LockNotAcquired):
                ask()
        for each in held:
            each.release()
        pool.acquire(blocking_timeout=0).release()
        pool.info()


@pytest.mark.parametrize("call", [lambda: Counter("hits").incr(), lambda: ConditionalValue("high").setgt(1)])
def test_a_sequence_of_another_type_is_named_and_not_used_again(call: Callable[[], Any], client: redis.Redis) -> None:
    Counter("other").incr()
    sequences: Any = client.keys(f"{PREFIX}sequence:*")
    for sequence in sequences:
        put(client, sequence.decode())
    with pytest.raises(LockUnavailable, match=r"the key 'redislock\{0\}:sequence:.*', which is a"):
        call()
    assert call()


@pytest.mark.parametrize("text", ["foreign", "", "nan", "inf", "1e400", "9" * 18, str(2**63 - 1), "\0"])
def test_an_invalid_last_fence_is_named_and_left_alone_and_nothing_is_locked(text: str, using: str) -> None:
    command("SET", FENCE, text, using=using)
    for _ in range(2):
        with pytest.raises(
            LockUnavailable, match=r"the key 'redislock\{0\}:fence', which does not hold a fence\. Delete it"
        ):
            Lock(NAME, using=using).acquire()
    assert command("GET", FENCE, using=using) == text.encode()
    assert not command("EXISTS", LOCK, using=using)
    command("DEL", FENCE, using=using)
    assert Lock(NAME, using=using).acquire(blocking_timeout=0)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("last", [2**53 - 2, 2**53 - 3, 9 * 10**15 - 2, 8 * 10**15])
def test_deleting_an_absurd_fence_heals_and_no_fence_is_granted_twice(last: int, me: Any, client: redis.Redis) -> None:
    drawn, lock = list[int](), Lock(NAME)

    def draw(times: int) -> None:
        for _ in range(times):
            me(lock, "acquire")
            drawn.append(me.read(lambda: lock.fence))
            me(lock, "release")

    client.set(FENCE, last)
    with suppress(LockUnavailable):
        draw(3)
    client.delete(FENCE)
    draw(3)
    assert drawn[-1] < 8 * 10**15  # what was absurd is not written back
    client.flushall()
    draw(1)
    assert len({*drawn}) == len(drawn)
    assert drawn[-4:] == sorted(drawn[-4:])


def test_an_incompatible_version_is_named_and_nobody_acquires_or_waits(crowd: Crowd, client: redis.Redis) -> None:
    holder, first, mark = crowd(), Lock(NAME), "protocol 2 1795402524825498"
    holder(first, "acquire")
    client.set(FENCE, mark)
    for name, poll in (NAME, False), (NAME, True), ("free", False):
        with pytest.raises(
            LockUnavailable, match=r"marked 'redislock\{0\}:fence' for protocol 2, and .* protocol 1: up"
        ):
            crowd()(Lock(name, blocking_timeout=30, poll=poll), "acquire")
    assert client.get(FENCE) == mark.encode()
    assert not client.exists(QUEUE, WAITERS)
    holder(first, "release")
    assert not client.exists(LOCK)


FORGED = ["", "foreign", "channel c 1 1 -", "channel c nan 1 - x", "channel d 1 1", f"channel d {'9' * 400} 1 - owner"]


@pytest.mark.parametrize("rest", FORGED, ids=lambda rest: rest[:30])
@pytest.mark.parametrize("token", [TOKEN, "x" * 22], ids=["our token", "another"])
def test_a_lock_with_a_foreign_value_is_held_and_not_by_us(rest: str, token: str, client: redis.Redis) -> None:
    client.set(LOCK, f"{token} {rest}", px=60_000)
    assert not Lock(NAME, token=TOKEN).acquire(blocking=False)
    for poll in (False, True):
        assert not Lock(NAME, token=TOKEN, poll=poll).acquire(blocking_timeout=0.05)
    django_redislock.force_release(NAME)
    assert Lock(NAME).acquire(blocking_timeout=GENEROUS)


NO_ENTRIES = [
    "",
    "redislock:channel 30000 0 - owner",
    f"{{channel}} {'9' * 400} 0 - owner",
    "{channel} 30000 x - owner",
    "{channel} 30000 0",
    f"- 30000 {'9' * 17} - owner",
]


@pytest.mark.parametrize("entry", NO_ENTRIES, ids=lambda entry: entry[:40])
def test_an_invalid_entry_is_dropped_from_the_queue(entry: str, crowd: Crowd, queue: Any, client: redis.Redis) -> None:
    def forge(score: float) -> None:
        client.zadd(QUEUE, {"forged": score})
        client.hset(WAITERS, "forged", entry.format(channel=own_channel()))

    me, lock = crowd(), Lock(NAME, ttl=600)
    for score in 1, -math.inf, math.inf, 1e300:
        forge(score)
        assert me(lock, "acquire", blocking_timeout=5)
        assert client.zscore(QUEUE, "forged") is None
        me(lock, "release")
    me(lock, "acquire")
    waiting = queue(Lock(NAME), crowd(), blocking_timeout=GENEROUS)
    forge(1)
    me(lock, "release")
    assert waiting.result(GENEROUS)
    assert not client.exists(QUEUE)


STRANGE = b"no-such-id-01234567890123"
MESSAGES = [
    *(b"", b"g ", b"\xff\xfe", b"p p p", b"x short order:42", b"\xd0" * 1_000_000),
    # the lease of the last one is long over
    *(b"g {id} " + rest + b" order:42" for rest in (b"1 2", b"x y z", b"1 1 " + b"9" * 5000, b"1 1 1")),
    *(b"g {id} 1 1 1 \xff", b"w {id}", b"w {id} order:42", b"w {held} order:42"),
    *(b"w " + STRANGE + name for name in (b" \xff", b" a\nb", b" pool:x:")),
    *(kind + b" " + STRANGE + b" order:42" for kind in (b"f", b"a", b"r", b"d")),
]


def test_foreign_messages_end_neither_a_waiter_nor_the_listener(
    crowd: Crowd, queue: Any, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=600)
    me(lock, "acquire")
    waiting = queue(Lock(NAME), crowd(), blocking_timeout=GENEROUS)
    subscribed = subscriptions()
    for message in MESSAGES:
        before, (id,) = heard(), list[Any](client.zrange(QUEUE, 0, -1))
        message = message.replace(b"{id}", id).replace(b"{held}", holder(client).encode())
        assert client.publish(own_channel(), message) == 1
        until(lambda before=before: heard() > before)
        assert not waiting.done()
    me(lock, "release")
    assert waiting.result(GENEROUS)
    assert subscriptions() == subscribed
    assert caplog.messages == []


def take_one(me: Any, pool: LockPool) -> str:
    try:
        member = me(pool, "acquire", blocking_timeout=GENEROUS)
    except LockError as error:
        return str(error)
    me(member, "release")
    return str(member.key)


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"a:b", b"x\ny", b"%41", b"x" * 600, b""], ids=lambda raw: repr(raw[:20]))
@pytest.mark.parametrize("where", ["fresh", "free"])
def test_an_invalid_member_is_named_and_the_others_can_be_used(
    where: str, raw: bytes, me: Any, client: redis.Redis
) -> None:
    pool = LockPool("accounts")
    me(pool, "assign", ["alice"])
    client.zadd(f"{PREFIX}members:{POOL}", {raw: 0})
    client.zadd(f"{PREFIX}{where}:{POOL}", {raw: -1})
    for method in ("keys", "items_locked_status", "info"):
        with pytest.raises(LockError, match=r"is not a member of a pool.*Remove it") as caught:
            me(pool, method)
        assert len(str(caught.value)) < 400
        assert caught.value.name == "accounts"
    taken = [take_one(me, pool) for _ in range(6)]
    assert "alice" in taken
    assert all(found == "alice" or "is not a member of a pool" in found for found in taken)
    # what was got for nobody is given back in the background
    until(lambda: not client.exists(f"{PREFIX}held:{POOL}"))
    me(pool, "assign", ["alice"])
    assert me(pool, "keys") == ["alice"]
    assert take_one(me, pool) == take_one(me, pool) == "alice"
