"""Random sequences of operations on one semaphore by the real scripts, and what must be true after each of them.

Three processes want its permits: two of them at a time, or one and then three. The clock is the machine's, as in
machine.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests import inside
from tests.inside import PREFIX, keys_of
from tests.protocol.machine import CLOCK, EAR, PROCESSES, START, OnServer

NAME = "semaphore:export"
PERMITS, ENDS, QUEUE, WAITERS, INDEX, *_ = keys_of(NAME).all
SPARE = 5_000  # ms for which its keys outlive all leases
# moves the clock on, and the expiry of each key along
TICK = """
redis.call('MSET', KEYS[1], ARGV[1], KEYS[2], ARGV[2])
for _, key in ipairs(redis.call('KEYS', ARGV[3])) do
  local left = redis.call('PTTL', key)
  if left >= 0 then redis.call('PEXPIRE', key, math.max(0, left - ARGV[4])) end
end
"""
LIMITS = st.sampled_from([(2,), (2,), (2,), (1, 3)])
WAITS = st.sampled_from([*[inside.QUEUED] * 5, inside.NOT_AT_ALL, "p1000", "p20000"])
TTLS = st.sampled_from([6_000, 21_000, 50_000])  # handed over: 3, 7 and 17 s
TIMES = st.sampled_from([150, 1_100, 7_100, 28_000])
FIRST = st.integers(0, 2)  # which one of those there are


class Permit(NamedTuple):
    ends: int
    channel: str
    fence: int


class Seen(NamedTuple):
    """What is in Redis, as far as it counts at this time."""

    limit: int  # that was asked for last; 1 where nothing is known
    held: dict[str, Permit]
    tickets: dict[str, int]
    told: set[str]  # who waits, lives, and is told
    polling: set[str]


@dataclass
class Someone:
    process: int
    request: inside.Request
    ticket: int | None = None


class Permits(OnServer):
    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.people: dict[str, Someone] = {}
        self.highest = 0  # of the fences
        self.limits: tuple[int, ...] = (2,)
        self.sound = True  # the last step did what it should
        self._tick(0)
        self._all_live()

    @initialize(limits=LIMITS)
    def begin(self, limits: tuple[int, ...]) -> None:
        self.limits = limits

    @rule(process=PROCESSES, limit=st.integers(0, 1), ttl=TTLS, wait=WAITS, repeats=st.booleans())
    def come(self, process: int, limit: int, ttl: int, wait: str, repeats: bool) -> None:
        """``repeats``: the first answer is lost, so it asks once more as if for the first time."""
        id, most = f"an-attempt-with-no-{len(self.people):04}", self.limits[limit % len(self.limits)]
        request = self.homes[process].request(id, name=NAME, ttl=ttl / 1000, limit=most)
        self.people[id] = Someone(process, request)
        for _ in range(1 + repeats):
            self.people[id].ticket = None
            self._ask(id, wait)

    @rule(first=FIRST, wait=WAITS)
    def look(self, first: int, wait: str) -> None:
        if waiting := list(self._look().tickets):
            self._ask(waiting[first % len(waiting)], wait)

    @precondition(lambda self: self._look().held)
    @rule(first=FIRST, ends=st.booleans())
    def release(self, first: int, ends: bool) -> None:
        """A holder releases, or (``ends``) its lease does; then somebody looks."""
        held = self._look().held
        id = [*held][first % len(held)]
        if not ends:
            self._release(id)
            return
        self._tick(max(1, (held[id].ends - self.now) // 1000 + 1))
        self.come(self.people[id].process, 0, 21_000, inside.NOT_AT_ALL, repeats=False)

    @rule(first=FIRST)
    def withdraw(self, first: int) -> None:
        if waiting := list(self._look().tickets):
            self._release(waiting[first % len(waiting)], how=inside.WITHDRAWAL)

    @precondition(lambda self: self._look().held)
    @rule(first=FIRST, how=st.sampled_from(["keep", "confirm", "set"]), ttl=TTLS)
    def renew(self, first: int, how: str, ttl: int) -> None:
        held = self._look().held
        id = [*held][first % len(held)]

        def act() -> None:
            renewed = self._home(id).renew(self.people[id].request, how, ttl / 1000, held[id].fence)
            assert renewed.state == inside.HELD

        self._do(act, id, serves=False)
        if how == "keep":
            assert self._look().held[id].ends >= self.now + ttl * 1000

    @rule(ms=TIMES)
    def advance(self, ms: int) -> None:
        self._tick(ms)

    def teardown(self) -> None:
        """When all have left, nothing stays except the fence."""
        if not self.sound:
            return
        for id in list(self._look().tickets):
            self._release(id, how=inside.WITHDRAWAL)
        while held := self._look().held:
            self._release(next(iter(held)))
        self._tick(61_000 + SPARE)
        # takes leases that ended by themselves out of the index
        self.come(0, 0, 21_000, inside.NOT_AT_ALL, repeats=False)
        self._release(next(iter(self._look().held)))
        self._tick(61_000 + SPARE)
        assert {*self.client.keys(f"{PREFIX}*")} == {f"{PREFIX}fence".encode()}

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _home(self, id: str) -> inside.Process:
        return self.homes[self.people[id].process]

    def _ask(self, id: str, wait: str) -> None:
        one = self.people[id]

        def act() -> None:
            before = self._look()
            answer = self._home(id).acquire(one.request, wait, one.ticket)
            note(f"  # {id} asks, {wait=}: {answer[:3]}")
            if answer.state == inside.ALREADY:
                assert answer.number == before.held[id].fence
            elif answer.state == inside.GRANTED:
                assert answer.number == self._look().held[id].fence
            elif wait != inside.NOT_AT_ALL:
                assert answer.state == (inside.BUSY if one.ticket is None or id in before.tickets else inside.REQUEUED)
                one.ticket = answer.number
                assert self._look().tickets[id] == one.ticket

        self._do(act, id, serves=id not in self._look().held)

    def _release(self, id: str, how: str = inside.HOLDER) -> None:
        def act() -> None:
            held = id in self._look().held
            released = self._home(id).release(self.people[id].request, how=how)
            note(f"  # {id} is released, {how=}: {released.state}")
            assert released.state == (inside.RELEASED if held else inside.NOT_HELD)
            assert id not in {**self._look().held, **self._look().tickets}

        self._do(act, id, serves=True)

    def _do(self, act: Callable[[], None], id: str, *, serves: bool) -> None:
        """A step of ``id``. ``serves``: no living waiter may be left behind where a permit is free."""
        self._tick(1)
        before, self.sound = self._look(), False
        act()
        after = self._look()
        new = after.held.keys() - before.held.keys()
        note(f"  # {after}")
        assert len(after.held) <= max(self.limits)
        assert not new or len(after.held) <= after.limit
        others = before.held.keys() - {id}
        assert {one: before.held[one] for one in others} == {one: after.held.get(one) for one in others}
        free = after.limit - len(after.held)
        for one in sorted(new, key=lambda one: after.held[one].fence):
            ticket = self.people[one].ticket or after.held[one].fence
            ahead = [other for other, drawn in after.tickets.items() if drawn < ticket]
            assert not after.told & {*ahead}, "somebody was overtaken"
            assert len(after.polling & {*ahead}) <= free
            assert after.held[one].fence > self.highest
            self.highest = after.held[one].fence
        self.client.publish(EAR, "")
        assert {text.split()[1] for _, text in self._heard() if text[0] == "g"} == new - {id}
        if serves and after.told:
            assert free <= len(after.polling), "a permit is free, and somebody waits"
        self.sound = True

    def _look(self) -> Seen:
        with self.client.pipeline() as pipe:
            pipe.hgetall(PERMITS).zrange(ENDS, 0, -1, withscores=True)
            pipe.zrange(QUEUE, 0, -1, withscores=True).hgetall(WAITERS)
            values, ends, queue, entries = pipe.execute()
        held = {}
        for id, end in ends:
            if end > self.now:
                _, channel, _, fence, *_ = values[id].decode().split()
                held[id.decode()] = Permit(int(end), channel, int(fence))
        told, polling = set(), set()
        for id, _ in queue:
            channel, _, until, *_ = entries[id].decode().split()
            if channel in self.subscribed:
                told.add(id.decode())
            elif channel == "-" and int(until) > self.now:
                polling.add(id.decode())
        tickets = {id.decode(): int(ticket) for id, ticket in queue}
        return Seen(int(values.get(b":", 1)), held, tickets, told, polling)

    def _tick(self, ms: int) -> None:
        self.now += ms * 1000
        self.client.eval(TICK, 2, *CLOCK, *divmod(self.now, 1_000_000), f"{PREFIX}*", ms)
