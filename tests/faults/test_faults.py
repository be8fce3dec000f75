"""Whatever goes wrong, no two hold a lock at once untold, and all goes on afterwards; what breaks that is found."""

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redislock import Lock, LockPool, get_lock
from django_redislock.testing import hold
from redisserver import RedisServer, redis_server
from tests.helpers.actors import GENEROUS, Crowd, until
from tests.helpers.processes import Worker
from tests.helpers.state import NAME, TOKEN, count
from tests.inside import hears, listen

from .faults import AT_ANY_TIME, FAULTS, PROCESSES, ROWS, Clock, Fault, kill_process, server_with_clock, strike
from .fencing import BUGS, DATABASES, HOUR, STAGES, book, flush
from .on_several import ON_CLUSTER, ON_SENTINELS, count_losses
from .trial import LIMITS, moving, start_launcher, trial
from .worker import MUTANTS, OLD

# for a longer run: how many random faults, one after the other
ROUNDS = int(os.environ.get("REDISLOCK_TEST_FAULTS", "3"))
SEED = int(os.environ.get("REDISLOCK_TEST_SEED", "0")) or random.SystemRandom().getrandbits(32)
TTL = 3  # seconds
SEVERAL = [*ON_SENTINELS, *ON_CLUSTER]
pytestmark = pytest.mark.complete


@pytest.fixture(scope="module")
def launcher(django_db_blocker: Any) -> Iterator[Worker]:
    made = start_launcher()
    with django_db_blocker.unblock():  # for what its workers book
        yield made
    made.kill()


@pytest.fixture
def bare_server() -> Iterator[RedisServer]:
    """A server for the workers alone: this process listens at the session's."""
    with redis_server() as running:
        yield running


@pytest.mark.parametrize("fault", [*FAULTS, *SEVERAL], ids=lambda fault: f"{fault.name}: {fault.title}")
def test_a_fault_alone(fault: Fault, launcher: Worker) -> None:
    workers = 3 if fault in SEVERAL else 2
    with (fault.server or redis_server)() as server, trial(launcher, server, workers, **fault.options) as run:
        run.history.busy = True  # other tests run beside it
        fault.strike(run)
        run.obtained(3)
        assert run.finish() == []
        if not fault.lets_two_in:
            # a holder whose token others have may be considered dead, and is told
            history = run.history
            assert not [pair for pairs, *_ in history.crowds() for pair in pairs if not history.adopted(*pair)]


@pytest.mark.parametrize("kind", [{}, {"limits": LIMITS}, {"leaders": True}], ids=["locks", "semaphores", "leaders"])
def test_faults_at_random(kind: dict[str, Any], launcher: Worker, bare_server: RedisServer) -> None:
    """One after the other, while processes are killed and stopped. REDISLOCK_TEST_FAULTS: how many."""
    print(f"REDISLOCK_TEST_SEED={SEED} REDISLOCK_TEST_FAULTS={ROUNDS}")
    with trial(launcher, bare_server, workers=3, proxied=[0, 1], seed=SEED, **kind) as run:
        run.history.busy = True  # other tests run beside it
        strike(run, [AT_ANY_TIME, PROCESSES], every=0.5, rounds=ROUNDS)
        run.obtained(3)
        assert run.finish() == []


def test_the_documentation_tells_what_happens_then() -> None:
    assert sorted(ROWS) == sorted(fault.title for fault in [*FAULTS, *SEVERAL])


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_in_the_scripts_is_found(name: str, launcher: Worker, bare_server: RedisServer) -> None:
    mutant = MUTANTS[name]
    with trial(launcher, bare_server, mutant=name, limits=mutant.limits) as run:
        assert run.finds(mutant.found, mutant.sections)


@pytest.mark.parametrize("kind", OLD)
def test_old_processes_and_new_ones_are_never_inside_together(
    kind: str, launcher: Worker, bare_server: RedisServer
) -> None:
    with moving(launcher, bare_server, kind) as run:
        run.history.busy = True  # other tests run beside it
        for _ in range(4):
            run.obtained(5)
            kill_process(run)
        run.obtained(3)
        assert run.finish() == []
    assert not [one for one in run.history.sections if one.outcome == "lost"]


def test_without_the_setting_they_are(launcher: Worker, bare_server: RedisServer) -> None:
    """So the checker would see it."""
    with moving(launcher, bare_server, "redis-py", 1, settings={}) as run:
        assert run.finds({"overlap"}, sections=100)


def test_what_a_replica_has_acknowledged_is_not_lost_with_the_master() -> None:
    (without, _), (with_one, _) = count_losses(0, 5), count_losses(1, 5)
    assert without["lost"] > 0
    assert with_one["lost"] == 0
    assert with_one["believed"] > 20


@pytest.mark.parametrize("stage", [*STAGES][1:], ids=lambda stage: stage.__name__)
@pytest.mark.parametrize("database", DATABASES)
def test_no_update_is_lost_under_a_fenced_lock(stage: Any, database: str, launcher: Worker, request: Any) -> None:
    with stage() as server:
        found = book(
            launcher, server, STAGES[stage], sections=100, database=request.getfixturevalue(database), way="fenced"
        )
    assert (found["lost"], found["wrong"]) == (0, 0)
    assert found["sections"] >= 100


@pytest.mark.parametrize(("way", "mutant"), [("unfenced", None), *(("fenced", bug) for bug in BUGS)])
def test_without_a_fence_or_with_a_bug_in_it_updates_are_lost(
    way: str, mutant: str | None, postgres: dict[str, Any], launcher: Worker, bare_server: RedisServer
) -> None:
    for seed in range(5):  # on a busy machine, a booker that has not read yet may be mistaken for one that waits
        found = book(launcher, bare_server, [flush], seed=seed, database=postgres, way=way, mutant=mutant)
        if found["lost"]:
            break
    assert found["lost"] > 0
    assert found["wrong"] or not mutant


@pytest.fixture
def clock(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """The clock of the locks' server, for this process and for workers."""
    with server_with_clock() as server:
        assert isinstance(server, Clock)
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": server.url}}
        monkeypatch.setenv("REDISLOCK_TEST_URL", server.url)
        yield server


@pytest.mark.parametrize("pooled", [False, True], ids=["a lock", "a member"])
def test_a_holder_believes_what_it_asked_for(pooled: bool, clock: Clock, crowd: Crowd) -> None:
    me = crowd()
    LockPool(NAME).extend(["a", "b"])
    held: Any = me(LockPool(NAME), "acquire", ttl=TTL) if pooled else Lock(NAME, ttl=TTL)
    assert pooled or me(held, "acquire")
    clock.set(-HOUR)
    with clock.client() as client:
        before = count(client, "evalsha")
        # renewed more than three times, so that its end by the right time has passed
        until(lambda: count(client, "evalsha") > before + 3 + 1)
    before = me.read(held.remaining)
    assert 0 < before <= TTL
    me(held, "extend", 60)
    assert 60 < me.read(held.remaining) <= TTL + 60
    me(held, "extend", 30, replace_ttl=True)
    assert 0 < me.read(held.remaining) <= 30
    me(held, "reacquire")
    assert 0 < me.read(held.remaining) <= TTL
    clock.set(0)
    with hold(held.name, ttl=HOUR):
        until(lambda: me.read(lambda: held.lost))


@pytest.mark.parametrize("jump", [-HOUR, 30])  # not so far that Redis forgets who waits
def test_a_handoff_counts_for_its_ttl(jump: int, clock: Clock, crowd: Crowd) -> None:
    listen()
    until(hears)  # the waiter does not look again
    me, you = crowd(), crowd()
    first, second = Lock(NAME, ttl=36_000), Lock(NAME, ttl=TTL, auto_renew=False)
    you(first, "acquire")
    waiting = me.start(second, "acquire")
    until(lambda: you(first, "info").waiters)
    clock.set(jump)
    you(first, "release")
    assert waiting.result(GENEROUS)
    clock.set(-2 * HOUR)
    until(lambda: me.read(lambda: second.lost))


def test_what_is_adopted_counts_for_its_ttl(clock: Clock, crowd: Crowd, start: Callable[..., Worker]) -> None:
    """The process that has acquired it died, and the clock jumped back: in Redis, an hour is left of its lease."""
    worker = start(f"Lock({NAME!r}, token={TOKEN!r}, ttl=600).acquire()\nsay('held')\nhear()")
    worker.expect("held")
    worker.kill()
    clock.set(-HOUR)
    me, heir = crowd(), Lock(NAME, token=TOKEN, ttl=60)
    assert me(heir, "acquire")
    assert 0 < me.read(heir.remaining) <= 60


def test_a_grant_that_seems_to_come_from_the_future_is_asked_about(
    clock: Clock, crowd: Crowd, start: Callable[..., Worker]
) -> None:
    """The waiter has looked while the clock was behind, and it was put right since."""
    worker = start(f"with Lock({NAME!r}, ttl=600):\n    say('held')\n    hear()")
    worker.expect("held")
    clock.set(-30)  # not so much that Redis forgets who waits
    me, lock = crowd(), Lock(NAME, ttl=TTL)
    waiting = me.start(lock, "acquire")
    until(lambda: get_lock(NAME).waiters)  # type: ignore[union-attr]
    clock.set(0)
    with clock.client() as client:
        before = count(client, "evalsha")
        worker.tell()
        assert waiting.result(GENEROUS)
        assert count(client, "evalsha") >= before + 2  # the release, and the question
    assert 0 < me.read(lock.remaining) <= TTL


def test_after_a_jump_back_the_members_of_a_pool_take_turns(clock: Clock, crowd: Crowd) -> None:
    me, pool, given = crowd(), LockPool("accounts"), ""
    pool.assign([*"abc"])
    for offset in (0, -HOUR, -HOUR):
        clock.set(offset)
        for _ in range(3):
            member = me(pool, "acquire")
            me(member, "release")
            given += member.key
    assert given == "abcabcabc"


@pytest.mark.parametrize("wanted", ["a lock", "a member", "any member"])
@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_a_jump_back_does_not_prolong_a_suspension(wanted: str, held: bool, clock: Clock, crowd: Crowd) -> None:
    pool = LockPool("accounts")
    pool.assign(["a"])
    lock = Lock(NAME if wanted == "a lock" else "pool:accounts:a")
    if held:
        lock.acquire()
    lock.suspend(0.5)
    clock.set(-HOUR)
    if held:
        lock.release()
    wants = pool if wanted == "any member" else Lock(lock.name)
    assert crowd()(wants, "acquire", blocking_timeout=GENEROUS)
