"""The lock of a job, whatever queue it goes through; and the order of things that no queue can be made to show."""

import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from time import sleep
from typing import Any

import pytest
import redis
from django.db import transaction

from django_redislock import (
    Lock,
    LockLost,
    LockNotAcquired,
    LockUnavailable,
    get_lock,
    lock_not_acquired,
    locked_atomic,
)
from django_redislock.models import Fence
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, until
from tests.helpers.databases import Account, with_fences
from tests.helpers.jobs import held, lease_of
from tests.helpers.proxy import Proxy
from tests.helpers.state import waiters
from tests.helpers.ways import stopped
from tests.inside import PREFIX, job_lock, limit
from tests.lock.conftest import receiving

NAME = "report:7"
LOCK_KEY = f"{PREFIX}lock:{NAME}"


class Job:
    """A job of a queue that remembers what it was asked for."""

    def __init__(self, id: str = "7d0f2c5e-7a3a-4f6e-9c62-0a4f9a1d7b11", *, comes_back: bool = False) -> None:
        self.id, self.asked, self._comes_back = id, list[Any](), comes_back

    def later(self, pause: float, refusal: Exception, *, is_copy: bool) -> str:
        self.asked.append(("later", pause, type(refusal)))
        return "later"

    def again(self) -> None:
        self.asked.append("again")

    def repeated(self) -> str:
        return "repeated"

    def comes_back_in(self, error: BaseException) -> float | None:
        return 0.0 if self._comes_back else None


def report(pk: int) -> int:
    return pk


def make(**options: Any) -> Any:
    return job_lock(report, "report:{pk}", **{"lock_from": "enqueue", **options})


@pytest.mark.parametrize("id", ["7d0f2c5e-7a3a-4f6e-9c62-0a4f9a1d7b11", "7", "sync:ü" * 50])
def test_what_was_queued_runs_once_whatever_its_id(id: str) -> None:
    lock, job = make(), Job(id)
    assert lock.queue((7,), {}, id) is True
    assert lock.queue((7,), {}, "another-another-another") == (id if len(id) == 36 else None)
    assert lock.run(job, (7,), {}, lambda: held()) == [NAME]
    assert held() == []
    assert lock.run(job, (7,), {}, lambda: pytest.fail("a copy ran")) == "repeated"
    assert held() == []


def test_a_copy_of_a_job_that_runs_comes_again_when_its_lease_would_end() -> None:
    lock, copy = make(ttl=20), Job()
    assert lock.run(Job(), (7,), {}, lambda: in_thread(lambda: lock.run(copy, (7,), {}, lambda: "ran"))) == "later"
    assert copy.asked == [("later", 20.0, LockNotAcquired)]


@pytest.mark.parametrize("busy", ["skip", "raise", "merge"])
def test_a_job_that_is_queued_again_while_it_has_the_lock_is_not_dropped(busy: str) -> None:
    lock, job = make(busy=busy), Job()
    assert lock.run(job, (7,), {}, lambda: in_thread(lambda: lock.queue((7,), {}, job.id))) is False
    assert job.asked == []


def in_thread(call: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join(GENEROUS)
    return found[0]


@pytest.mark.parametrize("lock_from", ["enqueue", "start"])
def test_a_job_that_comes_back_keeps_its_lock_if_it_had_it_from_the_queue(lock_from: str) -> None:
    lock, job = make(lock_from=lock_from, queued_ttl=500), Job(comes_back=True)
    with pytest.raises(SystemExit):
        lock.run(job, (7,), {}, lambda: exit(1))
    assert (lease_of(NAME) > 400) is (lock_from == "enqueue")
    assert lock.run(job, (7,), {}, lambda: "ran") == "ran"
    assert held() == []


@pytest.mark.complete
def test_a_job_that_comes_back_keeps_its_lock_whether_replicas_know_of_it_or_not(replica: RedisServer) -> None:
    lock, job = make(queued_ttl=500, replicas=1), Job(comes_back=True)
    with ExitStack() as stack:

        def fail() -> None:
            stack.enter_context(stopped(replica))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            lock.run(job, (7,), {}, fail)
        assert lease_of(NAME) > 400
    assert lock.run(job, (7,), {}, lambda: "ran") == "ran"
    assert held() == []


def test_what_fails_for_good_gives_its_lock_back_and_may_be_queued_again_by_hand() -> None:
    lock, job = make(at_least=300), Job()
    with pytest.raises(ZeroDivisionError):
        lock.run(job, (7,), {}, lambda: 1 / 0)
    assert held() == []
    assert lock.run(job, (7,), {}, lambda: "ran") == "ran"
    assert lease_of(NAME) > 200
    assert lock.run(job, (7,), {}, lambda: pytest.fail("a copy ran")) == "repeated"
    assert lease_of(NAME) > 200


def test_a_copy_that_waits_for_the_end_leaves_the_lock_as_long_as_it_has_to_stay(monkeypatch: Any) -> None:
    limit(monkeypatch, look_every=0.05)
    lock, found = make(at_least=300, blocking_timeout=GENEROUS), list[Any]()
    copy = threading.Thread(target=lambda: found.append(lock.run(Job(), (7,), {}, lambda: "ran")))

    def body() -> None:
        copy.start()
        until(lambda: waiters(NAME) == 1)

    lock.run(Job(), (7,), {}, body)
    copy.join(GENEROUS)
    assert found == ["repeated"]
    assert lease_of(NAME) > 200


def test_a_copy_that_expires_after_the_end_leaves_the_lock_as_long_as_it_has_to_stay() -> None:
    lock, job = make(at_least=300), Job()
    assert lock.run(job, (7,), {}, lambda: "ran") == "ran"
    lock.release(job, (7,), {})
    assert lease_of(NAME) > 200


def test_it_comes_again_after_the_time_that_such_jobs_take() -> None:
    lock, job = make(busy="retry", template="slow"), Job()
    lock.run(Job("other-other-other-other"), (7,), {}, lambda: sleep(1.2))
    with Lock(NAME):
        lock.run(job, (7,), {}, lambda: "ran")
    assert 1.2 <= job.asked[0][1] < GENEROUS


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_merged_is_asked_for_once_more_however_the_job_ends(fails: bool) -> None:
    lock, job, more = make(busy="merge"), Job(), Job("other-other-other-other")

    def body() -> None:
        assert in_thread(lambda: lock.run(more, (7,), {}, lambda: "ran")) is None
        if fails:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        lock.run(job, (7,), {}, body)
    assert (job.asked, more.asked) == (["again"], [])
    assert lock.run(more, (7,), {}, lambda: "ran") == "ran"
    assert more.asked == []


@pytest.mark.parametrize("where", ["queue", "run"])
def test_what_is_merged_is_refused_but_once(where: str) -> None:
    lock, job, refusals = make(busy="merge"), Job("other-other-other-other"), list[str]()
    with Lock(NAME), receiving(lambda **facts: refusals.append(facts["outcome"]), lock_not_acquired):
        in_thread(lambda: lock.queue((7,), {}, job.id) if where == "queue" else lock.run(job, (7,), {}, lambda: "ran"))
    assert refusals == ["busy"]


def test_a_job_that_cannot_queue_what_was_merged_has_not_ended_well_and_is_that_run_when_it_is_tried_again() -> None:
    lock, job = make(busy="merge"), Job()
    job.again = lambda: 1 / 0  # type: ignore[method-assign, assignment]
    with pytest.raises(ZeroDivisionError):
        lock.run(job, (7,), {}, lambda: lock.queue((7,), {}, "other-other-other-other"))
    assert lock.run(job, (7,), {}, lambda: "ran") == "ran"


@pytest.mark.parametrize("where", ["queue", "worker"])
def test_what_ends_while_it_is_asked_for_again_is_asked_for_no_more(where: str, monkeypatch: Any) -> None:
    """The lock comes free between the attempt that found it busy and the mark that asks for another run."""
    lock, job, holder = make(busy="merge"), Job(), Lock(NAME)
    holder.acquire()
    lock.asks(monkeypatch, holder.release)
    if where == "queue":
        assert lock.queue((7,), {}, job.id) is True
    assert lock.run(job, (7,), {}, lambda: "ran") == "ran"
    assert (job.asked, held()) == ([], [])


def test_who_is_merged_gets_the_job_that_has_the_lock_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, first, second = make(busy="merge"), Job(), Job("other-other-other-other")

    def change() -> None:
        lock.release(first, (7,), {})
        assert lock.queue((7,), {}, second.id) is True

    assert lock.queue((7,), {}, first.id) is True
    lock.asks(monkeypatch, change)
    assert lock.queue((7,), {}, "third-third-third-third") == second.id
    assert first.asked == []


def test_a_job_that_has_lost_its_lock_has_not_ended_well_and_may_be_tried_again(client: redis.Redis) -> None:
    def body() -> None:
        client.flushall()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # and comes back without the lock
        make().run(Job("other-other-other-other", comes_back=True), (7,), {}, body)
    assert held() == []
    lock, job = make(), Job()
    with pytest.raises(LockLost):
        lock.run(job, (7,), {}, lambda: client.flushall())
    assert lock.run(job, (7,), {}, lambda: "ran") == "ran"

    def lose(*result: str) -> str:
        client.delete(LOCK_KEY)
        return "repeated"

    job.repeated = lose  # type: ignore[method-assign]
    with pytest.raises(LockLost):
        lock.run(job, (7,), {}, lambda: pytest.fail("a copy ran"))
    del job.repeated
    assert lock.run(job, (7,), {}, lambda: pytest.fail("a copy ran")) == "repeated"  # it did end well


@pytest.mark.parametrize("error", [LockNotAcquired("no", NAME), LockUnavailable("no", NAME)])
def test_an_error_of_another_lock_is_the_jobs_own(error: Exception) -> None:
    def body() -> None:
        raise error

    with pytest.raises(type(error)):
        make().run(Job(), (7,), {}, body)
    assert held() == []


@pytest.mark.parametrize("busy", ["skip", "raise"])
def test_redis_is_away_when_it_starts(busy: str, network: Proxy, retry_for: Callable[[float], None]) -> None:
    lock, job = make(busy=busy), Job()
    retry_for(0.1)
    network.cut()
    if busy == "raise":
        with pytest.raises(LockUnavailable):
            lock.run(job, (7,), {}, lambda: "ran")
    else:
        assert lock.run(job, (7,), {}, lambda: "ran") == "later"
        assert job.asked == [("later", 1.0, LockUnavailable)]
    network.mend()


@pytest.mark.parametrize("at_least", [0, 300])
def test_redis_is_away_once_it_has_the_lock(at_least: float, network: Proxy, retry_for: Any) -> None:
    lock, job = make(at_least=at_least), Job()
    retry_for(0.1)
    repeated = job.repeated

    class Unseen(Job):
        @property
        def repeated(self) -> Any:
            """What is asked before Redis is: whether it may be a copy."""
            if held() or at_least:
                network.cut()
            return repeated

    unseen = Unseen()
    assert lock.run(unseen, (7,), {}, lambda: pytest.fail("it ran")) == "later"
    assert unseen.asked == [("later", 1.0, LockUnavailable)]
    network.mend()
    until(lambda: held() == [])


def test_redis_is_away_when_the_lock_was_busy(network: Proxy, retry_for: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is a copy, and that it is asked for once more, cannot be known then: it must not be dropped."""
    lock, job = make(busy="merge"), Job()
    retry_for(0.1)
    lock.asks(monkeypatch, network.cut)
    with Lock(NAME):
        assert lock.run(job, (7,), {}, lambda: "ran") == "later"
        network.mend()
    assert job.asked == [("later", 1.0, LockUnavailable)]


@pytest.mark.parametrize(("busy", "asked"), [("skip", []), ("merge", [False])])
def test_redis_is_away_when_it_ends(busy: str, asked: list[Any], network: Proxy, retry_for: Any) -> None:
    """What was done is done; the lock is released in the background. What was merged runs, as nobody knows of none."""
    lock, job = make(busy=busy, ttl=600, auto_renew=False), Job()
    retry_for(0.1)

    def again() -> None:
        lock.enqueue((7,), {}, "other-other-other-other", job.asked.append, lambda other: other)

    def body() -> str:
        job.again = again  # type: ignore[method-assign]
        with Lock(NAME, reentrant=True) as itself:
            itself.extend(1, replace_ttl=True)  # for as long, what was merged waits for the release
        network.cut()
        return "ran"

    assert lock.run(job, (7,), {}, body) == "ran"
    assert job.asked == asked  # without the lock
    network.mend()
    until(lambda: held() == [])


def test_redis_was_away_when_it_ended_and_what_was_merged_is_not_merged_into_what_is_over(
    network: Proxy, retry_for: Callable[[float], None], caplog: Any
) -> None:
    lock, job = make(busy="merge"), Job()
    retry_for(0.1)

    def mend() -> None:
        until(lambda: caplog.text.count("event=renewal-failed") >= 2)  # of the release, in the background
        network.mend()

    mender = threading.Thread(target=mend)

    def body() -> None:
        assert lock.queue((7,), {}, "other-other-other-other") == job.id
        network.cut()
        mender.start()

    job.again = lambda: job.asked.append(lock.queue((7,), {}, "more-more-more-more"))  # type: ignore[method-assign]
    lock.run(job, (7,), {}, body)
    mender.join()
    assert job.asked == [True]


def test_redis_is_away_when_it_cannot_be_queued(network: Proxy, retry_for: Any, caplog: Any) -> None:
    """The queue is on the same server, say. Nobody else would give the lock back, for an hour."""
    retry_for(0.1)

    def publish(taken: bool) -> None:
        network.cut()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make().enqueue((7,), {}, Job().id, publish, lambda other: other)
    assert f"event=not-released name={NAME} error=" in caplog.text
    network.mend()
    until(lambda: held() == [])


def test_what_was_queued_although_that_seems_to_have_failed_keeps_its_lock() -> None:
    job = Job()
    worker = Lock(NAME, token=f"job-{job.id}", adopt=True)

    def publish(taken: bool) -> None:
        worker.acquire()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make().enqueue((7,), {}, job.id, publish, lambda other: other)
    assert worker.owned()


def test_a_job_that_could_not_leave_its_lock_to_a_next_run_which_cannot_be_queued_gives_it_back_itself(
    heard: list[tuple[str, dict[str, Any]]],
) -> None:
    lock, job = make(), Job()

    def body() -> None:
        lock.publish_with(lock.running(job.id).lock, lambda taken: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        lock.run(job, (7,), {}, body)
    assert [what for what, _ in heard] == ["acquired", "released"]


@pytest.mark.parametrize("for_long", [False, True])
def test_redis_is_away_when_what_waits_is_given_back(for_long: bool, network: Any, retry_for: Any, caplog: Any) -> None:
    lock, job = make(), Job()
    assert lock.queue((7,), {}, job.id) is True
    retry_for(0.1 if for_long else GENEROUS)
    if for_long:
        network.cut()
    else:
        network.lose_answer(NAME, times=3)
    lock.release(job, (7,), {})
    network.mend()
    assert (f"event=not-released name={NAME} error=" in caplog.text) is for_long
    assert held() == [NAME][: int(for_long)]


def test_only_what_waits_is_given_back() -> None:
    lock, job = make(), Job()
    assert lock.queue((7,), {}, job.id) is True
    lock.release(job, (7,), {})
    assert held() == []
    lock.release(job, (7,), {})  # once more

    def body() -> list[str]:
        lock.release(job, (7,), {})
        in_thread(lambda: lock.release(job, (7,), {}))
        return held()

    assert lock.run(job, (7,), {}, body) == [NAME]
    assert job.asked == []


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_lock_of_the_code_around_is_not_left_to_a_job(reentrant: bool) -> None:
    """The job would find it busy, as it has another token, until ``queued_ttl`` ends."""
    with Lock(NAME, reentrant=True) as lock:
        assert make(reentrant=reentrant).queue((7,), {}, Job().id) is None
        assert lock.owned()
    assert held() == []


@pytest.mark.django_db
def test_what_cannot_be_queued_inside_a_transaction_says_why(settings: Any) -> None:
    settings.REDISLOCK = {"RELEASE_IN_TRANSACTION": "error"}
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        make().enqueue((7,), {}, Job().id, lambda taken: 1 / 0, lambda other: other)
    assert held() == []


def test_a_note_that_is_too_long_is_cut() -> None:
    def note() -> str:
        info = get_lock("report:" + "7" * 300)
        return "" if info is None else info.note

    assert len(make(note="{pk}" * 9).run(Job(), ("7" * 300,), {}, note)) == 1000


def test_as_many_jobs_run_as_the_limit_says_and_a_permit_is_given_back_by_whoever_has_it() -> None:
    lock = make(lock_from="start", limit=2)

    def beside(id: str, body: Callable[[], Any]) -> Any:
        return in_thread(lambda: lock.run(Job(id), (7,), {}, body))

    assert beside("1" * 20, lambda: beside("2" * 20, lambda: "ran")) == "ran"
    assert beside("3" * 20, lambda: beside("4" * 20, lambda: [beside("5" * 20, lambda: "ran")])) == [None]
    lock.release(Job(), (7,), {})
    assert held() == []


@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
def test_a_job_claims_the_lock_that_it_has_where_it_enters_it_again(account: Account) -> None:
    def book() -> list[int]:
        with locked_atomic(NAME, reentrant=True, fenced=True) as lock:
            return [lock.fence, Fence.objects.get(name=NAME).fence]

    with with_fences("default"):
        fence, claimed = make(fenced=True).run(Job(), (7,), {}, book)  # no warning that it was never claimed
        assert claimed == fence


def test_a_job_gives_its_lock_to_its_next_run_but_once() -> None:
    lock, job = make(queued_ttl=500), Job(comes_back=True)

    def body() -> None:
        for _ in range(2):
            lock.running(job.id).keep_for_next(3000.0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lock.run(job, (7,), {}, body)
    assert lease_of(NAME) > 3000
    assert lock.running(job.id) is None
    # a queue may take that for a retry
    assert lock.run(job, (7,), {}, lambda: lock.running(job.id).keep_for_next()) is None
    assert 3000 > lease_of(NAME) > 400
    assert lock.run(job, (7,), {}, lambda: "ran") == "ran"
