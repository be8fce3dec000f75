"""The listener: when its thread starts, how many of it there are, and what it does with messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from django_redislock.engine.background.notifier import Notifier
from django_redislock.engine.messages.listener import Listener
from django_redislock.engine.messages.receiver import Receiver
from django_redislock.engine.messages.subscriber import Subscriber
from django_redislock.engine.runtime import runtime
from django_redislock.store import stores
from django_redislock.store.aliases import Origin
from django_redislock.store.lock_store import LockStore, Partition
from django_redislock.store.node import Node
from django_redislock.store.stores import make_store
from tests.helpers.actors import GENEROUS, server_time, stands_at
from tests.helpers.interrupts import Interrupt
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME
from tests.inside import change_probe, listener, listens

from .conftest import InterruptedStart

Eventually = Callable[..., Any]


# -- one for each partition --------------------------------------------------------------------------------------------


def together(ask: Callable[[], Any], mutex: Any, eventually: Eventually) -> list[Any]:
    """The results of several threads that all call this before any of them has a result."""
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(ask()), daemon=True) for _ in range(3)]
    with mutex:
        for thread in threads:
            thread.start()
        eventually(lambda: all(stands_at(thread, ask.__name__, "mutex:") for thread in threads))
    for thread in threads:
        thread.join(GENEROUS)
    return got


@pytest.fixture
def partition() -> Iterator[Partition]:
    """A partition that nothing has used before."""
    store = make_store("default", "listened")
    yield store.partition(0)
    store.close()


@pytest.fixture
def ears(partition: Partition) -> Listener:
    return runtime().listener(partition)


def test_threads_that_need_a_listener_together_share_one(partition: Partition, eventually: Eventually) -> None:
    def listener() -> Listener:
        return runtime().listener(partition)

    first, second, third = together(listener, runtime()._mutex, eventually)
    assert first is second is third is runtime().listener(partition)


def test_leaving_a_parent_that_never_listened_does_nothing(ears: Listener, eventually: Eventually) -> None:
    runtime()._subscriber(ears.partition.store).leave_parent()
    ears.start()
    eventually(lambda: ears.ready)


@pytest.mark.usefixtures("fresh")
def test_threads_that_need_a_store_together_share_one(eventually: Eventually) -> None:
    def get_store() -> LockStore:
        return stores.get_store()

    first, second, third = together(get_store, stores._stores.get().mutex, eventually)
    assert first is second is third is stores.get_store()


def test_a_partition_has_one_listener_and_other_settings_have_another(ears: Listener) -> None:
    assert runtime().listener(ears.partition) is ears
    assert listener() is not ears
    another = make_store("default", "listened")
    assert runtime().listener(another.partition(0)) is not ears
    another.close()


# -- its thread --------------------------------------------------------------------------------------------------------


def test_a_listener_that_was_closed_does_not_start_any_more(ears: Listener) -> None:
    ears.partition.store.close()
    ears.start()
    assert not listens(ears)
    assert not ears.ready


def test_a_listener_of_settings_that_have_changed_does_not_start(partition: Partition) -> None:
    """A lease of before may still ask for it, and nobody would close it any more."""
    partition.store.close()
    ears = runtime().listener(partition)
    ears.start()
    assert not listens(ears)


def test_a_listener_that_is_started_twice_has_one_thread_which_ends_with_the_settings(
    ears: Listener, eventually: Eventually
) -> None:
    def begun() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "redislock-listener"]

    before = begun()
    ears.start()
    ears.start()
    eventually(lambda: ears.ready and ears.receiver)
    ears.start()
    eventually(lambda: runtime()._subscriber(ears.partition.store)._thread is None)
    (thread,) = [thread for thread in begun() if thread not in before]
    assert ears.generation == 1
    ears.partition.store.close()
    thread.join(GENEROUS)
    assert not thread.is_alive()


def fails_once(
    real: Callable[..., Any], concerned: Callable[[Any], bool]
) -> tuple[Callable[..., Any], list[Exception]]:
    """``real``, but raising the first time; and the list of errors that it has yet to raise."""
    troubles: list[Exception] = [ZeroDivisionError("of the site's own class")]

    def clumsy(first: Any, *args: Any) -> Any:
        if troubles and concerned(first):
            raise troubles.pop()
        return real(first, *args)

    return clumsy, troubles


@pytest.mark.parametrize("where", ["asking for the node", "connecting", "subscribed"])
def test_whatever_goes_wrong_the_listener_goes_on(
    where: str,
    ears: Listener,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if where == "asking for the node":
        clumsy, troubles = fails_once(ears.partition.store.node_of, lambda tag: True)
        monkeypatch.setattr(ears.partition.store, "node_of", clumsy)
    elif where == "connecting":
        clumsy, troubles = fails_once(Origin.listening, lambda origin: origin is ears.partition.node.origin)
        monkeypatch.setattr(Origin, "listening", clumsy)
    else:
        clumsy, troubles = fails_once(ears._on_subscribed, lambda partition: True)
        monkeypatch.setattr(ears, "_on_subscribed", clumsy)
    ears.start()
    eventually(lambda: not troubles and ears.ready)
    eventually(lambda: "event=listener-disconnected" in caplog.text)


def test_where_the_probe_is_refused_waiters_poll(
    ears: Listener,
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change_probe(monkeypatch, lambda text: "no script")
    ears.start()
    eventually(lambda: ears.polled)
    assert ears.ready
    eventually(lambda: "event=not-subscribed" in caplog.text)
    eventually(lambda: client.pubsub_numsub(ears.partition.channel)[0][1] == 0)  # it keeps no connection for nothing


def test_where_the_connection_is_refused_waiters_poll(
    ears: Listener, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While a script keeps Redis busy, say, and the connection has to select a database."""
    listening = Origin.listening

    def busy() -> None:
        raise redis.ResponseError("BUSY Redis is busy running a script.")

    def refused(origin: Origin, within: float) -> redis.Connection:
        connection = listening(origin, within)
        setattr(connection, "connect", busy)  # noqa: B010
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(Origin, "listening", refused)
        ears.start()
        eventually(lambda: ears.polled)
        assert ears.ready
        eventually(lambda: "event=not-subscribed" in caplog.text)
    eventually(lambda: ears.hears)


def test_a_connection_that_was_cut_is_made_again_and_all_waiters_look(
    ears: Listener, client: redis.Redis, eventually: Eventually
) -> None:
    ears.start()
    eventually(lambda: ears.ready)
    waiter = ears.make_waiter("one", NAME, None)
    ears.register(waiter)
    before = ears.generation
    assert not waiter.look
    client.client_kill_filter(_type="pubsub", skipme=True)
    eventually(lambda: ears.ready and ears.generation > before)
    assert waiter.look


def test_a_connection_that_is_cut_while_no_thread_can_be_started_is_made_again(
    ears: Listener, client: redis.Redis, eventually: Eventually, no_threads: Callable[[bool], object]
) -> None:
    """Whoever holds a lock for long asks for it once only."""
    ears.start()
    subscriber = runtime()._subscriber(ears.partition.store)
    eventually(lambda: ears.ready and ears.receiver is not None and subscriber._thread is None)
    before, receiver = ears.generation, ears.receiver
    assert receiver is not None
    no_threads(True)
    client.client_kill_filter(_type="pubsub", skipme=True)
    eventually(lambda: not ears.ready and subscriber._thread is receiver.thread)  # it goes on in place of another
    no_threads(False)
    eventually(lambda: ears.ready and ears.generation > before)


@pytest.mark.parametrize("late", [False, True])
def test_a_start_of_the_subscriber_that_is_interrupted_leaves_one_thread_and_one_connection(
    late: bool,
    far: Proxy,
    client: redis.Redis,
    interrupted_start: Callable[..., InterruptedStart],
    eventually: Eventually,
) -> None:
    before, ears = threading.enumerate(), listener("far")
    probed = far.hold_answer("SHARDNUMSUB")
    strike = interrupted_start("redislock-subscriber", late=late)
    with pytest.raises(Interrupt):
        ears.start()
    ears.start()
    assert not late or strike.others(before) == 1
    assert probed.caught.wait(GENEROUS)
    strike.gate.set()
    eventually(lambda: strike.others(before) == 1)
    probed.let_go()
    eventually(lambda: ears.ready and not strike.others(before))
    assert client.pubsub_numsub(ears.partition.channel)[0][1] == 1


# -- messages ----------------------------------------------------------------------------------------------------------

ID = "i" * 22


class Heard:
    """A listener that runs alone; records what it passes on and reports."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.partition = make_store("default", "heard").partition(0)
        self.strays: list[tuple[str, str, str]] = []
        self.connected: list[Partition] = []
        subscriber = Subscriber(self.partition.store, Notifier(), lambda partition: self.listener)
        told = self._stray, lambda *left: None, self.connected.append
        self.listener = Listener(self.partition, subscriber.want, *told)
        self.listener.start()

    def _stray(self, partition: Partition, kind: str, id: str, name: str) -> None:
        assert partition is self.partition
        self.strays.append((kind, id, name))

    def say(self, message: str | bytes) -> None:
        assert self.client.publish(self.partition.channel, message) == 1

    def grant(self, id: str) -> None:
        """The message that the lock NAME was handed over just now, for half a minute."""
        self.say(f"g {id} 7 {server_time(self.client)} 30000 {NAME}")


@pytest.fixture
def heard_by(client: redis.Redis, eventually: Eventually) -> Iterator[Heard]:
    made = Heard(client)
    eventually(lambda: made.listener.ready)
    yield made
    made.partition.store.close()


def test_every_new_subscription_is_reported(heard_by: Heard, client: redis.Redis, eventually: Eventually) -> None:
    eventually(lambda: heard_by.connected == [heard_by.partition])
    client.client_kill_filter(_type="pubsub", skipme=True)
    eventually(lambda: heard_by.connected == [heard_by.partition] * 2)


def test_a_wake_reaches_its_waiter(heard_by: Heard, eventually: Eventually) -> None:
    one, another = (heard_by.listener.make_waiter(id, NAME, None) for id in (ID, "j" * 22))
    for waiter in (one, another):
        heard_by.listener.register(waiter)
    heard_by.say(f"w {ID} {NAME}")
    eventually(lambda: one.look)
    assert not another.look
    assert not heard_by.strays


@pytest.mark.parametrize("kind", ["w", "f", "a", "r"])
def test_a_grant_for_an_unknown_waiter_is_passed_on(kind: str, heard_by: Heard, eventually: Eventually) -> None:
    heard_by.say(f"{kind} {ID} größe:鍵 mit allem")
    eventually(lambda: heard_by.strays == [(kind, ID, "größe:鍵 mit allem")])


def test_a_message_about_a_lease_reaches_its_holder_even_if_a_waiter_has_the_same_id(
    heard_by: Heard, eventually: Eventually
) -> None:
    waiter = heard_by.listener.make_waiter(ID, NAME, None)
    heard_by.listener.register(waiter)
    heard_by.say(f"f {ID} {NAME}")
    eventually(lambda: heard_by.strays == [("f", ID, NAME)])
    assert not waiter.look


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"p",
        b"hello",
        f"w {ID}",
        f"x {ID} {NAME}",
        f"w short {NAME}",
        f"w {ID} ",
        f"w {ID} a\nb",
        f"w {ID} {'n' * 513}",
        f"g {ID} {NAME}",
        f"g {ID} 1 2 {NAME}",
        f"g {ID} {'9' * 17} 1 1 {NAME}",
        f"w {ID} a".encode() + b"\xff",
    ],
    ids=repr,
)
def test_foreign_messages_are_ignored(message: str | bytes, heard_by: Heard, eventually: Eventually) -> None:
    heard_by.say(message)
    heard_by.say(f"r {ID} {NAME}")  # and it goes on
    eventually(lambda: heard_by.strays)
    assert heard_by.strays == [("r", ID, NAME)]


def test_a_handoff_that_comes_after_its_lease_makes_all_look(heard_by: Heard, eventually: Eventually) -> None:
    """The process stood still: others may have dropped all its waiters."""
    listener = heard_by.listener
    one, of_another_name = (listener.make_waiter(id, name, None) for id, name in ((ID, NAME), ("j" * 22, "another")))
    for waiter in (one, of_another_name):
        listener.register(waiter)
    heard_by.partition.node.anchor = None  # nothing is known of the server's clock: a lease is presumed to be over
    heard_by.grant(ID)
    eventually(lambda: one.grant)
    assert one.look
    one.look = False
    heard_by.grant("k" * 22)  # of one that nobody here waits by any more
    eventually(lambda: heard_by.strays == [("g", "k" * 22, NAME)])
    assert not one.look, "not so soon again"
    another = heard_by.listener.make_waiter("l" * 22, "pool:accounts:", None)
    heard_by.listener.register(another)
    heard_by.say(f"g {'m' * 22} 7 1 1000 pool:accounts:alice")
    eventually(lambda: another.look)
    assert not of_another_name.look


@pytest.mark.parametrize(("node", "by"), [("@" + "a" * 40, "@" + "b" * 40), ("@" + "a" * 40, ""), ("@?", "@?")])
def test_a_handoff_that_another_node_may_have_made_is_a_reason_to_look(
    node: str, by: str, heard_by: Heard, eventually: Eventually
) -> None:
    """C3: a master of before is heard through the new one."""
    waiter = heard_by.listener.make_waiter(ID, NAME, None)
    heard_by.listener.register(waiter)
    heard_by.partition.node.id = node
    heard_by.say(f"g {ID} 7 {server_time(heard_by.client)} 30000{by} {NAME}")
    eventually(lambda: waiter.look)
    assert waiter.grant is None


def test_a_handoff_by_a_node_that_may_have_been_replaced_is_a_reason_to_look(
    heard_by: Heard, eventually: Eventually
) -> None:
    """C7: it has not answered for a while, and nobody has confirmed yet that it is still a master."""
    waiter = heard_by.listener.make_waiter(ID, NAME, None)
    heard_by.listener.register(waiter)
    heard_by.partition.node.id = id = "@" + "a" * 40
    heard_by.partition.node.doubted_at = monotonic()
    heard_by.say(f"g {ID} 7 {server_time(heard_by.client)} 30000{id} {NAME}")
    eventually(lambda: waiter.look)
    assert waiter.grant is None


def test_an_answer_is_kept_if_no_thread_can_be_started_to_follow_it(
    ears: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: another node has answered than the one subscribed to."""
    asked: list[Listener] = []

    def no_more(listener: Listener) -> None:
        asked.append(listener)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ears, "_want", no_more)
    ears.partition.subscribed_at = Node(ears.partition.node.origin)
    assert ears.partition.execute(("PING",)) == b"PONG"
    assert asked == [ears]
    ears.partition.subscribed_at = None


def test_messages_that_come_while_others_subscribe_are_no_confirmations(partition: Partition) -> None:
    ears = [runtime().listener(partition), listener()]
    receiver: Receiver[Listener] = Receiver(partition.node, ears, lambda *ended: None)
    answers = [[b"subscribe", b"a", 1], [b"message", b"a", b"p"], [b"subscribe", b"b", 2]]
    receiver.connection = SimpleNamespace(  # type: ignore[assignment]
        connect=lambda: None, send_packed_command=lambda words: None, read_response=lambda: answers.pop(0)
    )
    assert receiver.subscribe([]) == {}
    assert answers == []
