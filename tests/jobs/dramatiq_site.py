"""A site with Dramatiq's actors under locks, for test_dramatiq.py and the workers that it starts."""

import os
from types import SimpleNamespace
from typing import Any

import django
import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from django_redislock.jobs.dramatiq import LockedActor, RedisLock
from tests.helpers.jobs import url
from tests.jobs.examples import examples, run

django.setup()


OWN: dict[str, dict[str, Any]] = {
    "sync": {"max_retries": 0},
    "stubborn": {"max_retries": 2, "min_backoff": 600_000},
    "impatient": {"max_retries": 0},
}


def tried() -> int:
    message: Any = CurrentMessage.get_current_message()
    return message.options.get("retries", 0) if message else 0


def declare(broker: Any) -> Any:
    """The actors of this broker."""

    @dramatiq.actor(broker=broker, actor_class=LockedActor, lock="report:{year}", lock_from="enqueue", ttl=500)
    def report(year: int, wait: str = "", fails: int = 0) -> str:
        return run("report", year, wait, fails, tried())

    def make(function: Any, **options: Any) -> Any:
        own = OWN.get(function.__name__, {})
        return dramatiq.actor(broker=broker, actor_class=LockedActor, **options, **own)(function)

    return SimpleNamespace(report=report, **examples(__name__, make, tried))


heartbeat = int(os.environ.get("TEST_HEARTBEAT", 60_000))
broker = RedisBroker(url=url(1), maintenance_chance=1_000_000, heartbeat_timeout=heartbeat)
# whoever waits for a result waits for it in Redis, longer than redis-py waits for an answer by itself
backend = RedisBackend(client=redis.Redis.from_url(url(2), socket_timeout=None))
broker.add_middleware(Results(backend=backend, store_results=True))
broker.add_middleware(RedisLock())
dramatiq.set_broker(broker)
actors = declare(broker)
