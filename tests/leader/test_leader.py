"""``leader``: standbys, terms, and that a leader knows of its end before anybody else leads."""

import asyncio
import copy
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import redis
from django.core.exceptions import SynchronousOnlyOperation

from django_redislock import Lock, LockError, LockLost, force_release, get_lock, leader
from django_redislock.testing import hold, lose
from redisserver import RedisServer, redis_server
from tests.helpers.actors import GENEROUS, Crowd, Other, auntil, until
from tests.helpers.cancelling import Interrupt, interrupters
from tests.helpers.forks import in_child
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.state import LOCK, NAME, leftovers, queued
from tests.inside import ACQUIRE, WHERE_LOCKS_ARE_ACQUIRED, limit

Start = Callable[..., Worker]


def stand_by(person: Any, client: redis.Redis, **options: Any) -> tuple[Any, Any]:
    """A leader that waits, and the future of its lead()."""
    before, term = queued(client), leader(NAME, **options)
    person(term, "enter")
    future = person.start(term, "lead")
    until(lambda: queued(client) == before + 1)
    return term, future


def test_one_leads_and_the_standbys_wait_in_silence_and_follow_in_order(
    crowd: Crowd, client: redis.Redis, settings: Any, caplog: Any
) -> None:
    settings.REDISLOCK = {"SLOW_WAIT": 0.01, "BLOCKING_TIMEOUT": 0.01, "MAX_WAITERS": {"*": 1}, "AUTO_RENEW": False}
    people = [crowd() for _ in range(4)]
    terms: list[tuple[Any, Any]] = [(leader(NAME), None)]
    fences: list[int] = []
    people[0](terms[0][0], "enter")
    assert people[0](terms[0][0], "lead") is True
    terms += [stand_by(person, client) for person in people[1:]]
    time.sleep(0.05)
    for person, (term, future) in zip(people, terms, strict=True):
        assert future is None or future.result(GENEROUS) is True
        assert [other.done() for _, other in terms if other is not None].count(True) == len(fences)
        assert person(term, "lead") is True
        assert person.read(lambda term=term: term.remaining()) > 15  # a whole lease, though it was handed over
        fences.append(person.read(lambda term=term: term.fence))
        person(term, "exit", None, None, None)
        assert person(term, "lead") is False
    assert fences == sorted(set(fences))
    assert leftovers(client) == []
    assert caplog.messages == []


def test_the_loop_ends_with_the_term_and_the_next_block_is_another_term(client: redis.Redis) -> None:
    term, fences = leader(NAME), []
    with term:
        pass  # it need not lead
    for _ in range(2):
        with term as same:
            assert same is term
            while term.lead():
                fences.append(term.fence)
                lose(term)
            assert term.lead() is False  # for good: nobody holds the lock
            assert term.lost
    assert len(set(fences)) == 2
    assert leftovers(client) == []


async def test_coroutines_lead_as_well(client: redis.Redis) -> None:
    async with leader(NAME) as term:
        while await term.alead():
            assert client.exists(LOCK)
            await term.arelease()
    with pytest.raises(SynchronousOnlyOperation, match="Await alead"):
        term.lead()
    with pytest.raises(SynchronousOnlyOperation, match="Use async with"):
        term.__enter__()
    assert leftovers(client) == []


async def test_a_standby_may_wait_with_a_timeout_and_go_on(client: redis.Redis) -> None:
    async with leader(NAME) as term:
        with hold(NAME):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(term.alead(), 0.05)
            await auntil(lambda: not queued(client))
        assert await asyncio.wait_for(term.alead(), GENEROUS)  # in a task of its own, before Python 3.12
        assert term.remaining() > 15
        assert await term.alead()
    assert leftovers(client) == []


def test_what_was_lost_unnoticed_is_an_error_at_the_end_and_an_error_of_the_block_goes_on() -> None:
    with pytest.raises(LockLost), leader(NAME) as term:  # noqa: PT012
        assert term.lead()
        force_release(NAME)
    with pytest.raises(KeyError), leader(NAME) as term:  # noqa: PT012
        assert term.lead()
        raise KeyError
    assert get_lock(NAME) is None
    with ExitStack() as stack:
        term = stack.enter_context(leader(NAME))
        assert term.lead()
        with pytest.raises(LockError, match="would wait for itself"):
            leader(NAME).lead()
    assert get_lock(NAME) is None


class Entered:
    """A block that an actor is in, as long as it runs a call."""

    def __init__(self, term: Any) -> None:
        self.term, self.began, self.ends = term, threading.Event(), threading.Event()

    def stay(self) -> None:
        with self.term:
            self.began.set()
            assert self.ends.wait(GENEROUS)

    async def astay(self) -> None:
        async with self.term:
            self.began.set()
            await auntil(self.ends.is_set)


def test_a_block_that_another_thread_or_task_is_in_is_not_entered(crowd: Crowd) -> None:
    me, you, term = crowd(), crowd(), leader(NAME)
    for _ in range(2):  # and then it may be
        mine, yours = Entered(term), Entered(term)
        yours.ends.set()
        staying = me.start(mine, "stay")
        assert mine.began.wait(GENEROUS)
        with pytest.raises(LockError, match=f"^Cannot enter a block with the leader '{NAME}': another thread or task"):
            you(yours, "stay")
        yours.term = copy.deepcopy(term)
        you(yours, "stay")
        yours.term = term
        mine.ends.set()
        staying.result(GENEROUS)
        you(yours, "stay")


def test_the_block_of_a_thread_that_is_gone_keeps_nobody_out(other: Callable[[], Other]) -> None:
    """It is not in the child of a fork."""
    theirs = Entered(leader(NAME))
    staying = other().start(theirs.stay)
    assert theirs.began.wait(GENEROUS)
    in_child(lambda: theirs.term.__enter__() is theirs.term)
    theirs.ends.set()
    staying.result(GENEROUS)


def test_a_copy_and_a_forked_child_do_not_lead() -> None:
    with leader(NAME) as term:
        assert term.lead()
        assert copy.copy(term).remaining() == 0.0
        in_child(lambda: term.lead() is False)
        assert term.lead()


@pytest.mark.complete
def test_a_lost_leader_is_told_a_third_of_the_ttl_before_anybody_else_can_lead(
    network: Proxy, crowd: Crowd, client: redis.Redis
) -> None:
    """Of the end of its lease as Redis has it, which goes on by its own clock."""
    told: list[float] = []
    me, term = crowd(), leader(NAME, ttl=9, on_lost=lambda error: told.append(client.pttl(LOCK) / 1000))
    me(term, "enter")
    assert me(term, "lead") is True
    network.cut()
    left = client.pttl(LOCK) / 1000  # first, so that whatever time passes in between makes no difference
    assert me.read(term.remaining) < left - 2.9
    until(lambda: not me(term, "lead"))
    until(lambda: told)
    assert me.read(lambda: term.lost)
    assert told[0] > 0
    me(term, "exit", None, None, None)  # and does not wait for Redis


def test_a_grant_that_comes_late_is_no_term_but_the_next_one_is(network: Proxy, crowd: Crowd) -> None:
    with Lock(NAME):
        pass  # the script is loaded
    late = network.delay_answer(ACQUIRE, delay=0.9)
    me, term = crowd(), leader(NAME, ttl=1.2)
    me(term, "enter")
    assert me(term, "lead") is True
    assert late.over.is_set()
    with suppress(LockLost):  # so short a term may be over by now
        me(term, "exit", None, None, None)


def test_with_cancel_the_task_is_cancelled_before_anybody_else_can_lead(own: RedisServer) -> None:
    async def lead() -> None:
        async with leader(NAME, ttl=1.5, on_lost="cancel") as term:
            assert await term.alead()
            own.stop()
            await asyncio.sleep(GENEROUS)

    with pytest.raises(LockLost):
        asyncio.run(lead())


def test_with_cancel_the_loss_is_raised_also_where_lead_has_told_of_it_first() -> None:
    async def lead() -> None:
        async with leader(NAME, on_lost="cancel") as term:
            assert await term.alead()
            await asyncio.to_thread(lose, term)
            while await term.alead():
                time.sleep(0.01)
            await asyncio.sleep(GENEROUS)

    with pytest.raises(LockLost):
        asyncio.run(lead())


@pytest.mark.parametrize("poll", [False, True])
def test_a_standby_outlasts_any_outage_of_redis_and_keeps_its_place(
    poll: bool, crowd: Crowd, own: RedisServer, monkeypatch: pytest.MonkeyPatch, settings: Any, caplog: Any
) -> None:
    settings.REDISLOCK = {"RETRY_FOR": 0.05, "POLL": poll}
    limit(monkeypatch, sit_out=0.1)
    own.stop()
    own.options |= {"appendonly": "yes", "appendfsync": "always"}
    own.start()
    me, people, lock = crowd(), [crowd() for _ in range(4)], Lock(NAME, ttl=300)
    with own.client() as client:
        me(lock, "acquire")
        standbys = [(person, *stand_by(person, client)) for person in people[:3]]
    own.stop()
    late = leader(NAME)
    people[3](late, "enter")
    standbys.append((people[3], late, people[3].start(late, "lead")))  # while Redis is away
    until(lambda: sum("event=standby-cut-off" in message for message in caplog.messages) >= 4)
    own.start()
    with own.client() as client:
        until(lambda: queued(client) == 4)
    me(lock, "release")
    led = []
    while left := [one for one in standbys if one[0] not in led]:
        for person, term, future in until(lambda left=left: [one for one in left if one[2].done()]):
            assert future.result() is True
            led.append(person)
            person(term, "exit", None, None, None)
    assert poll or led == people


@pytest.mark.complete
def test_a_standby_waits_on_for_replicas_that_are_missing(own: RedisServer, crowd: Crowd, caplog: Any) -> None:
    me, term = crowd(), leader(NAME, replicas=1)
    me(term, "enter")
    future = me.start(term, "lead")
    until(lambda: "0 of 1 replicas acknowledged it" in caplog.text)
    assert not future.done()
    with redis_server() as replica, replica.client() as client:
        client.replicaof("127.0.0.1", own.port)
        assert future.result(2 * GENEROUS) is True
        me(term, "exit", None, None, None)


LEADS = """
try:
    with leader(name, ttl=ttl) as term:
        while term.lead():
            say("leads", time.monotonic(), term.fence)
            time.sleep(0.02)
        say("over", time.monotonic())
except KeyboardInterrupt:
    say("interrupted")
hear()
"""


@pytest.mark.filterwarnings("ignore:coroutine '.*' was never awaited")  # it was interrupted before
@pytest.mark.parametrize("awaits", [False, True], ids=["threads", "tasks"])
def test_a_block_that_catches_what_has_interrupted_lead_ends_in_silence(awaits: bool, client: redis.Redis) -> None:
    """Also where the lock was there already."""

    def section() -> None:
        with leader(NAME) as term, suppress(Interrupt):
            term.lead()

    async def asection() -> None:
        async with leader(NAME) as term:
            with suppress(Interrupt):
                await term.alead()

    for one in interrupters(lambda file: file in WHERE_LOCKS_ARE_ACQUIRED):
        with suppress(Interrupt):  # at the end of the block
            one.run(lambda: asyncio.run(asection()) if awaits else section())
    until(lambda: leftovers(client) == [])


@pytest.mark.complete
def test_processes_take_over_from_one_that_ends_and_from_one_that_is_killed(start: Start, client: redis.Redis) -> None:
    workers = []
    for number in range(3):
        workers.append(start(LEADS, name=NAME, ttl=6))
        until(lambda number=number: client.exists(LOCK) and queued(client) == number)
    fences = [int(workers[0].expect("leads")[1])]
    workers[0].kill()
    fences.append(int(workers[1].expect("leads")[1]))
    workers[1].signal(signal.SIGINT)
    fences.append(int(workers[2].expect("leads")[1]))
    assert fences == sorted(set(fences))


@pytest.mark.complete
def test_a_process_that_is_cut_off_has_ended_its_term_before_the_next_one_leads(
    start: Start, server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy(server.port) as network:
        monkeypatch.setenv("REDISLOCK_TEST_URL", network.url)
        one = start(LEADS, name=NAME, ttl=6)
        one.expect("leads")
        monkeypatch.setenv("REDISLOCK_TEST_URL", server.url)
        two = start(LEADS, name=NAME, ttl=6)
        until(lambda: queued(client))
        network.partition()
        over, leads = float(one.expect("over")[0]), float(two.expect("leads")[0])
        assert over < leads
        network.heal()


def test_wrong_options_are_errors_before_anything_is_asked(client: redis.Redis) -> None:
    wrong: Any = leader
    known = r"The options are: backoff, fenced, max_hold, note, on_lost, poll, purpose, replicas, .*, using\.$"
    with pytest.raises(TypeError, match=rf"^leader\(\) takes no option 'blocking_timeout'\..* {known}"):
        wrong(NAME, blocking_timeout=1)
    with pytest.raises(ValueError, match=r"^ttl must be at least 0\.003"):
        leader(NAME, ttl=0)
    with pytest.warns(RuntimeWarning, match="locks this very name"):
        leader("beat:{pk}")
