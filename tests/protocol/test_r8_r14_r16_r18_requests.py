"""Requests that come late (R16) or are sent again (R8, R14) have done their work once, and touch nothing newer; an
exception that a signal handler raises at any moment leaves nothing behind (R18)."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import BaseCommand, call_command
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from redis.backoff import NoBackoff
from redis.retry import Retry

import django_redislock
from django_redislock import (
    Counter,
    Lock,
    LockedCommand,
    LockLost,
    LockNotOwned,
    LockPool,
    LockSet,
    LockStatus,
    LockUnavailable,
    Semaphore,
    force_release,
    leader,
    locked,
    locked_view,
)
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Other, auntil, server_time, until
from tests.helpers.cancelling import Interrupt, Interrupter, interrupters
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, fence_of, holder, leftovers, put, queued, value
from tests.inside import (
    ACQUIRE_PERMIT,
    CHECKOUT,
    PREFIX,
    WHERE_LOCKS_ARE_ACQUIRED,
    Ears,
    kept_by_callers,
    keys_of,
    leases,
)

from .conftest import ACQUIRE, LONG, POOL, RELEASE, SEMAPHORE, Join, Waiting, listed, renew_all, subscribed


@pytest.mark.parametrize("end", ["released", pytest.param("left", marks=pytest.mark.complete), "detached", "forced"])
def test_r8_a_request_that_arrives_after_its_repetition_when_its_attempt_is_over_does_nothing(
    end: str, impatient: Proxy, me: Any, client: redis.Redis, retry_for: Callable[[float], None]
) -> None:
    """What releases an attempt of which a request may still arrive leaves a mark, which that one honours."""
    retry_for(GENEROUS)
    if end == "left":
        Lock(NAME, ttl=LONG).acquire()
        subscribed("other")
    patience = 3 if end == "left" else GENEROUS  # its answers are late, and may be again
    lock, before = Lock(NAME, using="other", ttl=LONG, blocking_timeout=patience), holder(client)
    late = impatient.hold_request(ACQUIRE)
    assert me(lock, "acquire") is (end != "left")
    assert late.caught.is_set()
    if end == "released":
        me(lock, "release")
    elif end == "detached":
        with Lock(NAME, token=me(lock, "detach"), adopt=True):
            pass
    elif end == "forced":
        assert force_release(NAME)
    until(lambda: client.keys("*gone:*"))
    late.arrive()
    assert (holder(client), queued(client)) == (before, 0)


def test_r8_a_request_that_arrives_after_its_caller_gave_up_leaves_no_orphan(
    impatient: Proxy, crowd: Crowd, client: redis.Redis
) -> None:
    late = [impatient.hold_request(ACQUIRE) for _ in range(30)]
    with pytest.raises(LockUnavailable):
        crowd()(Lock(NAME, using="other"), "acquire", blocking=False)
    until(lambda: client.keys("*gone:*"))
    met = until(lambda: [trouble for trouble in late if trouble.caught.is_set()])
    for trouble in late:
        trouble.let_go()
    assert all(trouble.over.wait(GENEROUS) for trouble in met)
    assert holder(client) == ""


@pytest.mark.parametrize("end", ["detached", "forced", "renewed"])
def test_r8_an_acquire_that_arrives_when_its_lock_has_gone_on_to_others_does_nothing(
    end: str, impatient: Proxy, crowd: Crowd, client: redis.Redis, retry_for: Callable[[float], None]
) -> None:
    retry_for(GENEROUS)
    me, lock = crowd(), Lock(NAME, using="other", ttl=LONG)
    late = impatient.hold_request(ACQUIRE)
    assert me(lock, "acquire")
    if end == "detached":
        with Lock(NAME, token=me(lock, "detach"), adopt=True):
            pass
    elif end == "forced":
        assert force_release(NAME)
    else:
        renew_all("other")
    until(lambda: client.keys("*gone:*"))
    client.delete(LOCK)  # its lease has ended
    late.arrive()
    assert holder(client) == ""


def test_r8_what_arrives_after_its_repetition_neither_shortens_a_lease_nor_suspends_nor_resumes(
    impatient: Proxy, crowd: Crowd, client: redis.Redis, retry_for: Callable[[float], None]
) -> None:
    retry_for(GENEROUS)
    me, lock = crowd(), Lock(NAME, using="other", ttl=LONG, auto_renew=False)
    me(lock, "acquire")
    late = impatient.hold_request("\r\nset\r\n")
    me(lock, "extend", 20, replace_ttl=True)
    me(lock, "extend", 3600)
    late.arrive()
    assert client.pttl(LOCK) > 3_000_000
    me(lock, "release")
    late = impatient.hold_request(f"{PREFIX}queue:{NAME}")
    me(lock, "suspend", 3600)
    assert me(lock, "resume")
    late.arrive()
    assert me(lock, "status") is LockStatus.FREE
    me(lock, "suspend", 3600)
    late = impatient.hold_request("\r\ns\r\n")
    assert me(lock, "resume")
    me(lock, "suspend", 3600)
    late.arrive()
    assert me(lock, "status") is LockStatus.UNAVAILABLE


def test_r8_a_suspension_that_was_given_up_does_not_begin_after_a_resume(
    impatient: Proxy, crowd: Crowd, retry_for: Callable[[float], None]
) -> None:
    """Though the same outage has met others of its process."""
    retry_for(GENEROUS)
    me, you, lock, counter = crowd(), crowd(), Lock(NAME, using="other"), Counter("visits", using="other")
    me(lock, "suspend", 1)  # the scripts are known
    assert me(lock, "resume")
    you(counter, "incr")
    late, lost = (impatient.hold_request(f"{PREFIX}{key}") for key in (f"queue:{NAME}", "counter:"))
    retry_for(0)
    suspending = me.start(lock, "suspend", 3600)
    assert late.caught.wait(GENEROUS)
    counting = you.start(counter, "incr")
    for given_up in (suspending, counting):
        with pytest.raises(LockUnavailable):
            given_up.result(GENEROUS)
    lost.end()
    retry_for(GENEROUS)
    assert not me(lock, "resume")
    late.arrive()
    assert me(lock, "status") is LockStatus.FREE


@pytest.mark.parametrize(
    ("word", "given_up", "then"),
    [
        ("set", ("extend", 20, True), ("extend", LONG, False)),
        ("detach", ("detach", 20), ("detach", LONG)),
        pytest.param("detach", ("detach", 20), None, marks=pytest.mark.complete),
    ],
    ids=["shorter", "detached", "renewed"],
)
def test_r8_what_moves_a_lease_and_arrives_after_its_caller_gave_up_undoes_no_later_move(
    word: str, given_up: Any, then: Any, impatient: Proxy, crowd: Crowd, client: redis.Redis,
    retry_for: Callable[[float], None],
) -> None:  # fmt: skip
    def move(method: str, seconds: float, *replaces: bool) -> None:
        me(lock, method, seconds, **({"replace_ttl": True} if any(replaces) else {}))

    retry_for(GENEROUS)
    me, lock = crowd(), Lock(NAME, using="other", ttl=LONG, auto_renew=then is None)
    me(lock, "acquire")
    me(lock, "extend", 1)  # the script is known
    late = impatient.hold_request(f"\r\n{word}\r\n")
    retry_for(0)
    with pytest.raises(LockUnavailable):
        move(*given_up)
    retry_for(GENEROUS)
    if then is None:
        until(lambda: me.read(lock.remaining) > 20)
    else:
        move(*then)
    before = client.pttl(LOCK)
    late.arrive()
    assert abs(client.pttl(LOCK) - before) < GENEROUS * 1000


def test_r8_a_lock_whose_release_may_still_arrive_is_not_used_again(
    impatient: Proxy, crowd: Crowd, client: redis.Redis, retry_for: Callable[[float], None]
) -> None:
    """Its release() has raised LockUnavailable."""
    retry_for(GENEROUS)
    me, lock = crowd(), Lock(NAME, using="other", ttl=LONG)
    me(lock, "acquire")
    late = impatient.hold_request(RELEASE)
    retry_for(0)
    with pytest.raises(LockUnavailable):
        me(lock, "release")
    retry_for(GENEROUS)
    with pytest.raises(LockNotOwned, match="release\\(\\) has failed, and may have been carried out"):
        me(lock, "extend", LONG)
    with pytest.raises(LockNotOwned):
        me.read(lock.check)
    late.arrive()
    assert holder(client) == ""
    me(lock, "release")


def test_r8_a_leader_whose_acquire_may_still_arrive_keeps_its_lock_to_the_end_of_its_term(
    impatient: Proxy, client: redis.Redis, retry_for: Callable[[float], None]
) -> None:
    """It is told a second before: nobody else leads meanwhile."""
    retry_for(GENEROUS)
    late = impatient.hold_request(ACQUIRE)
    with leader(NAME, using="other", ttl=3, max_hold=1) as term:
        assert term.lead()
        ends = server_time(client) + (client.pttl(LOCK) - 10) * 1000  # the two are not asked at one moment
        until(lambda: not term.lead())
        until(lambda: not client.exists(LOCK))
        assert server_time(client) >= ends
    late.let_go()


class Unwanted(Retry):
    """The retries of an alias."""

    def call_with_retry(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError


RETRIES = {"retry": Unwanted(NoBackoff(), 10), "retry_on_error": [redis.ConnectionError], "retry_on_timeout": True}


@pytest.mark.parametrize("options", [{}, {"CONNECTION_POOL_KWARGS": RETRIES}], ids=["", "retries of the alias"])
def test_r8_a_grant_and_a_release_whose_answers_were_lost_have_succeeded(
    options: dict[str, Any], network: Proxy, add_alias: Callable[..., str], crowd: Crowd, client: redis.Redis
) -> None:
    """The lock is not busy because of itself, nor lost because it was released. Only we repeat, and know that we do."""
    add_alias(network.url, **options)
    me, lock = crowd(), Lock(NAME, blocking=False, using="other")
    network.lose_answer(ACQUIRE)
    assert me(lock, "acquire")
    granted = value(client)
    assert (granted[0], int(granted[3])) == me.read(lambda: (lock.token, lock.fence))
    lost = network.lose_answer(LOCK)
    me(lock, "release")
    assert lost.over.is_set()
    assert holder(client) == ""
    with pytest.raises(LockNotOwned):
        me(lock, "release")


@pytest.mark.parametrize(
    ("thing", "word", "name"),
    [
        (partial(Lock, NAME), ACQUIRE, NAME),
        (partial(Semaphore, "export", limit=1), ACQUIRE_PERMIT, SEMAPHORE),
        (partial(LockPool, "accounts"), CHECKOUT, POOL),
    ],
    ids=["lock", "semaphore", "pool"],
)
def test_r8_a_waiter_who_asks_again_as_its_answer_was_lost_keeps_its_place(
    thing: Callable[..., Any], word: str, name: str, network: Proxy, crowd: Crowd, join: Join, client: redis.Redis
) -> None:
    if name == POOL:
        LockPool("accounts").assign(["alice"])
    me = Waiting(crowd(), thing())
    me.result()
    subscribed("other")
    network.lose_answer(word)
    repeated = network.hold_request(word, every=2)
    first = join(thing(using="other"))
    assert repeated.caught.wait(GENEROUS)
    second = join(thing())
    in_order = listed(client, name)
    repeated.arrive()
    assert listed(client, name) == in_order
    for ahead, waiting in pairwise([me, first, second]):
        ahead.release()
        waiting.result()
    second.release()


def test_r8_a_release_that_failed_may_have_succeeded_and_can_be_tried_again(
    network: Proxy, crowd: Crowd, client: redis.Redis
) -> None:
    """The lock is not entered again without asking Redis."""
    me, you, lock, yours = crowd(), crowd(), Lock(NAME, using="other", reentrant=True), Lock(NAME, token=TOKEN)
    me(lock, "acquire")
    lost = network.lose_answer(LOCK, times=1000)
    with pytest.raises(LockUnavailable) as caught:
        me(lock, "release")
    assert 0 < caught.value.lease_left <= 30
    lost.end()
    assert you(yours, "acquire")
    assert not me(lock, "acquire", blocking=False)
    you(yours, "release")
    me(lock, "release")
    assert holder(client) == ""


def test_r14_a_script_flush_does_no_harm_to_renewals_and_releases_in_the_background(
    network: Proxy, client: redis.Redis, retry_for: Callable[[float], None]
) -> None:
    """Of those, several go in one pipeline, and each command is checked by itself."""
    retry_for(0.1)
    losses: list[LockLost] = []
    locks = [Lock(f"{NAME}:{number}", ttl=LONG, on_lost=losses.append, using="other") for number in range(5)]
    keys = [keys_of(lock.name).lock for lock in locks]
    with ExitStack() as blocks:
        for lock, key in zip(locks, keys, strict=True):
            blocks.enter_context(lock)
            client.pexpire(key, 100_000)
        client.script_flush()
        renew_all("other")
        until(lambda: all(int(client.pttl(key)) > 200_000 for key in keys))
        assert losses == []
        network.cut()
    client.script_flush()
    network.mend()
    until(lambda: leftovers(client) == [])


@pytest.mark.parametrize("by", ["holder", "bearer"])
def test_r16_a_release_that_comes_late_leaves_a_new_holder_with_the_same_token_alone(
    by: str, impatient: Proxy, me: Any, you: Any, client: redis.Redis, retry_for: Callable[[float], None]
) -> None:
    retry_for(GENEROUS)
    first, second = Lock(NAME, token=TOKEN, using="other"), Lock(NAME, token=TOKEN)
    me(first, "acquire")
    if by == "bearer":
        me(first, "detach")
    late = impatient.hold_request(RELEASE)
    me(first, "release")  # at a later try
    assert late.caught.is_set()
    assert you(second, "acquire")
    id = holder(client)
    late.arrive()
    assert holder(client) == id
    assert not you.read(lambda: second.lost)
    you(second, "release")


OURS = str(Path(django_redislock.__file__).parent)
MEMBERS = {"free:pool:accounts:", "fresh:pool:accounts:", "members:pool:accounts:", "pools"}


one = partial(Lock, NAME, ttl=LONG, blocking_timeout=GENEROUS)
several = partial(LockSet, NAME, "order:43", ttl=LONG, blocking_timeout=GENEROUS)


def enter(lock: Any) -> None:
    with lock:
        pass


def take(lock: Any) -> None:
    """An exception between the return of acquire() and the next line leaves the lock to the caller (see Guarantees)."""
    try:
        lock.acquire()
        lock.release()
    except Interrupt:
        with suppress(LockNotOwned):
            lock.release()
        raise


def take_member() -> None:
    member = None
    try:
        member = LockPool("accounts").acquire(ttl=LONG, blocking_timeout=GENEROUS)
        with member:
            pass
    finally:
        if member is not None and fence_of(member) is not None:
            member.release()


def fail(*_: object) -> HttpResponse:
    raise ValueError


def compute() -> None:
    django_redislock.locked_get_or_set("key", fail)


@locked_view(NAME)
def view(request: HttpRequest) -> HttpResponse:
    return fail()


class Command(LockedCommand, BaseCommand):
    lock_name = NAME

    def handle(self, *args: object, **options: object) -> None:
        fail()


SECTIONS: dict[str, Callable[[], object]] = {
    "with": lambda: enter(one()),
    "acquire": lambda: take(one()),
    "pool": take_member,
    "decorator": locked(NAME)(fail),
    "decorator with a set": locked([NAME, "order:43"])(fail),
    "with a set": lambda: enter(several()),
    "acquire a set": lambda: take(several()),
    # without a timeout it is renewed, for as long as its thread lives, or the object of which any thread may release it
    "cache.lock": lambda: enter(inside.redis_py_lock(NAME)),
    "cache.lock that ends": lambda: enter(inside.redis_py_lock(NAME, timeout=LONG)),
    "cache.lock of any thread": lambda: enter(inside.redis_py_lock(NAME, thread_local=False)),
    "cached value": compute,
    "command": lambda: call_command(Command()),
    "view": lambda: view(RequestFactory().get("/")),
}


@pytest.mark.complete
@pytest.mark.parametrize("how", SECTIONS)
def test_r18_a_section_that_is_interrupted_at_any_place_leaves_nothing_behind(how: str, client: redis.Redis) -> None:
    section, shown_before = SECTIONS[how], inside.shown_here()
    LockPool("accounts").extend(["alice"])
    with suppress(ValueError):
        section()
    for one in interrupters(lambda file: file.startswith(OURS), least=50):
        with suppress(Interrupt, ValueError):
            one.run(section)
        one.leaves_nothing(lambda: [*kept_by_callers().items(), *{*leftovers(client)} - MEMBERS])
        with suppress(ValueError):
            Interrupter(lambda file: file.startswith(OURS)).run(section)  # so that the next one finds a connection
    assert inside.shown_here() < shown_before + 10


@pytest.mark.parametrize(
    ("how", "busy"), [("decorator", NAME), ("decorator with a set", NAME), ("decorator with a set", "order:43")]
)
def test_r18_a_section_that_is_interrupted_when_it_has_waited_leaves_no_waiter(
    how: str, busy: str, client: redis.Redis
) -> None:
    """The oldest waiter of a process looks by the clock for the others: a dead one would never look."""
    section, other, over = SECTIONS[how], Other(), threading.Event()
    until(lambda: Ears().start() or Ears().ready)

    def release() -> None:
        until(lambda: queued(client, busy) or over.is_set())
        force_release(busy)

    for one in interrupters(lambda file: file in WHERE_LOCKS_ARE_ACQUIRED):
        over.clear()
        put(client, busy)  # by another process: a thread of ours that acquires ends the tracing on Python 3.13
        released = other.start(release)
        with suppress(Interrupt, ValueError):
            one.run(section)
        over.set()
        released.result(GENEROUS)
        one.leaves_nothing(kept_by_callers)
    other.end()


def test_r18_the_end_of_a_block_that_is_interrupted_is_no_end_of_another(client: redis.Redis, monkeypatch: Any) -> None:
    lock = Lock(NAME, ttl=LONG)
    inside.interrupt_ends_of_blocks(monkeypatch, Interrupt())
    with pytest.raises(Interrupt):
        lock.__exit__(None, None, None)  # which nobody has entered
    with pytest.raises(Interrupt), lock:
        pass
    monkeypatch.undo()
    with lock:  # it does not wait for itself
        pass
    assert leftovers(client) == []


@pytest.mark.parametrize("ends", ["a block", "a release", "a block of a set", "a release of a set"])
def test_r18_the_end_of_a_coroutine_s_section_that_is_interrupted_gives_the_lock_back(
    ends: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though somebody keeps the error, and the event loop goes on."""
    kept = Interrupt()
    lock: Any = LockSet(NAME, "order:43", ttl=LONG) if ends.endswith("set") else Lock(NAME, ttl=LONG)

    async def block() -> None:
        async with lock:
            inside.interrupt_next_release(monkeypatch, kept)

    async def release() -> None:
        await lock.aacquire()
        inside.interrupt_next_release(monkeypatch, kept)
        await lock.arelease()

    async def main() -> None:
        with pytest.raises(Interrupt):
            await (block() if "block" in ends else release())
        await auntil(lambda: leftovers(client) == [])

    asyncio.run(main())


def test_r18_what_gives_an_interrupted_section_back_may_be_interrupted_as_well(client: Any, monkeypatch: Any) -> None:
    def section() -> None:
        with Lock(NAME, ttl=LONG):
            inside.interrupt_next_release(monkeypatch, Interrupt(), twice=True)

    with suppress(Interrupt):
        section()
    until(lambda: leftovers(client) == [] and not leases())


@pytest.mark.parametrize("goes_on", [False, True], ids=["", "another section goes on"])
def test_r18_who_wants_again_what_it_held_when_it_was_interrupted_does_not_wait_for_itself(
    goes_on: bool, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a thread of the package has noticed."""
    inside.undo_late(monkeypatch)
    lock, outer = (Lock(NAME, ttl=LONG, reentrant=goes_on) for _ in range(2))
    with outer if goes_on else nullcontext():
        end = lock.__exit__  # a with statement looks it up, and keeps it until its block has ended
        lock.__enter__()
        del end  # interrupted before it was called
        with Lock(NAME, reentrant=goes_on) as again:
            assert again.owned()
            assert not goes_on or again.fence == outer.fence
    monkeypatch.undo()
    until(lambda: leftovers(client) == [] and not leases())
