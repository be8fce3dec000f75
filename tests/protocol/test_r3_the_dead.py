"""R3: a process without a subscription is gone; a waiter that cannot be told is not dropped, and comes by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock
from redisserver import RedisServer, redis_server
from tests import inside
from tests.helpers.actors import GENEROUS, Ghost
from tests.helpers.state import LOCK, NAME, WAITERS, holder, value
from tests.inside import Ears, change_probe
from tests.protocol.scene import LONG, WAITS, Ear, Eventually, Line, Start, channel_of, listed, receivers

HOLDER, WAITER = "holder-holder-holder-1", "waiter-waiter-waiter-1"


def test_a_killed_waiter_is_dropped_by_the_release_that_finds_it(
    start: Start, line: Line, client: redis.Redis, eventually: Eventually
) -> None:
    """The next live waiter has the lock when release() returns."""
    worker = start(WAITS, name=NAME, ttl=30.0, look_every=LONG)
    worker.expect("ready")
    lock = Lock(NAME)
    lock.acquire()
    worker.tell()
    ((dead, _),) = eventually(lambda: listed(client))
    waiting = line.join(Lock(NAME))
    _, (alive, _) = listed(client)
    channel = channel_of(client, dead)
    worker.kill()
    eventually(lambda: receivers(client, channel) == 0)
    lock.release()
    assert holder(client) == alive
    assert waiting.result()


def test_a_handoff_that_finds_no_subscriber_is_published_nowhere(
    client: redis.Redis, server: RedisServer, ghost: Callable[..., Ghost], eventually: Eventually
) -> None:
    """The scripts ask before they grant: a message counts the subscribers of one node, and replicas pass it on.

    A process that still listens at a demoted master would believe a grant that was taken back: two holders.
    """
    dead = ghost(alive=False)
    with redis_server() as second, second.client() as replica, replica.pubsub() as elsewhere:
        client.config_set("repl-diskless-sync-delay", 0)
        replica.replicaof("127.0.0.1", str(server.port))
        eventually(lambda: replica.info("replication")["master_link_status"] == "up")
        elsewhere.subscribe(dead.channel)
        assert (elsewhere.get_message(timeout=GENEROUS) or {})["type"] == "subscribe"
        lock = Lock(NAME)
        lock.acquire()
        dead.queue(WAITER, name=NAME)
        lock.release()
        assert not client.exists(LOCK)
        client.publish(dead.channel, "end")
        assert (elsewhere.get_message(timeout=GENEROUS) or {})["data"] == b"end"


@pytest.mark.usefixtures("fresh")
def test_somebody_who_watches_all_channels_does_not_make_a_process_poll(
    line: Line, ear: Ear, client: redis.Redis
) -> None:
    """PUBLISH counts them too, such as a PSUBSCRIBE on somebody's console."""
    lock = Lock(NAME, ttl=LONG)
    lock.acquire()
    waiting = line.join(Lock(NAME, blocking_timeout=GENEROUS))
    ((id, _),) = listed(client)
    assert channel_of(client, id) != "-"
    lock.release()
    assert waiting.result()
    assert [kind for kind, *_ in ear.heard()] == ["g"]


# -- who polls --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["no right to channels", "the probe is not counted"])
def polled(request: pytest.FixtureRequest, server: RedisServer, add_alias: Callable[..., str]) -> Iterator[str]:
    """An alias for which messages do not reliably reach waiters."""
    if request.param == "no right to channels":
        request.getfixturevalue("allow_only")("resetchannels")
        yield "other"
        return
    with pytest.MonkeyPatch.context() as patch:
        change_probe(patch, lambda text: text.replace("listeners(ARGV[1])", "0"))
        yield add_alias(server.url)


def test_waiters_that_get_no_messages_poll_and_keep_their_order(polled: str, line: Line, client: redis.Redis) -> None:
    lock = Lock(NAME, using=polled)
    lock.acquire()
    fences = [line.visit(Lock(NAME, using=polled)) for _ in range(4)]
    assert [channel_of(client, id) for id, _ in listed(client)] == ["-"] * 4
    lock.release()
    found = [fence.result(GENEROUS) for fence in fences]
    assert found == sorted(found)


def test_a_lock_left_free_for_a_polling_waiter_is_not_given_to_a_newcomer(
    polled: str, line: Line, client: redis.Redis
) -> None:
    """It is never dropped for a 0 and never handed a grant; the lock waits for it."""
    lock = Lock(NAME, using=polled)
    lock.acquire()
    waiting = line.join(Lock(NAME, using=polled))
    ((id, ticket),) = listed(client)
    lock.release()
    assert not Lock(NAME, using=polled).acquire(blocking=False)
    assert listed(client) in ([(id, ticket)], [])  # in its place, or in already
    words = value(client)  # read at once: the waiter may come in at any moment
    assert not words or (words[0], words[2]) == (id, "c")
    assert waiting.result()
    assert waiting.id == id


def test_a_polling_waiter_keeps_its_place_behind_a_long_holder(
    polled: str, line: Line, client: redis.Redis, eventually: Eventually
) -> None:
    """It counts as gone if it has not looked for four of its delays, so it must look."""
    lock = Lock(NAME, using=polled)
    lock.acquire()
    waiting = line.join(Lock(NAME, using=polled))
    ((id, _),) = listed(client)

    def alive_until() -> int:
        entry: Any = client.hget(WAITERS, id)
        return int(entry.split(b" ")[2])

    first = alive_until()
    eventually(lambda: alive_until() > first + 1_000_000)
    lock.release()
    assert not Lock(NAME, using=polled).acquire(blocking=False)
    assert waiting.result()


def test_a_polling_waiter_gives_up_in_time_and_leaves_the_queue(polled: str, line: Line, client: redis.Redis) -> None:
    Lock(NAME, using=polled).acquire()
    waiting = line.join(Lock(NAME, using=polled, blocking_timeout=1))
    assert not waiting.result()
    assert listed(client) == []


@pytest.mark.complete
@pytest.mark.usefixtures("nobody_looks")
def test_a_killed_polling_waiter_is_dropped_when_it_misses_its_looks(
    allow_only: Callable[..., str], start: Start, line: Line, client: redis.Redis, eventually: Eventually
) -> None:
    """A script that leaves the lock to it tells the first waiter behind it to watch."""
    choose = 'from django.conf import settings\nsettings.CACHES["default"]["LOCATION"] = url\n'
    worker = start(choose + WAITS, name=NAME, ttl=30.0, look_every=LONG, url=allow_only("resetchannels"))
    worker.expect("ready")
    lock = Lock(NAME, ttl=LONG)
    lock.acquire()
    worker.tell()
    ((dead, _),) = eventually(lambda: listed(client))
    waiting = line.join(Lock(NAME))
    assert channel_of(client, dead) == "-"
    worker.kill()
    lock.release()
    assert waiting.result()


def test_a_listener_that_is_refused_for_a_moment_soon_gets_messages_again(
    allow_only: Callable[..., str], client: redis.Redis, listening: Callable[..., Ears], eventually: Eventually
) -> None:
    """A process that may not subscribe polls; only one that will never get the right does so for half a minute."""
    allow_only("resetchannels")
    ears = listening("other")
    assert ears.polled
    client.execute_command("ACL", "SETUSER", "limited", "allchannels")
    allowed = monotonic()
    eventually(lambda: ears.ready and not ears.polled)
    assert monotonic() - allowed < inside.RESUBSCRIBE_EVERY / 2


@pytest.mark.complete
def test_a_waiter_that_polls_by_choice_is_not_dropped_by_waiters_with_messages(
    ghost: Callable[..., Ghost], line: Line
) -> None:
    """The lock is left to it for as long as it has said, also by waiters with messages."""
    lock, one = Lock(NAME), ghost(alive=False)
    lock.acquire()
    request = one.request(WAITER, name=NAME)
    began = monotonic()
    assert one.acquire(request, inside.polled(2.0)).state == inside.BUSY
    waiting = line.join(Lock(NAME))
    lock.release()
    assert waiting.result()
    assert monotonic() - began > 1.9
