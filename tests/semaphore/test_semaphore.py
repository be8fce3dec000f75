"""``Semaphore``, and what has a ``limit``: at most so many at once, first come, first served."""

import io
import json
import re
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.test import override_settings

import django_redislock
from django_redislock import (
    Lock,
    LockedCommand,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockStatus,
    Semaphore,
    force_release,
    get_lock,
    limited_view,
    list_locks,
    locked,
)
from django_redislock.testing import hold
from tests.cli.conftest import fails, redislocks, sh
from tests.helpers.actors import GENEROUS, Crowd, Ghost, until
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy
from tests.helpers.servers import Pages, Twins
from tests.helpers.state import INDEX, count, known, leftovers, waiters
from tests.inside import ACQUIRE_PERMIT, FORCE_PERMIT, forget_limits, keys_of

NAME = "export:7"
LOCK = f"semaphore:{NAME}"
PERMITS, ENDS, *_ = keys_of(LOCK).all
LONG = 600  # seconds: longer than any test


def holders() -> int:
    info = get_lock(LOCK)
    return len(info.permits) if info else 0


def line_up(crowd: Crowd, amount: int, most: int, **options: Any) -> list[tuple[Any, Semaphore, Future[bool]]]:
    """So many who wait for the semaphore NAME, in order: each with whoever waits, and the outcome."""
    before, found = waiters(LOCK), []
    for number in range(1, amount + 1):
        person, wanted = crowd(), Semaphore(NAME, limit=most, ttl=LONG, **options)
        found.append((person, wanted, person.start(wanted, "acquire")))
        until(lambda number=number: waiters(LOCK) == before + number)
    return found


@pytest.mark.parametrize("poll", [False, True])
def test_no_more_than_the_limit_hold_it_and_waiters_come_in_order(poll: bool, crowd: Crowd, client: Any) -> None:
    held = [(crowd(), Semaphore(NAME, limit=2, ttl=LONG)) for _ in range(2)]
    for person, semaphore in held:
        assert person(semaphore, "acquire", blocking=False)
        assert person.read(lambda semaphore=semaphore: not semaphore.lost and semaphore.remaining() > LONG / 2)
    newcomer = crowd()
    assert newcomer(Semaphore(NAME, limit=2), "acquire", blocking=False) is False
    with pytest.raises(LockNotAcquired, match=r"^Could not acquire the semaphore 'export:7' at once: none of"):
        newcomer(Semaphore(NAME, limit=2, blocking_timeout=0), "enter")
    waiting = line_up(crowd, 4, 2, poll=poll)
    while waiting:
        (person, semaphore), *held = held
        person(semaphore, "release")
        (who, what, outcome), *waiting = waiting
        assert outcome.result(GENEROUS)
        assert not any(other.done() for _, _, other in waiting)
        assert newcomer(Semaphore(NAME, limit=2), "acquire", blocking=False) is False
        assert holders() == 2
        held.append((who, what))
    fences = [person.read(lambda semaphore=semaphore: semaphore.fence) for person, semaphore in held]
    assert fences == sorted(fences)
    for person, semaphore in held:
        person(semaphore, "release")
    assert leftovers(client) == []


WORKER = """
semaphore = Semaphore(name, limit=2, ttl=3)
semaphore.acquire()
say("holds")
hear()
"""


@pytest.mark.complete
def test_a_killed_holders_permit_is_free_after_its_ttl_and_no_other(start: Any, crowd: Crowd, client: Any) -> None:
    me, mine = crowd(), Semaphore(NAME, limit=2, ttl=LONG)
    worker = start(WORKER, name=NAME)
    worker.expect("holds")
    assert me(mine, "acquire")
    ((you, wanted, waiting),) = line_up(crowd, 1, 2)
    worker.kill()
    assert waiting.result(GENEROUS)
    assert me(mine, "owned")
    assert holders() == 2
    for person, semaphore in ((me, mine), (you, wanted)):
        person(semaphore, "release")
    assert leftovers(client) == []


@pytest.mark.complete
def test_nothing_stays_in_redis(start: Callable[..., Worker], client: redis.Redis) -> None:
    """However a permit ends: it is released, lost, given up while it is waited for, or its process is killed."""
    with Semaphore("released", limit=3), Semaphore("released", limit=3):
        assert not Semaphore("released", limit=2).acquire(blocking_timeout=0.01)
    with pytest.raises(LockLost), Semaphore("lost", limit=3):
        force_release("semaphore:lost")
    worker = start(WORKER, name="killed")
    worker.expect("holds")
    worker.kill()
    until(lambda: get_lock("semaphore:killed") is None)
    until(lambda: leftovers(client) in ([], ["index"]))  # which says nothing of it any more
    assert list_locks() == []


def test_the_limit_that_was_asked_for_last_counts(crowd: Crowd, caplog: Any) -> None:
    forget_limits()
    people = [crowd() for _ in range(4)]
    three = [Semaphore(NAME, limit=3, ttl=LONG) for _ in people]
    got = [me(semaphore, "acquire", blocking=False) for me, semaphore in zip(people, three, strict=True)]
    assert got == [True] * 3 + [False]
    assert not caplog.records
    # fewer, as permits come back
    ((you, two, waiting),) = line_up(crowd, 1, 2)
    until(lambda: "event=limits-differ name=semaphore:export:7 limit=2 before=3" in caplog.text)
    people[0](three[0], "release")
    assert (holders(), waiters(LOCK), waiting.done()) == (2, 1, False)
    people[1](three[1], "release")
    assert waiting.result(GENEROUS)
    # more at once: those who wait come first
    ((she, also_two, waits),) = line_up(crowd, 1, 2)
    caplog.clear()
    him, four = crowd(), Semaphore(NAME, limit=4, ttl=LONG)
    assert him(four, "acquire", blocking=False)
    assert waits.result(GENEROUS)
    assert holders() == 4
    until(lambda: "event=limits-differ name=semaphore:export:7 limit=4 before=2" in caplog.text)
    for person, semaphore in ((people[2], three[2]), (you, two), (she, also_two), (him, four)):
        person(semaphore, "release")
    assert get_lock(LOCK) is None


def test_a_thread_may_hold_several_permits(me: Any) -> None:
    """Through one object or through several; the one that was acquired last is released first."""
    semaphore, another = Semaphore(NAME, limit=3), Semaphore(NAME, limit=3)
    assert me(semaphore, "acquire")
    first = me.read(lambda: semaphore.fence)
    assert me(semaphore, "acquire")
    second = me.read(lambda: semaphore.fence)
    assert second > first
    assert me(another, "acquire")
    assert me(another, "acquire", blocking_timeout=0.01) is False
    me(semaphore, "release")
    assert me.read(lambda: semaphore.fence) == first
    assert holders() == 2
    me(semaphore, "release")
    with pytest.raises(LockNotOwned):
        me(semaphore, "release")
    me(another, "release")


def test_it_says_whether_it_is_held_here_and_whether_a_permit_is_to_be_had(crowd: Crowd) -> None:
    me, you, semaphore = crowd(), crowd(), Semaphore(NAME, limit=2)
    facts: list[Any] = []

    def note() -> None:
        facts.append(tuple(me(semaphore, each) for each in ("owned", "locked", "status")))

    note()
    assert you(Semaphore(NAME, limit=2), "acquire")
    note()
    me(semaphore, "acquire")
    note()
    me(semaphore, "release")
    assert you(Semaphore(NAME, limit=2), "acquire")
    note()
    assert facts == [
        (False, False, LockStatus.FREE),
        (False, False, LockStatus.FREE),
        (True, True, LockStatus.LOCKED),
        (False, True, LockStatus.UNAVAILABLE),
    ]


def test_a_permit_is_renewed_extended_and_told_of_its_loss_by_itself(crowd: Crowd) -> None:
    me, you, losses = crowd(), crowd(), list[LockLost]()
    mine, yours = Semaphore(NAME, limit=2, ttl=4, on_lost=losses.append), Semaphore(NAME, limit=2, ttl=4)
    assert me(mine, "acquire")
    assert you(yours, "acquire")
    info = known(LOCK)
    end = info.expires + timedelta(seconds=0.5)
    until(lambda: (found := get_lock(LOCK)) and found.lease_left and found.expires > end)
    assert me(mine, "extend", LONG)
    assert me.read(mine.remaining) > LONG / 2 > you.read(yours.remaining)
    assert me(mine, "reacquire")
    assert me.read(mine.remaining) <= 4
    force_release(LOCK, permit=me.read(lambda: mine.fence))
    until(lambda: losses)
    assert me.read(lambda: mine.lost)
    assert not you.read(lambda: yours.lost)
    with pytest.raises(LockLost):
        me(mine, "release")
    you(yours, "release")


def test_one_permit_can_be_force_released(crowd: Crowd) -> None:
    people = [(crowd(), Semaphore(NAME, limit=3, ttl=LONG, note=f"{number}")) for number in range(3)]
    for person, semaphore in people:
        assert person(semaphore, "acquire")
    ((you, wanted, waiting),) = line_up(crowd, 1, 3)
    info = known(LOCK)
    facts = (info.limit, info.permits_held, info.waiters, [each.note for each in info.permits])
    assert facts == (3, 3, 1, ["0", "1", "2"])
    assert (info.fence, info.note) == (info.permits[2].fence, "0")
    released = force_release(info.name, permit=info.fence)
    assert released is not None
    assert (released.note, released.waiters, released.permits) == ("2", 1, ())
    assert waiting.result(GENEROUS)
    assert force_release(info.name, permit=info.fence) is None  # that is gone
    assert force_release(info.name, fence=info.fence) is not None  # those that were seen, and not the new one
    until(lambda: all(person.read(lambda semaphore=semaphore: semaphore.lost) for person, semaphore in people))
    assert (you(wanted, "owned"), holders()) == (True, 1)
    assert force_release(info.name) is not None
    assert holders() == 0
    assert force_release(info.name) is None
    with Lock("x"), pytest.raises(ValueError, match=r"^'x' is a lock, and has no permits: pass its fence as fence=\.$"):
        force_release("x", permit=1)


def test_a_permit_that_is_given_back_meanwhile_was_not_force_released(crowd: Crowd, network: Any, caplog: Any) -> None:
    me, you, semaphore = crowd(), crowd(), Semaphore(NAME, limit=2, ttl=LONG)
    assert me(semaphore, "acquire")
    late = network.hold_request(FORCE_PERMIT)
    forced = you.start(django_redislock, "force_release", LOCK)
    assert late.caught.wait(GENEROUS)
    me(semaphore, "release")
    late.let_go()
    assert forced.result(GENEROUS) is None
    assert "event=force-released" not in caplog.text


def test_a_force_release_of_all_permits_spares_the_waiters_who_get_them(crowd: Crowd) -> None:
    people = [(crowd(), Semaphore(NAME, limit=2, ttl=LONG)) for _ in range(2)]
    for person, semaphore in people:
        assert person(semaphore, "acquire")
    waiting = line_up(crowd, 2, 2)
    assert force_release(LOCK) is not None
    for person, semaphore, outcome in waiting:
        assert outcome.result(GENEROUS)
        assert person(semaphore, "owned")
        person(semaphore, "release")


def test_more_permits_than_are_listed_are_force_released(client: redis.Redis) -> None:
    semaphore = Semaphore(NAME, limit=201, ttl=LONG)
    fences = list[Any]()
    for _ in range(201):
        assert semaphore.acquire()
        fences.append(semaphore.fence)
    info = semaphore.info()
    assert info is not None
    assert (info.permits_held, len(info.permits)) == (201, 100)
    assert [each.fence for each in (info, *list_locks())] == [fences[200]] * 2  # though it is not among those 100
    assert redislocks("list").splitlines()[1].startswith("semaphore:export:7 201/201 ")
    last = force_release(info.name, permit=fences[200])
    assert last is not None
    assert (last.fence, client.zcard(ENDS)) == (fences[200], 200)
    assert force_release(info.name, fence=fences[99]) is not None
    assert client.zcard(ENDS) == 100
    released = force_release(info.name)
    assert released is not None
    assert released.permits_held == 100
    assert get_lock(info.name) is None
    for ask in (["clear", info.name], ["clear", "--match", "semaphore:*"]):
        for _ in range(101):
            assert Semaphore(NAME, limit=101, ttl=LONG).acquire()
        redislocks(*ask, "--noinput", stderr=io.StringIO())
        assert get_lock(info.name) is None


def test_permits_of_which_redis_has_forgotten_one_are_shown_all_the_same(client: redis.Redis) -> None:
    assert Semaphore(NAME, limit=3, ttl=20).acquire()
    client.delete(PERMITS)
    assert Semaphore(NAME, limit=3, ttl=LONG).acquire()
    (listed,), found = list_locks(), get_lock(f"semaphore:{NAME}")
    assert found is not None
    assert (found.fence, found.permits_held, found.limit) == (listed.fence, 1, 3)


def test_permits_that_have_ended_hide_no_other(client: redis.Redis) -> None:
    """Whoever dies leaves some behind, until somebody acquires or releases another one."""
    for number in range(102):
        assert Semaphore(NAME, limit=102, ttl=LONG, note=f"{number}").acquire()
    in_order = list[Any](client.zrange(ENDS, 0, -1))
    client.zadd(ENDS, dict.fromkeys(in_order[:101], 1))
    assert [(lock.permits_held, lock.note) for lock in list_locks()] == [(1, "101")]


unchecked: Any = Semaphore  # by mypy
unset: Any = None


@pytest.mark.parametrize(
    ("error", "message", "act"),
    [
        (TypeError, "^limit must be an int, 1 or more, not '3'", lambda: unchecked("x", limit="3")),
        (ValueError, "^limit must be 1 or more, not 0", lambda: Semaphore("x", limit=0)),
        (ValueError, "^limit must be at most 1000000000, not 9223", lambda: Semaphore("x", limit=sys.maxsize)),
        (TypeError, "limit", lambda: unchecked("x")),
        (TypeError, "^limit must be an int, 1 or more, not None", lambda: unchecked("x", limit=None)),
        (TypeError, "^limit must be an int, 1 or more, not None", lambda: limited_view("x", limit=unset)),
        (ValueError, "^The semaphore name 'semaphore:aaa.*has 513 bytes", lambda: Semaphore("a" * 503, limit=1)),
        (TypeError, "reentrant.*limit", lambda: unchecked("x", limit=1, reentrant=True)),
        (TypeError, "token", lambda: unchecked("x", limit=1, token="t" * 22)),
        (TypeError, "fenced", lambda: unchecked("x", limit=1, fenced=True)),
        (ValueError, "^A semaphore's name must not be empty", lambda: Semaphore("", limit=1)),
        (TypeError, "^Cannot detach the semaphore 'x': that takes a Lock", lambda: Semaphore("x", limit=1).detach()),
        (TypeError, "^Cannot detach", lambda: Semaphore("x", limit=1).adetach()),
        (TypeError, "^Cannot adopt", lambda: Semaphore("x", limit=1).acquire(token="t" * 22)),
        (TypeError, "^Cannot adopt", lambda: Semaphore("x", limit=1).aacquire(token="t" * 22)),
        (TypeError, "^Cannot claim", lambda: Semaphore("x", limit=1).claim()),
        (TypeError, "^Cannot claim", lambda: Semaphore("x", limit=1).aclaim()),
        (TypeError, "^Cannot suspend", lambda: Semaphore("x", limit=1).suspend(1)),
        (TypeError, "^Cannot suspend", lambda: Semaphore("x", limit=1).asuspend(1)),
        (ValueError, "^'semaphore:x' is a semaphore, not a lock: use Semaphore", lambda: Lock("semaphore:x")),
        (ValueError, "^'semaphore:x' is a semaphore, not a lock", locked("semaphore:x")(lambda: None)),
        (ValueError, "^'semaphore:x' is a semaphore, not a lock", lambda: hold("semaphore:x").__enter__()),
        (ValueError, "^reentrant is an option of locks: with limit=2", lambda: locked("x", limit=2, reentrant=True)),
        (ValueError, "^fenced is an option of locks: with limit=2", lambda: locked("x", limit=2, fenced=True)),
        (ValueError, "no token with a limit: only a lock can be adopted", lambda: locked("x", limit=2, token="{t}")),
        (TypeError, "fenced", lambda: limited_view("x", limit=1, fenced=True)),  # type: ignore[call-arg]
    ],
)
def test_what_only_locks_have_is_refused(error: Any, message: str, act: Any, client: redis.Redis) -> None:
    with pytest.raises(error, match=message):
        act()
    assert client.keys() == []


def test_a_semaphore_has_no_token_and_no_suspension_to_end_and_warns_of_fields() -> None:
    with Semaphore("x", limit=1) as semaphore:
        assert semaphore.token is None
        assert repr(semaphore) == "<Semaphore 'semaphore:x'>"
    assert Semaphore("x", limit=1).resume() is False
    with pytest.warns(RuntimeWarning, match=r"\{pk\}"):
        Semaphore("export:{pk}", limit=1)


def test_settings_know_it_by_its_name_among_those_of_locks(settings: Any) -> None:
    settings.REDISLOCK = {"TTLS": {"semaphore:export:*": 7}, "MAX_WAITERS": {"semaphore:*": 0}, "FENCED": ["*"]}
    with Semaphore(NAME, limit=1) as semaphore:
        assert semaphore.ttl == 7
        with pytest.raises(LockNotAcquired, match=r"^Could not acquire the semaphore 'export:7': its queue is full"):
            Semaphore(NAME, limit=1).__enter__()


def test_a_view_too_many_gets_429(me: Any, you: Any, crowd: Crowd, settings: Any, tmp_path: Any) -> None:
    settings.ROOT_URLCONF = pages = Pages(awaits=crowd.awaits)
    inside, go_on = threading.Event(), threading.Event()

    def body(request: Any, pk: int) -> Generator[None, None, str]:
        inside.set()
        while not go_on.is_set():
            yield
        return "done"

    pages.add("<int:pk>/", "export:{pk}", body, decorator=limited_view, limit=2)
    first = you.start(pages, "get", "/7/")
    assert inside.wait(GENEROUS)
    assert holders() == 1
    with Semaphore(NAME, limit=2):
        response = me(pages, "get", "/7/", accept="application/json")
        assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
        assert json.loads(response.content) == {
            "detail": "Too many of these requests are running. Please try again in 1 second.",
            "retry_after": 1,
        }
        (tmp_path / "429.html").write_text("<h1>Too many: {{ retry_after }} s</h1>")
        backend = "django.template.backends.django.DjangoTemplates"
        with override_settings(TEMPLATES=[{"BACKEND": backend, "DIRS": [tmp_path]}]):
            assert me(pages, "get", "/7/").content == b"<h1>Too many: 1 s</h1>"
    go_on.set()
    assert me(pages, "get", "/7/").content == b"done"
    assert first.result(GENEROUS).content == b"done"
    assert holders() == 0


class Report(LockedCommand):
    lock_name = NAME
    lock_limit = 2

    def handle(self, *args: Any, **options: Any) -> Any:
        return f"{holders()}"


def test_functions_commands_and_programs_have_limits(crowd: Crowd, client: redis.Redis) -> None:
    me, others = crowd(), [Semaphore(NAME, limit=2), Semaphore(NAME, limit=2)]
    twins = Twins(locked("export:{pk}", limit=2, blocking_timeout=0), lambda pk: client.zcard(ENDS))
    for number, other in enumerate(others):
        assert me(twins, "call", 7) == number + 1
        assert call_command(Report()) == f"{number + 1}"
        assert sh("exit 7", "--limit", "2", name=NAME) == 7
        other.acquire()
    with pytest.raises(LockNotAcquired, match="semaphore 'export:7' at once: none of its 2 permits is free"):
        me(twins, "call", 7)
    with pytest.raises(CommandError, match=r"^Could not acquire the semaphore 'export:7' at once: none of "):
        call_command(Report())
    assert sh("exit 7", "--limit", "2", name=NAME) == 75
    fails(1, "argument --limit: must be a whole number, 1 or more, not '0'", "run", NAME, "--limit", "0", "--", "true")
    for other in others:
        other.release()


def test_the_command_shows_holders(crowd: Crowd) -> None:
    people = [(crowd(), Semaphore(NAME, limit=3, ttl=LONG, note=note)) for note in ("books", "taxes")]
    for person, semaphore in people:
        assert person(semaphore, "acquire")
    with Lock("export:7"):
        assert re.findall(r"^\S+", redislocks("list"), re.M) == ["NAME", "export:7", "semaphore:export:7"]
    assert re.search(r"^semaphore:export:7 2/3  \S+ .*  books$", redislocks("list"), re.M)
    shown = redislocks("show", "semaphore:export:7")
    assert shown.startswith("NAME     semaphore:export:7 2/3\nWAITERS  0\n\nHOLDER")
    assert [line.split()[-1] for line in shown.splitlines()[4:]] == ["books", "taxes"]
    (told,) = json.loads(redislocks("list", format="json"))
    assert (told["permits_held"], told["limit"]) == (2, 3)
    assert [each["note"] for each in told["permits"]] == ["books", "taxes"]
    fence = str(people[0][0].read(lambda: people[0][1].fence))
    fails(2, "^--permit takes the name of one semaphore", "clear", "--all", "--permit", fence, "--noinput")
    fails(1, "^semaphore:export:7 is held, but has no", "clear", "semaphore:export:7", "--permit", "1", "--noinput")
    fails(1, "^Not held: semaphore:other", "clear", "semaphore:other", "--permit", "1", "--noinput")
    cleared = redislocks("clear", "semaphore:export:7", "--permit", fence, "--noinput")
    assert re.fullmatch(r"Force-released semaphore:export:7, held for .*, 0 waiting\.\n", cleared)
    until(lambda: people[0][0].read(lambda: people[0][1].lost))
    assert not people[1][0].read(lambda: people[1][1].lost)
    assert redislocks("clear", "--all", "--noinput").startswith("Force-released semaphore:export:7, held for ")
    assert list_locks() == []


def test_values_that_were_evicted_are_lost_and_others_stay(client: redis.Redis) -> None:
    mine, yours = Semaphore(NAME, limit=2, ttl=LONG), Semaphore(NAME, limit=2, ttl=LONG)
    assert mine.acquire()
    assert yours.acquire()
    client.delete(PERMITS)
    assert yours.locked()  # which only looks
    assert client.zcard(ENDS) == 2
    assert Semaphore(NAME, limit=2).acquire(blocking=False)
    for semaphore in (mine, yours):
        with pytest.raises(LockLost):
            semaphore.extend(1)
    client.delete(ENDS)
    assert get_lock(LOCK) is None


def test_what_has_ended_stays_no_longer_than_what_has_not(client: redis.Redis) -> None:
    """A release sees what others have left behind, and gives the keys no longer than the leases that are left."""
    long, short = Semaphore(NAME, limit=3, ttl=LONG), Semaphore(NAME, limit=3, ttl=1, auto_renew=False)
    assert long.acquire()
    assert short.acquire()
    assert client.pttl(PERMITS) > LONG * 500
    until(lambda: short.lost)
    with Semaphore(NAME, limit=3, ttl=5) as last:
        long.release()
        until(lambda: holders() == 1)
        assert 0 < client.pttl(PERMITS) <= 10_000 >= client.pttl(ENDS) > 0
        assert last.owned()
    assert leftovers(client) == []


@pytest.mark.parametrize("others", [0, 1])
def test_nor_does_a_permit_that_is_to_end_sooner(others: int, client: redis.Redis) -> None:
    for _ in range(others):
        assert Semaphore(NAME, limit=2, ttl=LONG).acquire()
    mine = Semaphore(NAME, limit=2, ttl=2 * LONG, auto_renew=False)  # a subscription renews at once what is renewed
    assert mine.acquire()
    mine.extend(LONG / 2, replace_ttl=True)
    most = LONG if others else LONG / 2
    left = float(client.zscore(INDEX, LOCK) or 0) / 1e6 - client.time()[0]
    assert max(client.pttl(PERMITS) / 1000, client.pttl(ENDS) / 1000, left) < most + 10
    locked(NAME, limit=3, at_least=LONG / 2, ttl=3 * LONG)(lambda: None)()  # which keeps it
    assert client.pttl(PERMITS) / 1000 < most + 10


def test_a_higher_limit_lets_a_crowd_in_by_several_scripts(ghost: Callable[..., Ghost], client: redis.Redis) -> None:
    """None of them keeps all others from Redis for long."""
    there = ghost()
    for number in range(1100):
        there.acquire(there.request(f"a-{number:022}", name=LOCK, limit=1))
    scripts = count(client, "evalsha")
    assert Semaphore(NAME, limit=2000).acquire()
    assert count(client, "evalsha") - scripts >= 3
    assert client.zcard(ENDS) == 1101


def test_a_request_that_is_sent_again_takes_one_permit_and_changes_no_limit(network: Proxy, client: Any) -> None:
    with Semaphore("warm-up", limit=1):
        pass
    lost = network.lose_answer(ACQUIRE_PERMIT, times=1)
    with Semaphore(NAME, limit=3):
        assert lost.met == 1
        assert (client.zcard(ENDS), client.hlen(PERMITS), holders()) == (1, 2, 1)


def test_code_of_others_may_use_such_names(settings: Any) -> None:
    """``cache.lock()`` takes any name."""
    settings.CACHES = {"default": {**settings.CACHES["default"], "BACKEND": "django_redislock.cache.RedisCache"}}
    other: Any = cache
    with other.lock("semaphore:x"):
        assert [lock.name for lock in list_locks()] == ["%:semaphore:x"]
