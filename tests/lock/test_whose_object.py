"""A Lock object speaks of its own acquisition, in all its methods; how long that is renewed; and its blocks."""

import contextlib
import gc
import inspect
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async

import django_redislock
from django_redislock import (
    FairLock,
    Lock,
    LockLost,
    LockNotOwned,
    LockPool,
    LockStatus,
    PoolMember,
    aforce_release,
    lock_name,
)
from tests.helpers.actors import GENEROUS, RUNS, Crowd, until
from tests.helpers.state import LOCK, NAME, holder
from tests.inside import keys_of, renew_all
from tests.project.programs import run_code

from .kin import Kin, both, in_a_task

Ask = Callable[[Kin, Lock], Coroutine[Any, Any, Any]]
TTL = 4.5
Way = Callable[[Kin, Any], contextlib.AbstractAsyncContextManager[None]]
MEMBER = lock_name("pool", "seats", "a")


def method(name: str, *args: Any, **options: Any) -> Ask:
    return lambda kin, lock: kin(lock, name, *args, **options)


def read(look: Callable[[Lock], Any]) -> Ask:
    async def ask(kin: Kin, lock: Lock) -> Any:
        return look(lock)

    return ask


# what is asked, and what an object answers that holds nothing while the lock is held
ANSWERS: dict[str, tuple[Ask, Any]] = {
    "owned": (method("owned"), False),
    "status": (method("status"), LockStatus.UNAVAILABLE),
    "locked": (method("locked"), True),  # by anybody
    "lost": (read(lambda lock: lock.lost), False),
    "remaining": (read(lambda lock: lock.remaining()), 0.0),
    "token": (read(lambda lock: lock.token), None),
    "acquire": (method("acquire", blocking=False), False),
}
# what an error says that it cannot do
REFUSED: dict[str, tuple[Ask, str]] = {
    "release": (method("release"), "release"),
    "extend": (method("extend", 1), "extend"),
    "reacquire": (method("reacquire"), "extend"),
    "detach": (method("detach"), "detach"),
    "check": (read(lambda lock: lock.check()), "use"),
    "fence": (read(lambda lock: lock.fence), "read the fence of"),
    "exit": (method("exit", None, None, None), "release"),  # of a block that was never entered
}
OTHERS = ["another object", "child", "stranger"]


async def asked_by(who: str, kin: Kin, shared: Lock, ask: Ask) -> Any:
    """What another object, or the same in another thread or task, answers; the holder still speaks of its lock."""
    await kin(shared, "acquire")
    known = shared.fence, shared.token
    try:
        if who == "another object":
            return await ask(kin, Lock(NAME))
        return await kin.end(kin.child(lambda: ask(kin, shared), stranger=who == "stranger"))
    finally:
        assert (shared.fence, shared.token) == known
        assert await kin(shared, "owned")
        assert await kin(shared, "status") is LockStatus.LOCKED
        assert not shared.lost
        assert shared.remaining() > 0
        shared.check()
        assert await kin(shared, "extend", 1)
        assert await kin(shared, "reacquire")
        await kin(shared, "release")
        assert await kin.info() is None


@pytest.mark.parametrize("who", OTHERS)
@pytest.mark.parametrize("what", ANSWERS)
@both
async def test_whoever_has_not_acquired_a_lock_holds_nothing(kin: Kin, who: str, what: str) -> None:
    ask, answer = ANSWERS[what]
    assert await asked_by(who, kin, Lock(NAME), ask) == answer


@pytest.mark.parametrize(("who", "reentrant"), [*((who, False) for who in OTHERS), ("stranger", True)])
@pytest.mark.parametrize("what", REFUSED)
@both
async def test_whoever_has_not_acquired_a_lock_is_refused(kin: Kin, who: str, what: str, reentrant: bool) -> None:
    """Also after an ``acquire`` of its own that failed: many release whatever came of that."""

    async def careless(kin: Kin, lock: Lock) -> None:
        assert not await kin(lock, "acquire", blocking=False)
        await REFUSED[what][0](kin, lock)

    words = r"(?i)another\b.*\bobject" if who == "another object" else None
    for ask in (REFUSED[what][0], careless):
        with pytest.raises(LockNotOwned, match=words):
            await asked_by(who, kin, Lock(NAME, reentrant=reentrant), ask)


@pytest.mark.parametrize("what", REFUSED)
@both
async def test_an_object_is_refused_in_other_words_where_nobody_here_holds_the_lock(kin: Kin, what: str) -> None:
    ask, verb = REFUSED[what]
    text = f"^Cannot {verb} the lock '{NAME}': this thread or task does not hold it"
    with pytest.raises(LockNotOwned, match=text) as caught:
        await ask(kin, Lock(NAME))
    assert (type(caught.value), caught.value.name) == (LockNotOwned, NAME)
    assert "another" not in str(caught.value).lower()
    assert await kin.info() is None


@pytest.mark.parametrize("objects", ["one object", "two objects", "a plain one first"])
@both
async def test_reentrant_objects_count_their_own_acquisitions(kin: Kin, objects: str) -> None:
    """As ``threading.RLock`` does for each, and the lock is free after the last."""
    first = Lock(NAME, reentrant=objects != "a plain one first")
    second = first if objects == "one object" else Lock(NAME, reentrant=True)
    for lock, blocking in ((first, True), (second, True), (second, False)):
        assert await kin(lock, "acquire", blocking=blocking)
    assert first.fence == second.fence
    for lock in (second, first, second):
        assert await kin(lock, "owned")
        await kin(lock, "release")
    for lock in (first, second):
        with pytest.raises(LockNotOwned):
            await kin(lock, "release")
    assert await kin.info() is None


@in_a_task
@pytest.mark.complete
async def test_a_lock_whose_task_has_ended_is_renewed_while_its_object_and_its_event_loop_live(kin: Kin) -> None:
    """The event loop may still give it back: in a tear-down, say."""
    lock = Lock(NAME, ttl=TTL)
    await kin.end(kin.child(lambda: kin(lock, "acquire")))
    for _ in range(2):
        assert await kin.renewed(TTL)


@both
@pytest.mark.complete
async def test_a_lock_whose_object_is_dropped_ends_with_its_ttl_and_is_not_released(
    kin: Kin, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, as it was renewed until then."""
    lock = Lock(NAME, ttl=2 * TTL)
    await kin(lock, "acquire")
    assert await kin.renewed(2 * TTL)
    del lock
    gc.collect()
    assert await kin.info() is not None
    assert not await kin.renewed(2 * TTL)
    await kin.until(lambda: NAME in caplog.text)
    assert len([one for one in caplog.records if one.levelname == "WARNING" and NAME in one.getMessage()]) == 1


@pytest.mark.complete
def test_a_lock_is_renewed_after_the_sync_code_of_a_task_or_the_coroutine_of_sync_code_that_acquired_it() -> None:
    async def task() -> None:
        for how in ("one thread", "any thread"):
            assert await RUNS[how](lock.acquire)
            assert await Kin(tasks=True).renewed(TTL)
            await lock.arelease()

    async def code() -> None:
        assert async_to_sync(lock.aacquire)()
        assert await Kin(tasks=False).renewed(TTL)
        lock.release()

    lock = Lock(NAME, ttl=TTL)
    Kin(tasks=True).live(task())
    Kin(tasks=False).live(code())


@pytest.mark.parametrize("number", [300, pytest.param(3_000, marks=pytest.mark.complete)])
@both
async def test_many_locks_are_held_and_released_in_one_thread_or_task(kin: Kin, number: int) -> None:
    locks = [Lock(f"seat:{seat}", ttl=600) for seat in range(number)]
    for lock in locks:
        assert await kin(lock, "acquire")
    random.Random(7).shuffle(locks)

    async def child() -> None:
        for lock in locks[:50]:
            assert not await kin(Lock(lock.name), "acquire", blocking=False)

    await child()
    await kin.end(kin.child(child))
    for lock in locks:
        lock.check()
        await kin(lock, "release")
    assert not any([await kin(lock, "locked") for lock in locks[:50]])


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_lost_lock_is_not_entered_again_or_refused_but_acquired_anew(
    reentrant: bool, crowd: Crowd, client: redis.Redis
) -> None:
    """Redis is asked first, before the error about waiting for oneself is raised."""
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, reentrant=reentrant, on_lost=losses.append)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    client.delete(LOCK)
    assert me(lock, "acquire")
    assert me.read(lambda: lock.fence) > fence
    until(lambda: [loss.fence for loss in losses] == [fence])
    me(lock, "release")
    assert holder(client) == ""


def test_whoever_has_lost_many_locks_goes_on_with_new_ones(me: Any) -> None:
    for ttl in (0.5, 600):  # it waits for its own lock, as that ends by itself
        locks = [Lock(f"seat:{number}", ttl=ttl, auto_renew=False) for number in range(60)]
        for lock in locks:
            assert me(lock, "acquire")
    for lock in locks:
        me(lock, "release")


class Subclass(Lock):
    """As sites have them, with something of their own at the end of each block."""

    def __exit__(self, *error: Any) -> Any:
        return super().__exit__(*error)

    async def __aexit__(self, *error: Any) -> Any:
        return await super().__aexit__(*error)


@contextlib.asynccontextmanager
async def by_statement(kin: Kin, manager: Any) -> AsyncIterator[None]:
    if kin.tasks:
        async with manager:
            yield
    else:
        with manager:
            yield


@contextlib.asynccontextmanager
async def by_a_stack_that_was_moved(kin: Kin, manager: Any) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(manager) if kin.tasks else stack.enter_context(manager)
        moved = stack.pop_all()
    async with moved:
        yield


@contextlib.asynccontextmanager
async def by_the_type(kin: Kin, manager: Any) -> AsyncIterator[None]:
    """Looked up there first, as ``enterContext()`` of unittest does it."""
    enter, exit = (getattr(type(manager), f"__{'a' * kin.tasks}{method}__") for method in ("enter", "exit"))
    await enter(manager) if kin.tasks else enter(manager)
    failed: Any = None, None, None
    try:
        yield
    except BaseException as error:
        failed = type(error), error, error.__traceback__
        raise
    finally:
        await exit(manager, *failed) if kin.tasks else exit(manager, *failed)


WAYS: list[Way] = [by_statement, by_a_stack_that_was_moved, by_the_type]
every_way = pytest.mark.parametrize("way", WAYS)

MANAGERS: dict[str, Callable[[], Any]] = {
    "Lock": lambda: Lock(NAME),
    "reentrant": lambda: FairLock(NAME, reentrant=True),
    "subclass": lambda: Subclass(NAME),
    "pool member": lambda: LockPool("seats"),
}


@every_way
@pytest.mark.parametrize("which", MANAGERS)
@both
async def test_a_lock_is_held_until_its_context_manager_is_left(kin: Kin, way: Way, which: str) -> None:
    made, name = MANAGERS[which](), MEMBER if which == "pool member" else NAME
    if which == "pool member":
        await kin(made, "extend", ["a"])
    for fails in (False, True, False):
        with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
            async with way(kin, await kin(made, "acquire") if which == "pool member" else made):
                assert await kin.info(name) is not None
                if fails:
                    raise ZeroDivisionError
        assert await kin.info(name) is None


@every_way
@both
async def test_a_reentrant_object_is_held_until_its_outermost_block_is_left(kin: Kin, way: Way) -> None:
    lock = Lock(NAME, reentrant=True)
    async with way(kin, lock):
        async with way(kin, lock), way(kin, Lock(NAME, reentrant=True)):
            assert await kin(lock, "owned")
        assert await kin(lock, "owned")
    assert await kin.info() is None


@every_way
@both
async def test_a_lock_that_was_lost_in_its_block_is_told_at_its_end(kin: Kin, way: Way) -> None:
    with pytest.raises(LockLost):
        async with way(kin, Lock(NAME)):
            await kin(django_redislock, "force_release", NAME)


@every_way
@both
async def test_a_block_ends_what_was_acquired_again_in_it_and_says_so_if_nothing_is_held(kin: Kin, way: Way) -> None:
    lock = Lock(NAME)
    async with way(kin, lock):
        await kin(lock, "release")
        await kin(lock, "acquire")
    assert await kin.info() is None
    with pytest.raises(LockNotOwned):
        async with way(kin, lock):
            await kin(lock, "release")
    with pytest.raises(ZeroDivisionError):
        async with way(kin, lock):
            raise ZeroDivisionError(await kin(lock, "release"))


async def test_what_sync_code_of_a_task_has_lost_it_can_acquire_again() -> None:
    lock = Lock(NAME, ttl=600)
    for _ in range(2):
        assert await sync_to_async(lock.acquire)()
        assert await aforce_release(NAME)
        with pytest.raises(LockLost):
            await sync_to_async(lock.extend)(1)
    assert await sync_to_async(lock.acquire)()
    assert not await sync_to_async(lambda: lock.lost)()
    await sync_to_async(lock.release)()


@both
async def test_a_lock_that_only_its_block_refers_to_is_renewed(kin: Kin, client: redis.Redis) -> None:
    keys = [keys_of(f"{NAME}:{number}").lock for number in range(len(WAYS))]
    async with contextlib.AsyncExitStack() as stack:
        for number, way in enumerate(WAYS):
            await stack.enter_async_context(way(kin, Lock(f"{NAME}:{number}", ttl=600)))
            assert client.pexpire(keys[number], 300_000)
        gc.collect()
        renew_all()  # as after a reconnect, and not when a third of the TTL has passed
        await kin.until(lambda: all(client.pttl(key) > 300_000 for key in keys))


@pytest.mark.parametrize("kind", [Lock, PoolMember])
def test_the_end_of_an_async_block_is_a_coroutine_function(kind: type[Lock]) -> None:
    """Else ``enterAsyncContext()`` does not await it."""
    assert inspect.iscoroutinefunction(kind.__aexit__)


@pytest.mark.parametrize("others", [[NAME], [f"{NAME}:{number}" for number in range(20)]], ids=["same", "many"])
@pytest.mark.parametrize("run", [lambda use: use(), lambda use: async_to_sync(sync_to_async(use))()], ids=["", "view"])
def test_a_lock_that_is_lost_is_still_spoken_of_when_others_are_acquired(run: Any, others: list[str]) -> None:
    def use() -> None:
        lock = Lock(NAME)
        assert lock.acquire()
        assert django_redislock.force_release(NAME)
        until(lambda: lock.lost)
        with contextlib.ExitStack() as stack:
            for name in others:
                stack.enter_context(Lock(name))
            with pytest.raises(LockLost):
                lock.check()
            with pytest.raises(LockLost):
                lock.release()

    run(use)


def test_the_lock_of_a_generator_that_is_collected_is_released() -> None:
    def part() -> Iterator[None]:
        with Lock(NAME):
            yield

    cycle: list[Any] = [part()]
    cycle.append(cycle)
    next(cycle[0])
    del cycle
    gc.collect()
    assert Lock(NAME).acquire(blocking_timeout=GENEROUS)


def test_generators_that_hold_locks_may_be_collected_at_any_moment() -> None:
    """Within ContextVar.set() too, before Python 3.12."""
    code = f"""
        import gc
        from contextvars import ContextVar
        from django_redislock import Lock
        variables = [ContextVar(str(number)) for number in range(12)]

        def part(name):
            with Lock(name):
                yield

        gc.set_threshold(50)
        for number in range(2000):
            cycle = [part("{NAME}:%d" % number)]
            cycle.append(cycle)
            next(cycle[0])
            for each in variables:
                each.set([number])
            assert all(each.get() == [number] for each in variables)
    """
    run_code(code)
