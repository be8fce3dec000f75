"""Random sequences of operations by the real scripts on a real server, against a reference in Python (reference.py).

The clock of the scripts is a key, so that time goes when the machine says so: leases end, tickets age and queues are
forgotten without waiting. Redis's own expiry is moved along. A failing sequence is printed as a program of steps.

The suite draws the same sequences each time: a failure is then the fault of the change under test. With
``REDISLOCK_TEST_EXAMPLES=5000`` there are as many new ones, and a failure prints how to repeat it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from hashlib import sha1
from time import monotonic
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from django_redislock import scripts
from django_redislock.connection import Backend
from django_redislock.steps import run

from .actors import GENEROUS, KEYS, NAME
from .reference import Caller, Reference

EXAMPLES = int(os.environ.get("REDISLOCK_TEST_EXAMPLES", "0"))
QUIETLY = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), stateful_step_count=50)

START = 1_700_000_000_000_000  # microseconds
CLOCK = ("machine:seconds", "machine:micros")
DRIFT = 5_000  # milliseconds that Redis's expiry may be ahead of the machine's clock

TOKENS = st.sampled_from([letter * 22 for letter in "abcde"])
HOMES = {letter * 22: process for letter, process in zip("abcde", (0, 0, 1, 1, 2), strict=True)}
PROCESSES = st.sampled_from(sorted(set(HOMES.values())))
RARELY = st.sampled_from([False] * 7 + [True])
HOWS = st.sampled_from(["keep", "keep", "confirm", "add", "set"])
TTLS = st.sampled_from([21_000, 50_000, 80_000])  # handed over: 7, 17 and 27 s
CROWDS = st.permutations(sorted(HOMES))
WAITS_OF_CROWDS = st.sampled_from([("1",) * 5, ("p1000", "p1000", "1", "p1000", "1"), ("p1000",) * 5])
ENDS = st.sampled_from(["released", "lapsed", "forced"])
ASKS = st.sampled_from(["look", "come", "renew"])
# how a lock goes to the next, and on to the one after
SECOND: dict[str, Any] = {
    "sign": st.sampled_from(["", "", "renewed", "renewed", "seen"]),
    "how": HOWS,
    "ttl": st.sampled_from([10_000, 10_000, 80_000]),  # ends before the lease of the handoff, or after it
    "end": st.sampled_from(["released", "lapsed", "lapsed", "forced", "forced"]),
    "askers": CROWDS,
    "asks": ASKS,
}
FIRST: dict[str, Any] = {
    "tokens": CROWDS,
    "waits": WAITS_OF_CROWDS,
    "ttl": TTLS,
    "forget": st.sampled_from([True, True, False]),
    "age": st.sampled_from([0, 0, 150]),
    "dead": st.sampled_from([(), (), (), (0,), (1,), (2,), (0, 1, 2)]),
    "end": ENDS,
    "askers": CROWDS,
    "asks": ASKS,
    "second": st.fixed_dictionaries(SECOND),
}
# a young ticket, an old one, a polled waiter's missed looks, the lease of a handoff, a queue
WAITS = st.sampled_from(["0", "1", "1", "1", "1", "p1000"])
TIMES = st.sampled_from([40, 150, 1_100, 28_000, 61_000])

Change = Callable[[str], str]


def with_clock(script: scripts.Script, change: Change = lambda source: source) -> scripts.Script:
    """The same script by the machine's clock, and with a change."""
    assert script.source.count("call('TIME')") <= 2
    timed = object.__new__(scripts.Script)
    timed.source = change(script.source).replace("call('TIME')", f"call('MGET', '{CLOCK[0]}', '{CLOCK[1]}')")
    timed.sha = sha1(timed.source.encode()).hexdigest()
    return timed


class Machine(RuleBasedStateMachine):
    # set by the fixture; the processes are their backends, and one ear hears for all of them
    client: Any
    backends: list[Backend]
    ear: Any

    def __init__(self) -> None:
        super().__init__()
        self.client.flushall()
        self.reference = Reference(NAME, START)
        self.tickets: dict[str, int] = {}  # as the waiters know them
        self.granted = 0  # the highest fence
        self.sound = False  # the last step has done what it should
        self.last: Callable[[], None] = lambda: None
        self.modes: dict[str, str] = {}
        self.ear.reset()
        self._subscribe("machine")  # which nobody publishes to: it can be asked even when all are dead
        self.advance(0)
        for process, backend in enumerate(self.backends):
            backend.known = 0
            self.live_or_die(process, dies=False)

    # -- what happens -----------------------------------------------------------------------------------------------

    @initialize(
        modes=st.sampled_from(["FFFFF", "LLLLL", "FLFLF", "LFLLF", "LLFFL"]),
        first=st.none() | st.fixed_dictionaries(FIRST),
    )
    def begin(self, modes: str, first: dict[str, Any] | None) -> None:
        """A waiter does not change its mode from one look to the next."""
        self.modes = dict(zip(HOMES, modes, strict=True))
        if first:
            self.hand_over(**first)

    @rule(
        token=TOKENS,
        wait=WAITS,
        ttl=TTLS,
        forgets=RARELY,
        elsewhere=st.sampled_from([0] * 7 + [1]),
    )
    def acquire(self, token: str, wait: str, ttl: int, forgets: bool, elsewhere: int) -> None:
        """The first try, a later look, a repetition whose answer was lost (it forgets the ticket), an adoption."""
        process, mode = (HOMES[token] + elsewhere) % 3, self.modes[token]
        ticket = None if forgets else self.tickets.get(token)
        owner = f"owner of {token[0]} at {process}"

        def act() -> None:
            expected = self.reference.acquire(self._caller(process), token, mode, wait, ttl, ticket, owner)
            taken = run(
                scripts.acquire(
                    self.backends[process],
                    KEYS,
                    NAME,
                    token,
                    ttl=ttl,
                    mode=mode,
                    wait=wait,
                    ticket=ticket,
                    owner=owner,
                )
            )
            assert (taken.state, taken.number) == expected
            assert taken.us == self.reference.now
            if taken.state != scripts.GONE:
                self._check_left(taken.left)
            if taken.state in (scripts.BUSY, scripts.REQUEUED) and taken.number:
                self.tickets[token] = taken.number

        self._do(act)

    @rule(token=TOKENS, process=PROCESSES, unknown=st.booleans())
    def release(self, token: str, process: int, unknown: bool) -> None:
        """A release, a withdraw, one by another process; ``unknown``: an acquire may still arrive."""

        def act() -> None:
            expected = self.reference.release(self._caller(process), token, unknown=unknown)
            answer = run(scripts.release(self.backends[process], KEYS, NAME, token, unknown=unknown))
            assert answer == (expected, False)
            self.tickets.pop(token, None)

        self._do(act)

    @precondition(lambda self: self.reference.lock is not None)
    @rule()
    def release_held(self) -> None:
        """What the holder does, oftener than chance would have it."""
        held = self.reference.lock
        assert held
        self.release(held.token, self._process_of(held.channel), False)

    @precondition(lambda self: self.reference.lock is not None)
    @rule()
    def lapse(self) -> None:
        """The holder's lease ends, and those who wait are not forgotten yet."""
        if self.reference.left() > 30_000:
            self.renew_held(21_000, "set", 21_000)
        self.advance(self.reference.left())

    @rule(tokens=CROWDS, waits=WAITS_OF_CROWDS, ttl=TTLS, forget=st.booleans())
    def crowd(self, tokens: list[str], waits: tuple[str, ...], ttl: int, forget: bool) -> None:
        """All come, or look; or come anew, so that all of them are young and queue in this order."""
        for token, wait in zip(tokens, waits, strict=True):
            self.acquire(token, wait, ttl, forget, False)

    @rule(**FIRST)
    def hand_over(
        self,
        tokens: list[str],
        waits: tuple[str, ...],
        ttl: int,
        forget: bool,
        age: int,
        dead: tuple[int, ...],
        end: str,
        askers: list[str],
        asks: str,
        second: dict[str, Any],
    ) -> None:
        """All come, some die, and the holder goes; and then the second one, if the lock was handed over."""
        for process in range(len(self.backends)):
            self.live_or_die(process, process in dead)
        self.crowd(tokens, waits, ttl, forget)
        self.advance(age)
        self._end(end, askers, asks)
        if self._is_handed_over():
            self.take_over(**second)

    @precondition(lambda self: self._is_handed_over())
    @rule(**SECOND)
    def take_over(self, sign: str, how: str, ttl: int, end: str, askers: list[str], asks: str) -> None:
        """Who was handed the lock shows that it lives, or does not; and goes as well."""
        if sign == "renewed":
            self.renew_held(ttl, how, 10_000)
        elif sign == "seen":
            held = self.reference.lock
            assert held
            for token, home in HOMES.items():
                if home == self._process_of(held.channel):
                    self.acquire(token, "1", ttl, False, False)
        self._end(end, askers, asks)

    @precondition(lambda self: self.reference.lock is not None)
    @rule(ttl=TTLS, further=st.integers(1, 2))
    def adopt_held(self, ttl: int, further: int) -> None:
        """Another process goes on with the holder's token."""
        held = self.reference.lock
        assert held
        elsewhere = (self._process_of(held.channel) + further - HOMES[held.token]) % 3
        self.acquire(held.token, "1", ttl, False, elsewhere)

    @precondition(lambda self: self.reference.lock is not None)
    @rule(ttl=TTLS, how=HOWS, ms=TTLS, further=st.sampled_from([0, 0, 0, 1]))
    def renew_held(self, ttl: int, how: str, ms: int, further: int = 0) -> None:
        """The holder's token is renewed: by its process, or by another, which does not have it (any more)."""
        held = self.reference.lock
        assert held
        self.renew(held.token, (self._process_of(held.channel) + further) % 3, ttl, how, ms)

    @rule(token=TOKENS, process=PROCESSES, ttl=TTLS, how=HOWS, ms=TTLS)
    def renew(self, token: str, process: int, ttl: int, how: str, ms: int) -> None:
        def act() -> None:
            state, left = self.reference.renew(self._caller(process), token, ttl, how, ms)
            renewed = run(scripts.renew(self.backends[process], KEYS, NAME, token, ttl, how, ms))
            assert (renewed.state, renewed.taken) == (state, state == scripts.LOST and left > 0)
            assert abs((renewed.ends - monotonic()) * 1000 - left) < DRIFT

        self._do(act)

    @rule(process=PROCESSES, below=st.sampled_from([None, None, 0, 1]))
    def force(self, process: int, below: int | None) -> None:
        """Any holder; or only if no later acquisition than that of the holder, or of the one before, holds it."""
        held = self.reference.lock
        fence = None if below is None or held is None else held.fence - below

        def act() -> None:
            expected = self.reference.force(self._caller(process), fence)
            value = run(scripts.force(self.backends[process], KEYS, NAME, fence))
            assert (value.decode() if value else None) == expected

        self._do(act)

    @rule(process=PROCESSES, dies=st.sampled_from([True, False, False]))
    def live_or_die(self, process: int, dies: bool) -> None:
        """A process subscribes, or its subscription ends."""
        channel = self.backends[process].channel
        if dies and channel in self.reference.subscribed:
            self.reference.subscribed.remove(channel)
            self._subscribe(channel, "unsubscribe")
        elif not dies and channel not in self.reference.subscribed:
            self.reference.subscribed.add(channel)
            self._subscribe(channel)

    @rule(ms=TIMES)
    def advance(self, ms: int) -> None:
        """Time goes by: in the scripts' clock and in what is left to each key."""
        # nothing is nearly over: it would end in Redis before it does here
        ms += self.reference.soon_over(ms, 2 * DRIFT)
        self._tick(ms)
        for key in self.client.scan_iter("redislock*"):
            left = self.client.pttl(key)
            if left >= 0:
                if left <= ms + DRIFT:
                    self.client.delete(key)
                else:
                    self.client.pexpire(key, left - ms)
        self._check()

    @rule()
    def flush_scripts(self) -> None:
        self.client.script_flush()

    @rule()
    def repeat(self) -> None:
        """The last request once more, as when its answer was lost."""
        self._do(self.last)

    # -- what must be so ----------------------------------------------------------------------------------------------

    def _tick(self, ms: int) -> None:
        self.reference.advance(ms)
        seconds, micros = divmod(self.reference.now, 1_000_000)
        self.client.mset({CLOCK[0]: seconds, CLOCK[1]: micros})

    def _is_handed_over(self) -> bool:
        return self.reference.lock is not None and self.reference.lock.flag == "h"

    def _end(self, how: str, askers: list[str], asks: str) -> None:
        """The holder goes; where that leaves the lock free, they ask until somebody has it."""
        if self.reference.lock:
            if how == "released":
                self.release_held()
            elif how == "lapsed":
                self.lapse()
            else:
                self.force(HOMES[askers[0]], None)
        for token in askers:
            if self.reference.lock:
                return
            if asks == "renew":
                self.renew(token, HOMES[token], 50_000, "keep", 50_000)
            else:
                self.acquire(token, "1", 50_000, asks == "come", False)

    def _process_of(self, channel: str) -> int:
        return [backend.channel for backend in self.backends].index(channel)

    def _caller(self, process: int) -> Caller:
        backend = self.backends[process]
        return Caller(backend.channel, backend.known)

    def _do(self, act: Callable[[], None]) -> None:
        self.last, self.sound = act, False
        before = self.reference.lock
        self._tick(1)
        act()
        held = self.reference.lock
        if held and (before is None or before.fence != held.fence):
            assert held.fence > self.granted
            self.granted = held.fence
        self._check()

    def _check_left(self, left: int) -> None:
        expected = self.reference.left()
        assert left == expected if expected < 0 else abs(left - expected) < DRIFT

    def _check(self) -> None:
        """What Redis holds, and what it has published, is what the reference has."""
        reference = self.reference
        pipe: Any = self.client.pipeline(transaction=False)
        pipe.get(KEYS.lock).pttl(KEYS.lock).zrange(KEYS.queue, 0, -1, withscores=True).hgetall(KEYS.waiters)
        pipe.zscore("redislock{0}:index", NAME).get("redislock{0}:fence").keys("redislock{0}:gone:*")
        value, left, queue, entries, index, fence, gone = pipe.execute()
        assert (value.decode() if value else None) == (reference.lock.text() if reference.lock else None)
        self._check_left(left)
        assert [(token.decode(), int(ticket)) for token, ticket in queue] == reference.in_order()
        assert entries.pop(b"!", b"-").decode().split() == reference.marks()
        assert {token.decode(): entry.decode() for token, entry in entries.items()} == {
            token: entry.text() for token, entry in reference.entries.items()
        }
        assert (index is None) == (reference.index is None)
        assert index is None or abs(index - reference.index) < DRIFT * 1000
        assert int(fence or 0) == reference.fence
        assert {key.decode().rpartition(":")[2] for key in gone} == set(reference.gone)
        assert self._heard() == reference.messages
        reference.messages.clear()
        self.sound = True

    def _subscribe(self, channel: str, how: str = "subscribe") -> None:
        getattr(self.ear, how)(channel)
        message = self.ear.get_message(timeout=GENEROUS)
        assert message
        assert message["type"] == how

    def _heard(self) -> list[tuple[str, str]]:
        """All that was published before now: channel and text."""
        self.ear.ping()
        heard: list[tuple[str, str]] = []
        while True:
            message = self.ear.get_message(timeout=GENEROUS)
            assert message
            if message["type"] == "pong":
                return heard
            heard.append((message["channel"].decode(), message["data"].decode()))

    def teardown(self) -> None:
        """When all have left, nothing stays but the fence, and what is forgotten within a minute."""
        if not self.sound:
            return
        for token in list(self.reference.queue):
            self.release(token, 0, False)
        while self.reference.lock:
            self.release(self.reference.lock.token, 0, False)
        left = {key.decode() for key in self.client.keys("redislock*")}
        if self.reference.index is None:
            assert "redislock{0}:index" not in left
        for key in left - {"redislock{0}:fence", "redislock{0}:index"}:
            assert key == KEYS.waiters or ":gone:" in key
            assert 0 < self.client.pttl(key) <= 60_000
        if KEYS.waiters in left:
            assert self.client.hkeys(KEYS.waiters) == [b"!"]


NAMES = ("acquire", "release", "renew", "force")


@pytest.fixture
def machine(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """The machine, with the scripts changed if need be."""

    def machine(changed: str = "", change: Change = lambda source: source) -> type[Machine]:
        for name in NAMES:
            script = with_clock(scripts.Script(name), *([change] if name == changed else []))
            monkeypatch.setitem(scripts._BY_SHA, script.sha, script)
            monkeypatch.setattr(scripts, f"_{name.upper()}", script)
        return Machine

    backends, ear = [Backend("default", "redislock") for _ in range(3)], client.pubsub()
    for name, value in (("client", client), ("backends", backends), ("ear", ear)):
        monkeypatch.setattr(Machine, name, value, raising=False)
    yield machine
    for one in (*backends, ear):
        one.close()


@pytest.mark.timeout(0 if EXAMPLES else 180)
def test_the_scripts_do_what_the_reference_says(machine: Callable[..., type[Machine]]) -> None:
    run_state_machine_as_test(
        machine(),
        settings=settings(QUIETLY, max_examples=EXAMPLES or 200, derandomize=not EXAMPLES, print_blob=True),
    )


# what is wrong: (script, what it says, what the mutant says)
MUTANTS = {
    "release compares no token": ("release", "if string.sub(held, 1, #mine) == mine then", "if true then"),
    "release compares the first letter": ("release", "its == ARGV[2]", "its:sub(1, 1) ~= ARGV[2]:sub(1, 1)"),
    "release passes on to nobody": ("release", "return {was_held, hand_on(alive)}", "return {was_held, 0}"),
    "release of an adopted token tells nobody": ("release", "redis.pcall('PUBLISH', at, 'x '", "tostring(at, 'x '"),
    "release leaves no trace of what may arrive": ("release", "call('SET', gone, '1', 'PX', 60000)", ""),
    "a newcomer skips the queue": ("acquire", "'EXISTS', lock, queue, gone", "'EXISTS', lock, gone"),
    "a token that is gone is granted the lock": ("acquire", "elseif over then\n  return {3, us, 0, 0}\n", ""),
    "a token that is gone is queued": ("acquire", "~= '0' and not over then", "~= '0' then"),
    "fences do not grow": ("acquire", "if last >= fence then", "if false then"),
    "who was dropped is not told so": ("acquire", "then state = 5 end", "then end"),
    "a look is no sign of life": ("acquire", "if at then", "if false then"),
    "an adoption tells nobody": ("acquire", "redis.pcall('PUBLISH', at, 'x '", "tostring(at, 'x '"),
    "an adoption shortens the lease": ("acquire", "left = math.max(left, tonumber(ttl))", "left = tonumber(ttl)"),
    "who asks does not know itself in the queue": ("acquire", "if token == me then", "if false then"),
    "a Lock overtakes nobody": ("acquire", "my_mode == 'L' and not patient", "false"),
    "a Lock overtakes for ever": ("acquire", "age < 0 or age >= 100000", "false"),
    "a Lock overtakes a FairLock": ("acquire", "local patient = mode == 'F' or", "local patient ="),
    "a queue is never forgotten": ("acquire", "call('PEXPIRE', queue, 60000)", ""),
    "a polled waiter is never dropped": ("acquire", "if us < tonumber(till) then", "if true then"),
    "the dead are granted the lock": ("release", "redis.pcall('PUBSUB', 'NUMSUB', channel)[2] == 0", "false"),
    "a handoff is not published": ("release", "redis.pcall('PUBLISH', channel, message)", ""),
    "a handoff has the whole lease": ("release", "math.min(ttl, math.max(3000, math.floor(ttl / 3)))", "ttl"),
    "a handoff leaves no trace": ("release", "mark(channel)", ""),
    "who did not take a handoff is not suspect": ("acquire", "= 'suspect' end", "= nil end"),
    "when all are dead the lock stays listed": (
        "release", "call('ZREM', KEYS[4], name)\n      return 'take'", "return 'take'"
    ),
    "renew does not list the new end": ("renew", "call('ZADD', KEYS[4], us + left * 1000, name)\n", "\n"),
    "renew compares no token": ("renew", "if token ~= ARGV[2] then", "if false then"),
    "renew compares no channel": ("renew", "if channel ~= ARGV[3] then return {2, us, 0} end", ""),
    "renew shortens the lease": ("renew", "left = math.max(left, ms)", "left = ms"),
    "renew does not pass on": ("renew", "\n  hand_on()\n", "\n"),
    "a confirmation shortens the lease": ("renew", "math.max(left, math.ceil(", "(math.ceil("),
    "a confirmation is no sign of life": ("renew", "local marks = call('HGET', waiters, '!')", "local marks"),
    "force looks at no fence": ("force", "tonumber(fence) > tonumber(ARGV[2])", "false"),
    "force does not tell the holder": ("force", "redis.pcall('PUBLISH', channel, 'f '", "tostring(channel, 'f '"),
    "force suspects the holder whom it told": ("force", "alive = channel", ""),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_machine_finds_a_script_that_is_wrong(mutant: str, machine: Callable[..., type[Machine]]) -> None:
    name, snippet, instead = MUTANTS[mutant]

    def change(source: str) -> str:
        assert source.count(snippet) == 1
        return source.replace(snippet, instead)

    wrong = machine(name, change)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            wrong,
            settings=settings(
                QUIETLY, max_examples=400, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False
            ),
        )
