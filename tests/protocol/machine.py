"""Random sequences of operations by the real scripts on a real server, against a reference in Python (reference.py).

The clock of the scripts is a key, so that time passes when the machine says so: leases end, tickets age and queues are
forgotten without waiting. Redis's own expiry times are moved along. A failing sequence is printed as a program, with
all requests and answers.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

import pytest
import redis
from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests import inside
from tests.helpers.actors import GENEROUS
from tests.helpers.state import FENCE, INDEX, LOCK, NAME, QUEUE, WAITERS
from tests.inside import PREFIX
from tests.protocol.reference import Attempt, Held, Process, Reference

EXAMPLES = int(os.environ.get("REDISLOCK_TEST_EXAMPLES", "0"))
QUIETLY = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), stateful_step_count=50)

START = 1_700_000_000_000_000  # microseconds
CLOCK = ("machine:seconds", "machine:micros")
EAR = "machine:ear"  # a channel; a message there marks the end of a step's messages, even when all processes are dead
# as scripts, which take a client much less time than a pipeline
TICK = """
redis.call('MSET', KEYS[1], ARGV[1], KEYS[2], ARGV[2])
for i = 3, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[i]) end
"""
LOOK = """
local lefts = {}
for i = 6, #KEYS do lefts[i - 5] = redis.call('PTTL', KEYS[i]) end
redis.call('PUBLISH', ARGV[3], '')
return {
  redis.call('GET', KEYS[1]), redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'), redis.call('HGETALL', KEYS[3]),
  redis.call('ZSCORE', KEYS[4], ARGV[1]), redis.call('GET', KEYS[5]), redis.call('KEYS', ARGV[2]), lefts
}
"""
DRIFT = 4_000  # milliseconds that Redis's expiry may be ahead of the machine's clock
HOMES = range(3)  # processes

PROCESSES = st.sampled_from(HOMES)
FURTHER = st.sampled_from([0, 0, 0, 1])  # an action may come from another process: this many further than its own
RARELY = st.sampled_from([False] * 7 + [True])
TOKENS = st.sampled_from([None, None, "t" * 21 + "1", "t" * 21 + "2"])
WHO = st.sampled_from(["holder", "first", "first", "second", "last", "former", "former", "older"])
# told by messages, or polling: counts as alive for so many milliseconds without a look
WAITS = st.sampled_from([*[inside.QUEUED] * 4, inside.NOT_AT_ALL, inside.ADOPTING, "p1000", "p20000"])
TTLS = st.sampled_from([21_000, 50_000, 80_000, 180_000])  # handed over: 7, 17, 27 and 60 s
RIGHTS = st.sampled_from([inside.HOLDER, inside.HOLDER, inside.WITHDRAWAL, inside.WITHDRAWAL, inside.BEARER])
HOWS = st.sampled_from(["keep", "keep", "confirm", "set", "detach", "detach", "note", "note"])
# how much lower than the fence of the lock is the one that a renewal names; None: it names none
BELOW = st.sampled_from([None, None, None, 0, 1])
# enough for the missed looks of a polling waiter, the lease of a handoff, the expiry of a queue
TIMES = st.sampled_from([150, 1_100, 28_000, 61_000])
ENDS = st.sampled_from(["released", "lapsed", "forced"])
ASKS = st.sampled_from(["look", "last looks", "come", "renew", "withdraw"])
CROWDS = st.permutations([0, 0, 1, 1, 2])
WAITS_OF_CROWDS = st.sampled_from([("1",) * 5, ("p1000", "p20000", "1", "p1000", "1"), ("p1000",) * 5])
TOKENS_OF_CROWDS = st.sampled_from([(None,) * 5, ("t" * 22,) * 5, ("t" * 22, None, "t" * 22, None, "u" * 22)])
# how a lock is handed to the next waiter, and on to the one after
SECOND: dict[str, Any] = {
    "sign": st.sampled_from(["", "", "renewed", "renewed", "seen"]),
    "how": HOWS,
    "ttl": st.sampled_from([10_000, 10_000, 80_000]),  # it ends before the lease of the handoff, or after it
    "end": st.sampled_from(["released", "lapsed", "lapsed", "forced", "forced"]),
    "askers": CROWDS,
    "asks": ASKS,
}
FIRST: dict[str, Any] = {
    "homes": CROWDS,
    "waits": WAITS_OF_CROWDS,
    "tokens": TOKENS_OF_CROWDS,
    "ttl": TTLS,
    "anew": st.sampled_from([True, True, False]),
    "age": st.sampled_from([0, 0, 1_100]),
    "dead": st.sampled_from([(), (), (), (0,), (1,), (2,), (0, 1, 2)]),
    "end": ENDS,
    "askers": CROWDS,
    "asks": ASKS,
    "second": st.fixed_dictionaries(SECOND),
}

is_held = precondition(lambda self: self._is_held())
suspends = precondition(lambda self: self.suspends)


@dataclass
class Someone:
    """An attempt, and what its process knows of it."""

    process: int
    attempt: Attempt
    listens: bool = True  # if not, its process is not subscribed, although the attempt waits for messages
    ticket: int | None = None


class OnServer(RuleBasedStateMachine):
    """Three processes that may live or die, and a listener for what they are told."""

    # set by prepared()
    client: Any
    homes: list[inside.Process]
    ear: Any

    def __init__(self) -> None:
        super().__init__()
        self.client.flushall()
        self.subscribed: set[str] = set()  # the channels of the living
        self.ear.reset()
        self._subscribe(EAR)

    @rule(process=PROCESSES, dies=st.sampled_from([True, False, False]))
    def live_or_die(self, process: int, dies: bool) -> None:
        channel = self.homes[process].channel
        if dies and channel in self.subscribed:
            self.subscribed.remove(channel)
            self._subscribe(channel, "unsubscribe")
        elif not dies and channel not in self.subscribed:
            self.subscribed.add(channel)
            self._subscribe(channel)

    def _all_live(self) -> None:
        for process, home in enumerate(self.homes):
            home.highest_fence(0)
            self.live_or_die(process, dies=False)

    def _subscribe(self, channel: str, how: str = "subscribe") -> None:
        getattr(self.ear, how)(channel)
        assert self.ear.get_message(timeout=GENEROUS)["type"] == how

    def _heard(self) -> list[tuple[str, str]]:
        """Channel and text of each message up to that on EAR."""
        heard: list[tuple[str, str]] = []
        while (message := self.ear.get_message(timeout=GENEROUS))["channel"].decode() != EAR:
            heard.append((message["channel"].decode(), message["data"].decode()))
        return heard


class Machine(OnServer):
    def __init__(self) -> None:
        super().__init__()
        self.reference = Reference(NAME, START, self.subscribed)
        self.people: dict[str, Someone] = {}  # all attempts so far, by their ids
        self.granted = 0  # the highest fence
        self.sound = False  # the last step did what the reference says
        self.suspends = False  # locks are suspended in this run
        self.last: Callable[[], bool] = lambda: False
        self.advance(0)
        self._all_live()

    @initialize(first=st.none() | st.fixed_dictionaries(FIRST), suspends=st.sampled_from([False, False, False, True]))
    def begin(self, first: dict[str, Any] | None, suspends: bool) -> None:
        self.suspends = suspends
        if first:
            self.hand_over(**first)

    @rule(
        process=PROCESSES,
        token=TOKENS,
        ttl=TTLS,
        wait=WAITS,
        listens=st.booleans(),
        most=st.sampled_from([None, None, None, 0, 1, 2, 3]),
        repeats=st.sampled_from([False, False, True]),
    )
    def come(self, process: int, token: Any, ttl: int, wait: str, repeats: bool = False, **more: Any) -> None:
        """A new attempt. ``repeats``: its first answer is lost, and it asks once more."""
        one = self._make(process, token, ttl, **more)
        for _ in range(1 + repeats):
            self._ask(one, wait)

    @rule(who=WHO, wait=WAITS, repeats=RARELY)
    def look(self, who: str, wait: str, repeats: bool) -> None:
        """A later look, or the first request again because its answer was lost; if the attempt is over, a late
        request."""
        if one := self._pick(who):
            self._ask(one, wait, None if repeats else one.ticket)

    @rule(who=WHO, further=FURTHER, may_arrive=st.booleans(), how=RIGHTS)
    def release(self, who: str, further: int, may_arrive: bool, how: str) -> None:
        """A release or withdrawal, possibly late or from another process; ``may_arrive``: an acquire may."""
        if one := self._pick(who):
            self._release(one, (one.process + further) % 3, may_arrive=may_arrive, how=how)

    @rule(who=WHO, further=FURTHER, ttl=TTLS, how=HOWS, ms=TTLS, below=BELOW)
    def renew(self, who: str, further: int, ttl: int, how: str, ms: int, below: int | None) -> None:
        if one := self._pick(who):
            self._renew(one, (one.process + further) % 3, ttl, how, ms, below)

    @is_held
    @rule(how=RIGHTS)
    def release_held(self, how: str = "") -> None:
        """The holder's release, more often than by chance; with its own right, if none is given."""
        one = self._holder()
        right = inside.BEARER if self._held().flag == "d" else inside.HOLDER
        self._release(one, one.process, may_arrive=False, how=how or right)

    @is_held
    @rule(ttl=TTLS, how=HOWS, ms=TTLS, below=BELOW)
    def renew_held(self, ttl: int, how: str, ms: int, below: int | None = None) -> None:
        one = self._holder()
        self._renew(one, one.process, ttl, how, ms, below)

    @is_held
    @rule()
    def lapse(self) -> None:
        """The holder's lease ends, and the waiters are not forgotten yet."""
        if self.reference.left() > 30_000:
            self.renew_held(21_000, "set", 21_000)
        self.advance(self.reference.left())

    @is_held
    @rule(
        state=st.sampled_from(["in use", "detached", "dead"]),
        further=st.integers(0, 2),
        ttl=TTLS,
        wait=st.sampled_from([inside.QUEUED, inside.ADOPTING]),
    )
    def adopt_held(self, state: str, further: int, ttl: int, wait: str) -> None:
        held = self._held()
        process = self._holder().process
        if state == "detached":
            self.renew_held(21_000, "detach", 21_000)
        elif state == "dead":
            self.live_or_die(process, dies=True)
        token = held.id if held.token == "-" else held.token
        one = self._make((process + further) % 3, token, ttl)
        self._ask(one, wait)

    @rule(process=PROCESSES, below=st.sampled_from([None, None, 0, 1]))
    def force(self, process: int, below: int | None) -> None:
        """Force-release any holder, or only if no later acquisition than the holder's, or the previous one's, holds the
        lock."""
        held = self.reference.lock
        self._force(process, None if below is None or held is None else held.fence - below)

    @suspends
    @rule(process=PROCESSES, ms=st.sampled_from([5_000, 50_000, 180_000]))
    def suspend(self, process: int, ms: int) -> None:
        home, owner = self.homes[process], f"owner of a suspension at {process}\nits note"

        def act() -> bool:
            expected = self.reference.suspend(Process(home.channel, home.highest_fence()), ms, owner)
            begun = home.suspend(NAME, ms / 1000, owner)
            note(f"  # process {process} suspends it for {ms}: {begun}; should be {expected}")
            assert begun is expected
            return False

        self._do(act)

    @precondition(lambda self: self.suspends and self._is_held())
    @rule(process=PROCESSES, end=ENDS, askers=CROWDS, asks=ASKS)
    def suspend_next(self, process: int, end: str, askers: list[int], asks: str) -> None:
        self.suspend(process, 180_000)
        self._end(end, askers, asks)

    @suspends
    @rule(process=PROCESSES)
    def resume(self, process: int) -> None:
        self._force(process, None, inside.SUSPENSION)

    @precondition(lambda self: bool(self.reference.lock and not self._is_held()))
    @rule()
    def end_suspension(self) -> None:
        self.advance(self.reference.left())

    @rule(homes=CROWDS, waits=WAITS_OF_CROWDS, tokens=TOKENS_OF_CROWDS, ttl=TTLS, anew=st.booleans())
    def crowd(self, homes: list[int], waits: Any, tokens: Any, ttl: int, anew: bool) -> None:
        """All waiters look and others queue; or all waiters leave, and as many others queue in this order."""
        for id, _ in self.reference.in_order():
            one = self.people[id]
            if anew:
                self._release(one, one.process, may_arrive=False)
            else:
                self._ask(one, inside.QUEUED, one.ticket)
        for home, wait, token in zip(homes, waits, tokens, strict=True):
            if len(self.reference.queue) < len(homes):
                self.come(home, token, ttl, wait)

    @rule(**FIRST)
    def hand_over(self, age: int, dead: Any, end: str, askers: Any, asks: str, second: Any, **crowd: Any) -> None:
        """Several queue, some of them dead, and the holder releases; then the second one does, if the lock was handed
        over."""
        for process in HOMES:
            self.live_or_die(process, process in dead)
        self.crowd(**crowd)
        self.advance(age)
        self._end(end, askers, asks)
        if self._is_handed_over():
            self.take_over(**second)

    @precondition(lambda self: self._is_handed_over())
    @rule(**SECOND)
    def take_over(self, sign: str, how: str, ttl: int, end: str, askers: list[int], asks: str) -> None:
        """The waiter that was handed the lock confirms it, or does not; then it leaves as well."""
        if sign == "renewed":
            self.renew_held(ttl, how, 10_000)
        elif sign == "seen":
            home = self._holder().process
            for id, _ in self.reference.in_order():
                if self.people[id].process == home:
                    self._ask(self.people[id], inside.QUEUED, self.people[id].ticket)
        self._end(end, askers, asks)

    @rule(ms=TIMES)
    def advance(self, ms: int) -> None:
        """Time passes, in the scripts' clock and in the expiry of each key."""
        for left in sorted((ends - self.reference.now) // 1000 for ends in self.reference.ends().values()):
            if ms < left < ms + DRIFT:  # no key is about to expire: it would end in Redis before it does here
                ms = left + 1
        self._tick(ms)
        self._check()

    @rule(key=st.sampled_from(["lock", "queue", "waiters", "index", "fence"]))
    def evict(self, key: str) -> None:
        self.reference.evict(key)
        if key == "fence":
            self.granted = 0  # the clock may have jumped back before, and not all processes have seen the highest fence
        self.client.delete({"index": INDEX, "fence": FENCE}.get(key, f"{PREFIX}{key}:{NAME}"))
        self._check()

    @rule(ms=st.sampled_from([-3_600_000, 0, 0, 3_600_000]))
    def restart(self, ms: int) -> None:
        """Redis comes back empty, maybe elsewhere, with another clock."""
        self.client.flushall()
        self.reference = Reference(NAME, self.reference.now + ms * 1000, self.subscribed)
        self.granted = 0
        self.advance(0)

    @rule()
    def flush_scripts(self) -> None:
        self.client.script_flush()

    @rule()
    def repeat(self) -> None:
        """Repeat the last request, as if its answer had been lost."""
        self._do(self.last)

    def _make(self, process: int, token: Any, ttl: int, listens: bool = True, most: int | None = None) -> Someone:
        number = len(self.people)
        owner = f"owner {number} at {process}" + f"\nnote of {number}" * (number % 3 == 0)
        attempt = Attempt(f"an-attempt-with-no-{number:04}", ttl, token or "-", most, owner)
        one = Someone(process, attempt, listens)
        self.people[one.attempt.id] = one
        return one

    def _pick(self, who: str) -> Someone | None:
        """The holder, a waiter, or an attempt that is over (the last one, or an old one)."""
        held = self.reference.lock
        waiting = [id for id, _ in self.reference.in_order()]
        over = [id for id in self.people if id not in waiting and not (held and id == held.id)]
        among = {"first": waiting[:1], "second": waiting[:2], "last": waiting}
        among |= {"former": over[-1:], "older": over[: len(over) // 2 + 1]}
        among["holder"] = [held.id] if held and self._is_held() else []
        ids = among[who] or waiting or list(self.people)
        return self.people[ids[-1]] if ids else None

    def _held(self) -> Held:
        held = self.reference.lock
        assert held
        return held

    def _holder(self) -> Someone:
        return self.people[self._held().id]

    def _is_held(self) -> bool:
        """Whether somebody holds the lock; otherwise it may be suspended."""
        return bool(self.reference.lock and self.reference.lock.flag != "s")

    def _is_handed_over(self) -> bool:
        return bool(self.reference.lock and self.reference.lock.flag == "h")

    def _request(self, one: Someone, process: int, *, listens: bool) -> inside.Request:
        id, ttl, token, most, owner = one.attempt
        own = None if token == "-" else token
        more = {"token": own, "most": most, "owner": owner, "listens": listens}
        return self.homes[process].request(id, name=NAME, ttl=ttl / 1000, **more)

    def _ask(self, one: Someone, wait: str, ticket: int | None = None) -> None:
        def act() -> bool:
            request = self._request(one, one.process, listens=one.listens or wait == inside.QUEUED)
            expected = self.reference.acquire(_caller(request), one.attempt, wait, ticket)
            taken = self.homes[one.process].acquire(request, wait, ticket)
            note(f"  # {one} asks, {wait=}, {ticket=}: {taken[:4]}, {taken[7:]}; should be {tuple(expected)}")
            assert (taken.state, taken.number) == (expected.state, expected.number)
            assert (taken.holder.decode() if taken.holder else None) == expected.holder
            assert taken.unheard == expected.unheard
            assert taken.us == self.reference.now
            if taken.state != inside.GIVEN_UP:
                left = self.reference.left()
                assert taken.left == left if left < 0 else abs(taken.left * 1000 - left) < DRIFT
            if taken.state in (inside.BUSY, inside.REQUEUED) and taken.number:
                one.ticket = taken.number
            # adopted; or dropped earlier, and back in front of a polling waiter, where it looks again at once
            return taken.state in (inside.ALREADY, inside.REQUEUED)

        self._do(act)

    def _release(self, one: Someone, process: int, *, may_arrive: bool, how: str = inside.HOLDER) -> None:
        def act() -> bool:
            request = self._request(one, process, listens=one.listens or process != one.process)
            expected = self.reference.release(_caller(request), one.attempt.id, may_arrive=may_arrive, how=how)
            answer = self.homes[process].release(request, may_arrive=may_arrive, how=how)
            note(f"  # process {process} releases {one}, {may_arrive=}, {how=}: {answer.state}; should be {expected}")
            assert answer[:2] == (expected, False)
            return False

        self._do(act)

    def _renew(self, one: Someone, process: int, ttl: int, how: str, ms: int, below: int | None = None) -> None:
        held = self.reference.lock
        fence = None if below is None or held is None else held.fence - below

        def act() -> bool:
            request = self._request(one, process, listens=one.listens or process != one.process)
            expected = self.reference.renew(_caller(request), one.attempt, ttl, how, ms, fence)
            state, left = expected
            renewed = self.homes[process].renew(request._replace(ttl=ttl / 1000), how, ms / 1000, fence)
            note(f"  # process {process} renews {one}, {how} {ms}, {ttl=}, {fence=}: {renewed}")
            note(f"  # should be {expected}")
            assert (renewed.state, renewed.held_by_other) == (state, state == inside.LOST and left > 0)
            assert abs((renewed.ends - monotonic()) * 1000 - left) < DRIFT
            return False

        self._do(act)

    def _force(self, process: int, highest: int | None, what: str = "") -> None:
        home = self.homes[process]

        def act() -> bool:
            expected = self.reference.force(Process(home.channel, home.highest_fence()), highest, what)
            found = home.force(NAME, highest, what)
            note(f"  # process {process} force-releases up to {highest}, {what=}: {found}; should be {expected}")
            assert found == expected
            return False

        self._do(act)

    def _end(self, how: str, askers: list[int], asks: str) -> None:
        """The holder leaves; if the lock is free then, waiters ask until somebody has it."""
        if self.reference.lock and not self._is_held():
            self.resume(askers[0])
        elif self.reference.lock and how == "released":
            self.release_held()
        elif self.reference.lock and how == "lapsed":
            self.lapse()
        elif self.reference.lock:
            self.force(askers[0], None)
        for process in askers:
            if self.reference.lock:
                return
            mine = [id for id, _ in self.reference.in_order() if self.people[id].process == process]
            former = self._pick("former")
            if asks in ("look", "last looks") and mine:
                one = self.people[mine[0 if asks == "look" else -1]]
                self._ask(one, inside.QUEUED, one.ticket)
            elif asks == "renew" and former:
                self._renew(former, process, 50_000, "keep", 50_000)
            elif asks == "withdraw" and former:
                self._release(former, process, may_arrive=True, how=inside.WITHDRAWAL)
            else:
                self.come(process, None, 50_000, inside.QUEUED)

    def _tick(self, ms: int) -> None:
        before = self.reference.ends()
        self.reference.advance(ms)
        ends = self.reference.ends()
        lefts = [(ends[key] - self.reference.now) // 1000 if key in ends else 0 for key in before]
        keys = [*CLOCK, *(f"{PREFIX}{key}" for key in before)]
        self.client.eval(TICK, len(keys), *keys, *divmod(self.reference.now, 1_000_000), *lefts)

    def _do(self, act: Callable[[], bool]) -> None:
        """``act`` returns whether somebody may get the lock out of turn."""
        self.last, self.sound = act, False
        self._tick(1)
        before, tickets = self.reference.lock, dict(self.reference.queue)
        out_of_turn = act()
        # after any step: nobody has overtaken, and the lock is not free while somebody waits that can be told
        held, first = self.reference.lock, self.reference.in_order()[:1]
        if held is None:
            known = [self.reference.waiters.get(id) for id, _ in first]
            assert out_of_turn or all(waiter is None or waiter.channel == "-" for waiter in known)
        elif self._is_held() and (before is None or before.fence != held.fence):
            assert held.fence > self.granted
            self.granted = held.fence
            assert out_of_turn or all(tickets.get(held.id, math.inf) <= ticket for _, ticket in first)
        self._check()

    def _check(self) -> None:
        """The keys in Redis, and the messages it has published, are those of the reference."""
        reference = self.reference
        ends = reference.ends()
        asked = [LOCK, QUEUE, WAITERS, INDEX, FENCE, *(f"{PREFIX}{key}" for key in ends)]
        found = self.client.eval(LOOK, len(asked), *asked, NAME, f"{PREFIX}*", EAR)
        value, queue, fields, index, fence, keys, lefts = found
        assert (value.decode() if value else None) == (reference.lock.text() if reference.lock else None)
        assert [(id.decode(), int(ticket)) for id, ticket in _pairs(queue)] == reference.in_order()
        planned, waiters = reference.planned, {id.decode(): entry.decode() for id, entry in _pairs(fields)}
        assert waiters.pop("~", "") == (f"{planned.ends} {planned.text()}" if planned else "")
        assert waiters.pop("!", "") == reference.handed_to
        assert set(waiters.pop("?", "").split()) == reference.suspects
        assert waiters == {id: waiter.text() for id, waiter in reference.waiters.items()}
        assert (index is None) == (reference.index is None)
        assert reference.index is None or abs(float(index) - reference.index) < DRIFT * 1000
        assert int(fence or 0) == reference.fence
        stay = {key for key, there in ((INDEX, index), (FENCE, fence)) if there}
        there = {key.decode() for key in keys if not key.startswith(f"{PREFIX}sequence:".encode())}
        assert there == {f"{PREFIX}{key}" for key in ends} | stay
        for key, left in zip(ends, lefts, strict=True):
            assert abs(left - (ends[key] - reference.now) // 1000) < DRIFT, key
        assert self._heard() == reference.messages
        reference.messages.clear()
        self.sound = True

    def teardown(self) -> None:
        """When all have left, nothing stays except the fence and keys that expire by themselves."""
        if not self.sound:
            return
        for id in list(self.reference.queue):
            self._release(self.people[id], 0, may_arrive=False)
        self._force(0, None, inside.SUSPENSION)
        while self.reference.lock:
            self._release(self._holder(), 0, may_arrive=False, how=inside.BEARER)
        self.come(0, None, 21_000, inside.NOT_AT_ALL)  # finds the index as a lease that has ended by itself leaves it
        self.release_held()
        assert not self.reference.queue
        assert self.reference.index is None


def _pairs(words: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(words[::2], words[1::2], strict=True)


def _caller(request: inside.Request) -> Process:
    return Process(request.channel, request.partition.highest_fence, request.partition.channel)


# -- the scripts, by the machine's clock ------------------------------------------------------------------------------


def must_find_a_fault(machine: type[OnServer], number: int) -> None:
    """Assert that the random sequences of the seed ``number`` find a step that differs from the reference."""
    once = settings(QUIETLY, max_examples=1000, phases=[Phase.generate], report_multiple_bugs=False)
    factory: Any = seed(number)(lambda: machine())  # hypothesis would store the seed on the class itself
    with pytest.raises(AssertionError):
        run_state_machine_as_test(factory, settings=once)


M = TypeVar("M", bound=OnServer)


@contextmanager
def prepared(client: redis.Redis, machine: type[M], without: str | None = None) -> Iterator[type[M]]:
    """Prepare the machine; ``without``: the scripts leave out the rule of this name."""
    homes, ear = [inside.Process() for _ in HOMES], client.pubsub()
    try:
        with inside.change_scripts([without] if without else [], CLOCK), pytest.MonkeyPatch.context() as patch:
            for name, value in (("client", client), ("homes", homes), ("ear", ear)):
                patch.setattr(machine, name, value, raising=False)
            yield machine
    finally:
        for one in (*homes, ear):
            one.close()
