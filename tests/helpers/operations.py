"""The main operations on locks, pools and values, by several threads or tasks; they run every script."""

import pytest
from django.core.management import call_command

import django_redislock
from django_redislock import ConditionalValue, Counter, Lock, LockNotAcquired, LockPool, Semaphore
from tests import inside
from tests.inside import PREFIX, Process, all_seen, polled

from .actors import GENEROUS, Crowd, until


def use_lock(crowd: Crowd, name: str) -> None:
    """Acquire, queue, poll, renew, hand over, adopt and force-release it."""
    me, you, third = crowd(), crowd(), crowd()
    lock, following = Lock(name, ttl=60), Lock(name, ttl=60, note="for people")
    assert me(lock, "acquire")
    assert not you(following, "acquire", blocking=False)
    assert not you(following, "acquire", blocking_timeout=0.05)
    waiting = you.start(following, "acquire")
    until(lambda: third(django_redislock, "get_lock", name).waiters == 1)
    assert not third(Lock(name, poll=True), "acquire", blocking_timeout=0.05)
    assert not third(Lock(name, max_waiters=1), "acquire")
    assert me(lock, "extend", 60)
    until(all_seen)  # by the watchdog
    me(lock, "release")
    assert waiting.result(GENEROUS)
    until(lambda: you(following, "info").lease_left > 30)  # it has confirmed the handoff
    assert you(following, "reacquire")
    adopted = Lock(name, token=you(following, "detach"))
    assert me(adopted, "acquire")
    assert name in [info.name for info in third(django_redislock, "list_locks")]
    third(lock, "suspend", 60)
    assert third(lock, "resume")
    assert third(django_redislock, "force_release", name)
    until(lambda: me.read(lambda: adopted.lost))
    third(lock, "suspend", 60, note="for people")
    assert third(django_redislock, "force_release", name)
    assert me(lock, "status").value == "free"


def use_pool(crowd: Crowd) -> None:
    me, you, pool = crowd(), crowd(), LockPool("machines")
    assert me(pool, "assign", ["alice", "bob"]) == 2
    assert me(pool, "extend", ["carol"]) == 1
    assert me(pool, "shrink", ["carol", "bob"]) == 2
    assert (me(pool, "keys"), me(pool, "len")) == (["alice"], 1)
    member = me(pool, "acquire")
    assert [status.value for _, status in you(pool, "items_locked_status")] == ["unavailable"]
    with pytest.raises(LockNotAcquired):
        you(pool, "acquire", blocking_timeout=0.05)
    waiting = you.start(pool, "acquire", blocking_timeout=GENEROUS)
    until(lambda: me(pool, "info").waiters == 1)
    assert me(member, "extend", 5)
    me(member, "release")
    you(waiting.result(GENEROUS), "release")
    me(pool, "clear")


def use_semaphore(crowd: Crowd) -> None:
    people = [(crowd(), Semaphore("export", limit=2, ttl=60)) for _ in range(3)]
    (me, mine), (you, yours), (third, its) = people
    assert me(mine, "acquire")
    assert you(yours, "acquire")
    waiting = third.start(its, "acquire")
    until(lambda: me(mine, "info").waiters == 1)
    until(all_seen)  # by the watchdog
    assert me(mine, "extend", 5)
    assert you(yours, "owned")
    me(mine, "release")
    assert waiting.result(GENEROUS)
    assert "semaphore:export" in [info.name for info in third(django_redislock, "list_locks")]
    assert third(django_redislock, "force_release", "semaphore:export")


def use_values(crowd: Crowd) -> None:
    me, counter, high = crowd(), Counter("hits"), ConditionalValue("high")
    assert [me(counter, "incr", ttl=60), me(counter, "get"), me(counter, "reset"), me(counter, "reset")] == [1, 1, 1, 0]
    assert me(high, "setgt", 1)
    assert not me(high, "setgt", 1)
    assert me(high, "setne", "b")
    assert me(high, "deleq", "b")


def meet_the_dead(name: str) -> None:
    """Waiters that are gone, poll or are paused; an attempt that was given up; a lock that has expired."""
    nobody = Process(channel=f"{PREFIX}wake:nobody-listens")
    a, d = (nobody.request(id * 22, name=name, listens=True) for id in "ad")
    b = nobody.request("b" * 22, name=name, listens=False)

    def acquire(request: inside.Request, wait: str = inside.QUEUED) -> int:
        return nobody.acquire(request, wait).state

    assert (acquire(a), acquire(a)) == (inside.GRANTED, inside.ALREADY)
    assert acquire(b, polled(50)) == acquire(d._replace(id="c" * 22)) == inside.BUSY
    for how in ("keep", "confirm", "set", "detach"):
        assert nobody.renew(a, how).state == inside.HELD
    assert nobody.release(a).state == inside.DETACHED
    assert nobody.release(a, how=inside.BEARER).state == inside.RELEASED
    assert acquire(b, polled(50)) == inside.GRANTED  # it was left for it
    assert nobody.force(name)
    assert nobody.renew(b).state == inside.LOST
    assert nobody.release(d, may_arrive=True).state == inside.NOT_HELD
    assert acquire(d) == inside.GIVEN_UP
    nobody.close()


def locks_alone(crowd: Crowd, *members: str) -> None:
    """On plain locks, and on these members of pools."""
    for name in ("order:42", *members):
        use_lock(crowd, name)
        meet_the_dead(name)
    swept = False
    while not swept:
        with Lock("swept") as lock:
            swept = lock.fence % 8 == 0  # now and then, one sweeps the index


def all_of_them(crowd: Crowd) -> None:
    LockPool("accounts").extend(["alice"])
    locks_alone(crowd, "pool:accounts:alice")
    use_pool(crowd)
    use_semaphore(crowd)
    use_values(crowd)
    me = crowd()
    me(LockPool("accounts"), "acquire")
    me(Lock("cleared"), "acquire")
    call_command("redislocks", "list", verbosity=0)
    call_command("redislocks", "clear", "--all", "--noinput", verbosity=0)
    assert me(django_redislock, "list_locks") == []
