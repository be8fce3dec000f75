"""Messages that come late (R1), to somebody who has left (R7), or not at all (R6, R19), and waiters who cannot be told
anything (R3), have been stopped (R4), are dead (R9), or sleep past an end (R5)."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockPool, LockUnavailable, Semaphore
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Other, server_time, until
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, QUEUE, TOKEN, WAITERS, count, flag, holder, queued, value
from tests.inside import change_probe, limit

from .conftest import ACQUIRE, LONG, MEMBER, POOL, SEMAPHORE, Ghosts, Join, Start, lapse, listed, subscribed, told

nobody_looks = pytest.mark.usefixtures("no_look_by_the_clock")


@pytest.fixture
def held() -> Lock:
    lock = Lock(NAME, ttl=LONG)
    lock.acquire()
    return lock


@pytest.mark.parametrize("late", ["acquire", "reacquire", "handoff"])
def test_r1_however_late_the_news_a_lease_ends_here_no_later_than_in_redis(
    late: str, network: Proxy, crowd: Crowd, join: Join, client: redis.Redis
) -> None:
    lock, first = Lock(NAME, ttl=3, auto_renew=False, using="other"), Lock(NAME)
    if late == "handoff":
        first.acquire()
        waiting = join(lock)
        me = waiting.person
        wake = network.delay_message(f"g {listed(client)[0][0]}", 0.5)
        first.release()
        assert waiting.result()
        assert wake.over.wait(GENEROUS)
    else:
        me = crowd()
        network.delay_answer(ACQUIRE, 0.5)
        assert me(lock, "acquire")
        if late == "reacquire":
            network.delay_answer(LOCK, 0.5)
            me(lock, "reacquire")
    ends_here = me.read(lambda: monotonic() + lock.remaining())
    assert ends_here <= int(client.pttl(LOCK)) / 1000 + monotonic() + 0.001


def test_r1_answers_that_come_after_the_end_of_their_lease_grant_nothing(
    network: Proxy, crowd: Crowd, client: redis.Redis
) -> None:
    late = network.delay_answer(ACQUIRE, 0.1, times=3)
    with pytest.raises(LockUnavailable, match=r"Redis takes longer to respond than the TTL of the lock \(0\.05 s"):
        crowd()(Lock(NAME, ttl=0.05, using="other"), "acquire", blocking=False)
    assert late.met == 3
    until(lambda: not holder(client))


@nobody_looks
@pytest.mark.parametrize("at_work", [True, False], ids=["others hold it", "it is free"])
@pytest.mark.complete
def test_r1_a_wake_that_comes_after_the_end_of_its_lease_is_a_hint_to_look(
    at_work: bool, held: Lock, network: Proxy, join: Join, client: redis.Redis
) -> None:
    waiting = join(Lock(NAME, ttl=3, auto_renew=False, using="other"))
    late = network.hold_message(f"g {listed(client)[0][0]}")
    held.release()
    until(lambda: not holder(client))
    if at_work:
        held.acquire()
    late.let_go()
    if at_work:
        until(lambda: queued(client) == 1)
        held.release()
    assert waiting.result()
    assert value(client)[0] == waiting.id


@nobody_looks
def test_r6_all_waiters_are_in_the_queue_again_after_a_reconnect_and_in_order(
    held: Lock, join: Join, client: redis.Redis
) -> None:
    waiting = [join(Lock(NAME)) for _ in range(4)]
    before = listed(client)
    client.delete(QUEUE, WAITERS)  # as those do who find nobody listening while the connection is down
    client.client_kill_filter(_type="pubsub")
    until(lambda: listed(client) == before)
    held.release()
    for one in waiting:
        assert one.result()
        one.release()


@nobody_looks
@pytest.mark.parametrize("kind", ["handed over", "left to one that polls", "a member"])
def test_r7_a_message_to_a_waiter_that_has_left_reaches_the_next_at_once(
    kind: str, held: Lock, pool: LockPool, join: Join, client: redis.Redis
) -> None:
    subscribed()
    thing, name = (pool, POOL) if kind == "a member" else (Lock(NAME), NAME)
    lock = pool.acquire(ttl=LONG) if kind == "a member" else held
    here, now = inside.own_process(), server_time(client)
    if kind == "left to one that polls":
        polls = here.request("polls-polls-polls-poll", name=name, ttl=LONG)
        here.acquire(polls, inside.polled(0.5), now)
    here.acquire(here.request("gone-gone-gone-gone-gone", name=name, ttl=LONG), ticket=now + 1)
    waiting = join(thing, blocking_timeout=LONG)
    lock.release()
    assert waiting.result()  # the lease of that handoff is 200 s
    assert listed(client, name) == []


@pytest.mark.complete
def test_r7_a_withdrawal_that_could_not_be_sent_is_sent_later(
    held: Lock, network: Proxy, join: Join, client: redis.Redis
) -> None:
    waiting = join(Lock(NAME, blocking_timeout=4, using="other"))
    network.cut()
    with suppress(LockUnavailable):  # that is true as well
        assert not waiting.result()
    assert queued(client) == 1
    network.mend()
    until(lambda: queued(client) == 0)


@nobody_looks
@pytest.mark.parametrize(
    ("ttl", "what"),
    [
        pytest.param(30, "granted long ago", marks=pytest.mark.complete),
        pytest.param(1, "its handoff has ended", marks=pytest.mark.complete),
        (30, "half a message"),
        (30, "an error"),
    ],
)
def test_r19_a_grant_of_which_nobody_has_told_or_an_odd_message_makes_the_listener_reconnect(
    ttl: float, what: str, held: Lock, network: Proxy, join: Join, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_late=LONG)  # however busy the machine is, that is no sign that this process stood
    ears = subscribed("other")
    generation = ears.generation
    waiting = join(Lock(NAME, ttl=ttl, using="other"))
    if odd := {"half a message": b"*3\r\n$7\r\nmessage\r\n$20\r\nhalf", "an error": b"-ERR what?\r\n"}.get(what):
        *_, link = (one for one in network.links if one.port == ears.port)
        link.down.sendall(odd)
        until(lambda: ears.generation > generation and ears.ready)
    else:
        network.swallow_message(f"g {listed(client)[0][0]}")
    held.release()
    if what == "granted long ago":  # its wake would have come
        granted = int(value(client)[3])
        until(lambda: server_time(client) > granted + 1_100_000)
    elif what == "its handoff has ended":
        until(lambda: not holder(client))
    assert odd or not waiting.future.done()
    inside.let_them_look("other")
    assert waiting.result()
    until(lambda: ears.generation > generation and ears.ready)


@pytest.fixture(params=["no right to channels", "the probe is not counted"])
def polled(request: pytest.FixtureRequest, server: RedisServer, add_alias: Any) -> Iterator[tuple[str, int]]:
    """An alias for which messages do not reliably reach waiters, and how often that is logged."""
    if request.param == "no right to channels":
        yield request.getfixturevalue("allow_only")("resetchannels"), 1
        return
    with pytest.MonkeyPatch.context() as patch:
        change_probe(patch, lambda text: text.replace("listeners(ARGV[1])", "0"))
        yield add_alias(server.url), 0


@pytest.mark.complete
def test_r3_waiters_that_get_no_messages_poll_and_keep_their_places(
    polled: tuple[str, int], join: Join, client: redis.Redis, caplog: Any
) -> None:
    """They are never handed the lock, which is left for the first of them. It counts as gone if it does not look."""
    alias, logged = polled
    subscribed(alias).end()
    subscribed(alias)  # refused once more, for the same reason
    assert caplog.text.count("event=not-subscribed") == logged
    lock = Lock(NAME, using=alias)
    lock.acquire()
    *waiting, leaves = (join(Lock(NAME, using=alias, blocking_timeout=seconds)) for seconds in (30, 30, 0.5))
    assert not leaves.result()
    ids = [id for id, _ in listed(client)]
    assert len(ids) == 2

    def alive_until() -> int:
        entry: Any = client.hget(WAITERS, ids[0])
        assert entry.startswith(b"- ")
        return int(entry.split(b" ")[2])

    first = alive_until()
    until(lambda: alive_until() > first + 100_000)
    lock.release()
    assert not Lock(NAME, using=alias).acquire(blocking=False)
    for id, one in zip(ids, waiting, strict=True):
        assert one.result()
        assert (holder(client), flag(client)) == (id, "c")
        one.release()


@pytest.mark.usefixtures("look_soon")
@pytest.mark.parametrize("name", [NAME, SEMAPHORE, POOL], ids=["lock", "semaphore", "pool"])
def test_r4_a_stuck_process_with_four_waiters_costs_one_handoff_lease(
    name: str, pool: LockPool, ghost: Ghosts, join: Join
) -> None:
    """A handoff whose lease ended unconfirmed leaves a trace. Who finds it drops every waiter of that process."""
    make: Any = {NAME: partial(Lock, NAME), SEMAPHORE: partial(Semaphore, "export", limit=1), POOL: lambda: pool}[name]
    stuck, most, held = ghost(), 1 if name == SEMAPHORE else None, make()
    member = held.acquire()
    for number in range(4):
        stuck.acquire(stuck.request(f"stuck-stuck-stuck-stuck-{number}", name=name, ttl=0.5, limit=most))
    waiting = join(make(), blocking_timeout=GENEROUS)
    (member if name == POOL else held).release()
    assert waiting.result()
    assert told(stuck) == [["g", "stuck-stuck-stuck-stuck-0"]]


@pytest.mark.parametrize("name", [NAME, SEMAPHORE, POOL], ids=["lock", "semaphore", "pool"])
def test_r4_a_process_that_has_asked_since_the_handoff_is_no_suspect(
    name: str, pool: LockPool, ghost: Ghosts, client: redis.Redis
) -> None:
    """Its other waiters keep their places where the handoff ends without a sign of life."""
    mine, others = ghost(), ghost()

    def request(process: inside.Process, id: str) -> inside.Request:
        return process.request(id.ljust(22, "-"), name=name, ttl=30, limit=1 if name == SEMAPHORE else None)

    holder = request(others, "holder")
    assert others.acquire(holder, inside.QUEUED).state == inside.GRANTED
    mine.acquire(request(mine, "first"), inside.QUEUED)
    others.release(holder if name != POOL else holder._replace(name=MEMBER, keys=inside.keys_of(MEMBER)))
    assert told(mine) == [["g", "first".ljust(22, "-")]]
    mine.acquire(request(mine, "second"), inside.QUEUED)
    third = request(others, "third")
    ticket = others.acquire(third, inside.QUEUED).number
    lapse(client, name)
    assert others.acquire(third, inside.QUEUED, ticket).state == inside.BUSY
    assert told(mine) == [["g", "second".ljust(22, "-")]]


# a process that starts a thread whenever it is told to, which waits for the lock and releases it
WAITS = """
from tests.inside import limit
limit(look_every=600.0)

def wait(number):
    options = {"ttl": 3, "blocking_timeout": 60}  # a busy machine may delay this process for as long
    with LockPool("accounts").acquire(**options) if pooled else Lock(name, **options):
        say("acquired", number)

for number in range(4):
    hear()
    threading.Thread(target=wait, args=(number,), daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.complete
@pytest.mark.usefixtures("look_soon")
@pytest.mark.parametrize(("busy", "pooled"), [(True, False), (True, True), (False, False)])
def test_r4_the_waiters_of_a_process_that_was_stopped_come_back_with_their_tickets(
    busy: bool, pooled: bool, pool: LockPool, start: Start, join: Join, client: redis.Redis
) -> None:
    """Dropped, but alive: when the process runs again, all its waiters are back at their places."""
    name, wanted = (POOL, pool) if pooled else (NAME, Lock(NAME))
    held = Lock(MEMBER if pooled else NAME)
    held.acquire()
    worker = start(WAITS, fresh=True, name=NAME, pooled=pooled)  # a child of this process, which waits for it
    for number in range(4):
        worker.tell()
        until(lambda number=number: len(listed(client, name)) == number + 1)
    worker.signal(signal.SIGSTOP)
    os.waitpid(worker.pid, os.WUNTRACED)  # until it has stopped
    before = listed(client, name)
    waiting = join(wanted)
    held.release()
    assert waiting.result()
    assert listed(client, name) == []
    if not busy:
        waiting.release()
    worker.signal(signal.SIGCONT)
    if busy:
        until(lambda: listed(client, name) == before)
        waiting.release()
    # nobody has to wait for a look by the clock, which would come when the first holder's lease (30 s) would have ended
    entered = [worker.expect("acquired", within=15)[0] for _ in range(4)]
    assert (entered if busy else sorted(entered)) == ["0", "1", "2", "3"]


@nobody_looks
@pytest.mark.complete
@pytest.mark.parametrize("second_is", ["like the first", "a task of another thread", "not answered yet"])
def test_r4_all_who_were_dropped_are_back_when_the_first_of_their_process_looks(
    second_is: str, held: Lock, network: Proxy, join: Join, other: Callable[[], Other], client: redis.Redis,
) -> None:  # fmt: skip
    """One that was dropped before the answer to its first request came is back as soon as it has come."""

    async def pass_through() -> None:
        async with Lock(NAME, using="other"):
            pass

    first = join(Lock(NAME, ttl=2, using="other"))
    wake, answer = network.hold_message(f"g {listed(client)[0][0]}"), None
    if second_is == "not answered yet":
        answer = network.hold_answer(ACQUIRE)
    if second_is == "a task of another thread":
        second = other().start(lambda: asyncio.run(pass_through()))
        until(lambda: queued(client) == 2)
    else:
        second = join(Lock(NAME, using="other")).future
    before = listed(client)
    held.release()
    until(lambda: not holder(client))
    held.acquire()  # and drops both of them
    assert listed(client) == []
    wake.let_go()
    if answer:
        until(lambda: listed(client) == before[:1])
        answer.let_go()
    until(lambda: listed(client) == before)
    held.release()
    assert first.result()
    first.release()
    second.result(GENEROUS)


@pytest.mark.usefixtures("no_look_by_the_clock")
def test_r5_waiters_look_when_the_lease_ends_of_whoever_holds_the_lock_now(join: Join) -> None:
    Lock(NAME, ttl=0.3, auto_renew=False).acquire()
    second, third = (join(Lock(NAME, ttl=0.5, auto_renew=False)) for _ in range(2))
    assert second.result()  # and nobody releases it
    assert third.result()


@pytest.mark.usefixtures("no_look_by_the_clock")
@pytest.mark.parametrize(
    ("name", "method"), [*product([NAME, MEMBER, POOL], ["extend", "detach"]), (SEMAPHORE, "extend")]
)
def test_r5_waiters_look_when_a_lease_ends_that_was_made_shorter(
    name: str, method: str, pool: LockPool, crowd: Crowd, join: Join
) -> None:
    subscribed()
    me, kind = crowd(), partial(Semaphore, limit=1) if name == SEMAPHORE else Lock
    lock = kind(MEMBER if name == POOL else name, ttl=LONG, auto_renew=False)
    me(lock, "acquire")
    waiting = join(pool if name == POOL else kind(name))
    me(lock, method, 0.3, **({"replace_ttl": True} if method == "extend" else {}))
    assert waiting.result()


@pytest.mark.usefixtures("look_soon")
@pytest.mark.complete
def test_r5_waiters_of_a_process_look_no_more_often_than_one_and_the_next_goes_on_with_it(
    join: Join, client: redis.Redis
) -> None:
    Lock(NAME, ttl=LONG).acquire()
    leave = [join(Lock(NAME, blocking_timeout=12)) for _ in range(5)]
    stays = join(Lock(NAME))
    before, began = count(client, "evalsha"), monotonic()
    until(lambda: count(client, "evalsha") >= before + 7)
    assert monotonic() - began > 3 * 0.3  # six of them, each for itself, would look 18 times
    assert not any(one.result() for one in leave)
    lapse(client)
    assert stays.result()


@pytest.mark.parametrize(("name", "dead"), [(NAME, 1), (NAME, 1200), (POOL, 250)])
def test_r9_who_finds_a_lock_free_behind_dead_waiters_takes_it_in_a_single_try_and_tells_nobody(
    name: str, dead: int, pool: LockPool, crowd: Crowd, ghost: Ghosts, client: redis.Redis
) -> None:
    """After dropping them, the script decides again; where they are very many, it is called again."""
    gone, thing = ghost(alive=False), pool if name == POOL else Lock(NAME)
    thing.acquire()
    for number in range(dead):
        gone.queue(f"{TOKEN}-{number}", name=name, age=10)
    lapse(client, name)
    before = count(client, "publish")
    assert crowd()(pool if name == POOL else Lock(NAME), "acquire", blocking_timeout=0)
    assert listed(client, name) == []
    assert count(client, "publish") == before
