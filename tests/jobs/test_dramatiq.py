"""Dramatiq's actors under locks: with real workers, and with the stub broker."""

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from django_redislock import Lock, LockNotAcquired
from redisserver import RedisServer
from tests.helpers.actors import until
from tests.helpers.jobs import coroutine, generator, held, hiding, lease_of, let_pass, runs
from tests.jobs.examples import Trouble
from tests.jobs.queues import LONG, DramatiqQueue, Start

IN_MS = 1000 * round(LONG)


@pytest.fixture
def adapter(dramatiq_queue: DramatiqQueue) -> DramatiqQueue:
    return dramatiq_queue


@pytest.fixture
def actors(site: Any) -> Any:
    """Whose messages wait in Redis for a worker."""
    return site.actors


class Stub:
    """Workers in this process."""

    def __init__(self, site: Any) -> None:
        from dramatiq import Worker
        from dramatiq.brokers.stub import StubBroker
        from dramatiq.middleware import AsyncIO, GroupCallbacks, default_middleware
        from dramatiq.rate_limits.backends import StubBackend as Barriers
        from dramatiq.results import Results
        from dramatiq.results.backends import StubBackend

        kinds = [each for each in default_middleware if each.__name__ != "TimeLimit"]  # whose thread would stay
        self.results = StubBackend()
        results: Any = Results(backend=self.results, store_results=True)
        middleware = [*(each() for each in [*kinds, AsyncIO]), GroupCallbacks(Barriers()), results, site.RedisLock()]
        self.broker: Any = StubBroker(middleware, fail_fast_default=False)
        self.site, self.dramatiq, self.actors = site, site.dramatiq, site.declare(self.broker)
        self._worker = Worker(self.broker, worker_timeout=20, worker_threads=3)
        self.start = self._worker.start

    def declare(self, function: Any, **options: Any) -> Any:
        """Make it an actor under the lock ``x``."""
        every = {"actor_class": self.site.LockedActor, "lock": "x", "lock_from": "enqueue", **options}
        return self.dramatiq.actor(broker=self.broker, **every)(function)

    def wait(self) -> None:
        """Until all is done."""
        self.broker.join("default", timeout=IN_MS)

    def result(self, message: Any) -> Any:
        return message.get_result(backend=self.results, block=True, timeout=IN_MS)

    def close(self) -> None:
        self._worker.stop()
        self.broker.close()


@pytest.fixture
def stub(site: Any) -> Iterator[Stub]:
    made = Stub(site)
    made.start()
    yield made
    made.close()


@pytest.mark.complete
def test_a_message_that_is_delivered_again_after_a_kill_enters_at_once(actors: Any, worker: Start) -> None:
    first = actors.report.send(7, wait="here")
    killed = worker(TEST_HEARTBEAT=1000)
    until(lambda: runs())
    killed.kill()
    assert actors.report.send(7).message_id == first.message_id
    worker(TEST_HEARTBEAT=1000)
    until(lambda: runs() == ["report 7"] * 2)
    assert lease_of("report:7") > 300  # of the lock that it has adopted
    let_pass("here")
    assert first.get_result(block=True, timeout=IN_MS) == "report 7"
    until(lambda: held() == [])


@pytest.mark.complete
def test_a_copy_does_not_run_beside_its_message(site: Any, actors: Any, worker: Start) -> None:
    first = actors.report.send(7, wait="here")
    worker()
    until(lambda: runs())
    site.broker.enqueue(first)
    until(lambda: site.broker.client.hlen("dramatiq:default.DQ.msgs") == 1)  # put off
    let_pass("here")
    assert first.get_result(block=True, timeout=IN_MS) == "report 7"
    until(lambda: held() == [])
    assert runs() == ["report 7"]


def test_a_retry_does_what_was_merged(stub: Stub) -> None:
    stub.actors.sync.options.update(max_retries=1, min_backoff=1)
    first = stub.actors.sync.send(7, wait="here", fails=1)
    until(lambda: runs() == ["sync 7"])
    assert stub.actors.sync.send(7).message_id == first.message_id
    let_pass("here")
    until(lambda: len(runs()) == 2 and held() == [])
    stub.wait()
    assert runs() == ["sync 7", "sync 7 after 1"]


def test_a_copy_that_comes_after_the_end_leaves_the_result_alone(stub: Stub) -> None:
    message = stub.actors.report.send(7)
    assert stub.result(message) == "report 7"
    stub.broker.enqueue(message)
    stub.wait()
    assert (runs(), stub.result(message), held()) == (["report 7"], "report 7", [])


def test_while_redis_is_away_a_message_is_put_off(site: Any, own: RedisServer, retry_for: Any) -> None:
    retry_for(0.1)
    stub = Stub(site)
    message = stub.declare(lambda: "done", actor_name="run").send()
    own.stop()
    stub.start()
    until(lambda: stub.broker.queues["default.DQ"].unfinished_tasks)
    own.start()
    assert stub.result(message) == "done"
    stub.close()


def test_the_lock_lasts_until_the_retry(stub: Stub) -> None:
    def fail(year: int, delay: int | None) -> None:
        raise stub.dramatiq.Retry(delay=delay) if delay else ZeroDivisionError

    actor = stub.declare(fail, lock="report:{year}", queued_ttl=100, min_backoff=1_000_000)
    actor.send(7, delay=5_000_000)
    until(lambda: stub.broker.queues["default.DQ"].unfinished_tasks and 4900 < lease_of("report:7") <= 5100)
    actor.send(8, delay=None)
    until(lambda: stub.broker.queues["default.DQ"].unfinished_tasks == 2)
    assert 1900 < lease_of("report:8") <= 2100


@pytest.mark.parametrize("options", [{"max_retries": 0}, {"throws": Trouble}, {"max_retries": 1, "min_backoff": 1}])
def test_a_message_that_fails_for_good_releases_its_lock(options: dict[str, Any], stub: Stub) -> None:
    stub.actors.report.options.update(options)
    message = stub.actors.report.send(7, fails=9)
    until(lambda: [each.message_id for each in stub.broker.dead_letters] == [message.message_id])
    until(lambda: held() == [])


def test_without_retries_a_failure_releases_the_lock(stub: Stub) -> None:
    kept = [each for each in stub.broker.middleware if not isinstance(each, stub.dramatiq.middleware.Retries)]
    stub.broker.middleware = kept
    stub.actors.report.send(7, fails=9)
    stub.wait()
    assert (runs(), held()) == (["report 7"], [])


def test_a_message_that_is_skipped_even_by_its_function_releases_its_lock(site: Any) -> None:
    class Refuses(site.dramatiq.Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            raise site.dramatiq.middleware.SkipMessage

    def skip() -> None:
        raise site.dramatiq.middleware.SkipMessage

    stub = Stub(site)
    stub.declare(skip, actor_name="skip").send()
    stub.actors.report.send_with_options(args=(7,), max_age=1)
    stub.actors.page.send_with_options(args=(7,), max_age=1)
    assert held() == ["report:7", "x"]
    stub.start()
    until(lambda: held() == [])
    stub.wait()
    stub.broker.add_middleware(Refuses())
    stub.actors.report.send(8)
    stub.wait()
    assert (runs(), held()) == ([], [])
    stub.close()


def test_a_message_of_an_unknown_actor_is_no_matter_of_ours(stub: Stub) -> None:
    stub.broker.enqueue(stub.actors.report.message(7).copy(actor_name="gone"))
    until(lambda: stub.broker.dead_letters)


def test_members_of_a_group_acquire_when_they_start(stub: Stub) -> None:
    done = stub.declare(lambda: stub.actors.report.fn(9), actor_name="done")
    report = stub.actors.report
    members = stub.dramatiq.group([report.message(7, wait="here"), report.message(7)], broker=stub.broker)
    members.add_completion_callback(done.message())
    members.run()
    until(lambda: stub.broker.queues["default"].unfinished_tasks == 1)
    let_pass("here")
    until(lambda: "report 9" in runs())
    assert runs() == ["report 7", "report 9"]
    stub.wait()
    assert held() == []


class Order(NamedTuple):
    pk: int


def test_such_a_call_and_an_equal_message_have_one_lock(stub: Stub) -> None:
    with Lock("report:[1,%202]"):
        assert stub.actors.report.send((1, 2)) is None  # JSON makes a list of it
        with pytest.raises(LockNotAcquired):
            stub.actors.report((1, 2))
    stub.actors.report(1 + 2j)  # no JSON, so no equal message
    ship = stub.declare(lambda order: held(), lock="order:{order.pk}", actor_name="ship")
    assert ship(Order(7)) == ["order:7"]  # of which JSON makes a list, without a pk


def test_coroutine_functions_and_generic_actors_have_locks_too(site: Any, stub: Stub) -> None:
    async def awaited(year: int) -> list[str]:
        return await asyncio.to_thread(held)

    class Generic(site.dramatiq.GenericActor):
        class Meta:
            broker, actor_class, lock, lock_from = stub.broker, site.LockedActor, "generic:{year}", "enqueue"

        def perform(self, year: int) -> list[str]:
            return held()

    assert stub.result(stub.declare(awaited, lock="awaited:{year}").send(7)) == ["awaited:7"]
    generic: Any = Generic
    assert stub.result(generic.send(7)) == ["generic:7"]
    stub.wait()
    assert held() == []


def test_only_a_locked_actor_has_options_of_locks(stub: Stub) -> None:
    with pytest.raises(Exception, match="run has lock, lock_from, but is no LockedActor: give actor_class"):
        stub.declare(lambda year: None, actor_name="run", actor_class=stub.dramatiq.Actor)
    assert "run" not in stub.broker.actors


def test_what_runs_when_the_lock_is_free_again_is_no_generic_actor(stub: Stub) -> None:
    def declare(perform: Any) -> Any:
        meta = type("Meta", (), {"broker": stub.broker, "actor_class": stub.site.LockedActor, "lock": "x"})
        kind: Any = type(stub.dramatiq.GenericActor)
        return kind("Generic", (stub.dramatiq.GenericActor,), {"Meta": meta, "perform": perform})

    with pytest.raises(TypeError, match=r"^The actor .* cannot lock <function .* when the lock is free again"):
        declare(generator)
    assert "Generic" not in stub.broker.actors
    with pytest.raises(TypeError, match="cannot lock"):
        declare(hiding(coroutine)).__actor__()
    assert (runs(), held()) == ([], [])


def test_a_plain_actor_needs_no_lock(stub: Stub) -> None:
    assert stub.result(stub.dramatiq.actor(broker=stub.broker, actor_name="plain")(lambda: len(held())).send()) == 0


def test_without_the_middleware_dramatiq_refuses_the_options(site: Any) -> None:
    from dramatiq.brokers.stub import StubBroker

    with pytest.raises(ValueError, match=r"options are undefined: .*Did you forget to add a middleware"):
        site.declare(StubBroker())
