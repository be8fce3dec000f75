"""Messages: how a process subscribes, who reads, and what waiters and holders see when that is disturbed."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import redis

from django_redislock import Lock, force_release
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Other, server_time
from tests.helpers.interrupts import Interrupt
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME, QUEUE, put, queued
from tests.helpers.ways import kill
from tests.inside import hears, limit, listen, own_channel, reads, subscriptions

Eventually = Callable[..., Any]


def subscribers(client: redis.Redis, channel: str) -> int:
    """How many connections are subscribed to a channel."""
    return int(client.pubsub_numsub(channel)[0][1])


class Moody(redis.Connection):
    """A connection class of the site's own; it raises while it is in this mood."""

    mood: Exception | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        if self.mood is not None:
            raise self.mood


@pytest.fixture
def moody(settings: Any, own_pools: None) -> Iterator[type[Moody]]:
    """The alias ``moody`` has connections of the site's own class."""
    moody = {**settings.CACHES["default"], "OPTIONS": {"CONNECTION_POOL_KWARGS": {"connection_class": Moody}}}
    settings.CACHES = {**settings.CACHES, "moody": moody}
    yield Moody
    Moody.mood = None


# -- subscribing -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh")
def test_threads_that_wait_at_once_share_one_subscription_which_ends_with_the_settings(
    client: redis.Redis, settings: Any, eventually: Eventually
) -> None:
    put(client, "held", ttl=600)
    threads = [threading.Thread(target=Lock("held", ttl=600).acquire) for _ in range(3)]
    with inside.first_listener_held_up() as waits:
        for thread in threads:
            thread.start()
        eventually(lambda: all(waits(thread) for thread in threads))
    eventually(lambda: queued(client, "held") == 3)
    channel = own_channel()
    assert subscribers(client, channel) == 1
    eventually(lambda: [force_release("held")] and not any(thread.is_alive() for thread in threads))
    settings.CACHES = {**settings.CACHES}
    eventually(lambda: not subscribers(client, channel))


def test_a_renewal_for_which_no_connection_can_be_made_is_tried_again(
    moody: type[Moody], eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    with Lock("patient", using="moody", ttl=600):
        eventually(lambda: hears("moody") and inside.all_seen())  # the renewer has a connection now, for patient ones
        with Lock(NAME, using="moody", ttl=20) as lock:
            moody.mood = TypeError("unexpected keyword")
            end = inside.ends(lock)
            inside.renew_all("moody")
            eventually(lambda: re.search('event=renewal-failed .*error="unexpected keyword"', caplog.text))
            moody.mood = None
            eventually(lambda: inside.ends(lock) > end)


def test_a_connection_that_is_cut_while_no_thread_can_be_started_is_made_again(
    far: Proxy, eventually: Eventually, no_threads: Callable[[bool], object]
) -> None:
    """Whoever holds a lock for long asks for it once only."""
    listen("far")
    eventually(lambda: hears("far") and reads("far"))
    before = subscriptions("far")
    no_threads(True)
    far.cut()
    eventually(lambda: not hears("far") and far.refused)  # it goes on in place of another
    no_threads(False)
    far.mend()
    eventually(lambda: hears("far") and subscriptions("far") > before)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ["redislock-subscriber", "redislock-watchdog"])
def test_the_start_of_a_thread_that_is_interrupted_leaves_one_thread_in_the_end(
    name: str, late: bool, far: Proxy, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``late``: it runs by then. Otherwise it does so when another one has been started already."""
    before, struck, gate = threading.enumerate(), list[threading.Thread](), threading.Event()
    start = threading.Thread.start
    probed = far.hold_answer("SHARDNUMSUB")

    def interrupted(thread: threading.Thread) -> None:
        if thread.name != name or struck:
            start(thread)
            return
        struck.append(thread)
        start(thread if late else threading.Thread(target=lambda: gate.wait(GENEROUS) and start(thread)))
        raise Interrupt

    def use() -> None:
        if name == "redislock-subscriber":
            listen("far")
        else:
            Lock(NAME, ttl=600).acquire(blocking=False)

    def others() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == name and thread not in before]

    inside.become_another_process(monkeypatch)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(Interrupt):
        use()
    use()
    gate.set()
    eventually(lambda: struck[0].ident)
    eventually(lambda: len(others()) == 1)
    probed.let_go()


def test_an_answer_is_kept_if_no_thread_can_be_started_to_follow_it(
    unused: str, eventually: Eventually, no_threads: Callable[[bool], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: another node has answered than the one subscribed to."""
    assert not Lock(NAME, using=unused).locked()
    listen(unused)
    eventually(lambda: hears(unused) and reads(unused))
    inside.subscribe_elsewhere(monkeypatch, unused)
    no_threads(True)
    assert not Lock(NAME, using=unused).locked()


def test_messages_that_come_while_others_subscribe_are_no_confirmations() -> None:
    assert inside.confirmed_amid_messages()


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def held() -> Lock:
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    return lock


@pytest.fixture
def waiting(held: Lock, crowd: Crowd, client: redis.Redis, eventually: Eventually) -> Future[bool]:
    """One that waits for the lock NAME; a thread reads."""
    waiting = crowd().start(Lock(NAME), "acquire", blocking_timeout=10 * GENEROUS)
    eventually(lambda: queued(client) and hears() and reads())
    return waiting  # type: ignore[no-any-return]


def test_a_force_release_is_received_while_others_read(waiting: Future[bool], eventually: Eventually) -> None:
    forced = Lock("forced", ttl=600)
    forced.acquire()
    assert force_release("forced")
    eventually(lambda: forced.lost)
    assert not waiting.done()
    assert force_release(NAME)
    assert waiting.result(GENEROUS) is True


@pytest.mark.usefixtures("no_look_by_the_clock")
@pytest.mark.parametrize("tasks", [0, 1, 4])
def test_each_of_several_that_read_for_one_another_hears_its_own_wake(
    tasks: int, both: tuple[Crowd, Crowd], client: redis.Redis, eventually: Eventually
) -> None:
    """Each waits for a lock of its own, so nobody else would wake it. The one that reads is the first to go."""
    locks = [Lock(f"seat:{number}", ttl=600) for number in range(4)]
    waiting: list[Future[bool]] = []
    for number, lock in enumerate(locks):
        lock.acquire()
        waiting.append(both[number < tasks]().start(Lock(lock.name), "acquire", blocking_timeout=10 * GENEROUS))
        eventually(lambda lock=lock: queued(client, lock.name))
    eventually(lambda: hears() and reads())
    for number in (0, 3, 1, 2):
        locks[number].release()
        assert waiting[number].result(GENEROUS)
        assert [future.done() for future in waiting] == [lock.token is None for lock in locks]


@pytest.fixture
def both() -> Any:
    made = Crowd(tasks=False), Crowd(tasks=True)
    yield made
    for crowd in made:
        crowd.close()


@pytest.mark.parametrize("how", ["killed", "cut", "the settings change"])
def test_a_connection_that_is_cut_under_its_reader_is_no_error_of_anybody(
    how: str, held: Lock, waiting: Future[bool], client: redis.Redis, settings: Any, eventually: Eventually
) -> None:
    before = subscriptions()
    if how == "killed":
        kill(client)
    elif how == "cut":
        inside.reconnect()
    else:
        settings.CACHES = {**settings.CACHES}
    if how != "the settings change":
        eventually(lambda: hears() and subscriptions() > before)
    assert not waiting.done()
    held.release()
    assert waiting.result(GENEROUS) is True


@pytest.mark.parametrize("trouble", inside.TROUBLES)
def test_trouble_in_the_moment_of_reading_is_no_error_of_whoever_reads(
    trouble: str,
    held: Lock,
    waiting: Future[bool],
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit(monkeypatch, reading_again_within=1000.0)  # so that a waiting thread reads what comes next
    before, met = subscriptions(), None
    for _ in range(2):
        messages = inside.heard()
        client.publish(own_channel(), "something else")
        eventually(lambda messages=messages: inside.heard() > messages)
        met = met or inside.trouble_reading(monkeypatch, trouble)
    assert met is not None
    eventually(lambda: met.is_set() and hears() and subscriptions() > before)
    assert not waiting.done()
    held.release()
    assert waiting.result(GENEROUS) is True


@pytest.mark.usefixtures("listening", "no_look_by_the_clock")
def test_who_wants_to_read_when_the_reader_stops_reads(
    other: Callable[[], Other], client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, reading_again_within=1000.0)
    inside.lose_turns(monkeypatch)
    for number in range(6):
        lock = Lock(f"seat:{number}", ttl=600)
        lock.acquire()
        waiting = other().start(Lock(lock.name).acquire)
        eventually(lambda lock=lock: queued(client, lock.name))
        lock.release()
        assert waiting.result(GENEROUS)


# -- grants that cannot be believed ------------------------------------------------------------------------------------

ONE, ANOTHER = "@" + "a" * 40, "@" + "b" * 40


@pytest.mark.usefixtures("no_look_by_the_clock")
@pytest.mark.parametrize(
    ("known", "lease", "by"),
    [
        ({"clock": False}, 1, ""),
        ({"node": ONE}, 30_000, ANOTHER),  # C3: a master of before is heard through the new one
        ({"node": ONE}, 30_000, ""),
        ({"node": "@?"}, 30_000, "@?"),
        ({"node": ONE, "doubted": True}, 30_000, ONE),  # C7: nobody has confirmed yet that it is still a master
    ],
)
def test_a_grant_of_which_it_is_not_known_whether_it_holds_is_a_reason_to_look(
    known: dict[str, Any],
    lease: int,
    by: str,
    held: Lock,
    waiting: Future[bool],
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    id, before = client.zrange(QUEUE, 0, 0)[0].decode(), inside.heard()  # type: ignore[union-attr]
    inside.mistrust(monkeypatch, **known)
    client.publish(own_channel(), f"g {id} 7 {server_time(client)} {lease}{by} {NAME}")
    eventually(lambda: inside.heard() > before and not inside.looks_due())
    assert not waiting.done()
    monkeypatch.undo()
    held.release()
    assert waiting.result(GENEROUS)
