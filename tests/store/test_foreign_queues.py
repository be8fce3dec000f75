"""What others have written into queues and pools, or sent to our channels: no crash, and nobody waits for ever."""

from __future__ import annotations

import math
from typing import Any

import pytest
import redis
from django.core.management import call_command

from django_redislock import Lock, LockError, LockPool, get_lock
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import NAME, QUEUE, WAITERS
from tests.inside import PREFIX, messages_heard, own_channel, subscriptions

from .conftest import Eventually

POOL = "pool:accounts:"

# -- forged queues --------------------------------------------------------------------------------------------------

NO_ENTRIES = [
    "foreign",
    "",
    "-",
    "redislock:channel 30000 0 - owner",
    "{channel} 0 0 - owner",
    "{channel} 9999999999999 0 - owner",
    f"{{channel}} {'9' * 400} 0 - owner",
    "{channel} 30000 x - owner",
    "{channel} 30000 0",
    f"- 30000 {'9' * 17} - owner",
    f"- 30000 {'9' * 400} - owner",
]
EVERY_ENTRY = pytest.mark.parametrize("entry", NO_ENTRIES, ids=lambda entry: entry[:40])


@EVERY_ENTRY
@pytest.mark.parametrize("score", [1, -math.inf, math.inf, 1e300])
def test_an_invalid_entry_is_dropped_from_the_queue(entry: str, score: float, client: redis.Redis) -> None:
    client.zadd(QUEUE, {"forged": score})
    client.hset(WAITERS, "forged", entry.format(channel=own_channel()))
    assert Lock(NAME).acquire(blocking_timeout=5)
    assert client.zscore(QUEUE, "forged") is None


@EVERY_ENTRY
def test_a_release_skips_invalid_entries_of_the_queue(
    entry: str, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=600)
    me(lock, "acquire")
    waiting = crowd().start(Lock(NAME), "acquire", blocking_timeout=GENEROUS)
    eventually(lambda: client.zcard(QUEUE) == 1)
    client.zadd(QUEUE, {"forged": 1})
    client.hset(WAITERS, "forged", entry.format(channel=own_channel()))
    me(lock, "release")
    assert waiting.result(GENEROUS)
    assert not client.exists(QUEUE)


@pytest.mark.parametrize("score", [-math.inf, math.inf, -1e300])
def test_an_impossible_place_in_the_queue_is_still_shown(score: float, client: redis.Redis) -> None:
    with Lock(NAME):
        client.zadd(QUEUE, {"forged": score})
        client.hset(WAITERS, "forged", b"\xff 1 1 - " + b"\xff" * 100_000)
        info = get_lock(NAME)
        assert info is not None
        (waiter,) = info.queue
        assert math.isfinite(waiter.waited)
        assert len(waiter.owner) <= 2000
        call_command("redislocks", "show", NAME, "--format", "json")
        call_command("redislocks", "show", NAME)


# -- forged messages ------------------------------------------------------------------------------------------------

STRANGE = b"no-such-id-01234567890123"
MESSAGES = [
    b"",
    b"g",
    b"g ",
    b"\xff\xfe",
    b"\x00" * 100,
    b"p p p",
    b"g {id} 1 2 order:42",
    b"g {id} x y z order:42",
    b"g {id} 1 1 " + b"9" * 5000 + b" order:42",
    b"g {id} " + b"9" * 5000 + b" 1 1 order:42",
    b"g {id} 1 1 1 \xff",
    b"g {id} 1 1 1 order:42",  # its lease is long over
    b"w",
    b"w {id}",
    b"w {id} order:42",
    b"w " + STRANGE + b" \xff",
    b"w " + STRANGE + b" " + b"x" * 5000,
    b"w " + STRANGE + b" a\nb",
    b"w " + STRANGE + b" pool:x:",
    *(kind + b" " + STRANGE + b" order:42" for kind in (b"f", b"a", b"r")),
    b"d " + STRANGE + b" order:42",
    b"x short order:42",
    b"\xd0" * 1_000_000,
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: repr(message[:32]))
def test_a_foreign_message_ends_neither_a_waiter_nor_the_listener(
    message: bytes, crowd: Crowd, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=600)
    me(lock, "acquire")
    waiting = crowd().start(Lock(NAME), "acquire", blocking_timeout=GENEROUS)
    eventually(lambda: client.zcard(QUEUE) == 1)
    subscribed, heard = subscriptions(), messages_heard()
    queued: Any = client.zrange(QUEUE, 0, -1)
    (id,) = queued
    assert client.publish(own_channel(), message.replace(b"{id}", id)) == 1
    eventually(lambda: messages_heard() > heard)
    assert not waiting.done()
    me(lock, "release")
    assert waiting.result(GENEROUS)
    assert subscriptions() == subscribed
    assert caplog.messages == []


# -- pools ----------------------------------------------------------------------------------------------------------

NO_MEMBERS = [
    *(b"\xff\xfe", b"a:b", b"x\ny", b"\0", b"%zz", b"%41", b"x" * 600, b"{a}"),
    b"",
]
EVERY_MEMBER = pytest.mark.parametrize("raw", NO_MEMBERS, ids=lambda raw: repr(raw[:20]))


def take_one(me: Any, pool: LockPool) -> str:
    try:
        member = me(pool, "acquire", blocking_timeout=GENEROUS)
    except LockError as error:
        return str(error)
    me(member, "release")
    return str(member.key)


@EVERY_MEMBER
@pytest.mark.parametrize("where", ["fresh", "free"])
def test_an_invalid_member_is_named_and_the_others_can_be_used(
    where: str, raw: bytes, me: Any, client: redis.Redis, eventually: Eventually
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
    eventually(lambda: not client.exists(f"{PREFIX}held:{POOL}"))
    me(pool, "assign", ["alice"])
    assert me(pool, "keys") == ["alice"]
    assert take_one(me, pool) == take_one(me, pool) == "alice"
