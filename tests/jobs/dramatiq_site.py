"""A site with Dramatiq's actors under locks, for test_dramatiq.py and the workers that it starts."""

import os
from collections.abc import Callable
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
from tests.helpers.jobs import gate, note, runs, url

django.setup()


class Trouble(Exception):
    pass


# from_enqueue, and all share one lock for each year
ACTORS: dict[str, dict[str, Any]] = {
    "report": {"ttl": 500},
    "patient": {"busy": "retry"},
    "sync": {"busy": "merge"},
    "at_start": {"lock_from": "start"},
    "stubborn": {"max_retries": 1, "min_backoff": 100, "max_backoff": 1000},
    "hopeless": {"max_retries": 0},
    "thrower": {"throws": Trouble},
}


def declare(broker: Any) -> Any:
    """The actors; each notes who it is, waits at a gate, and may fail in so many runs."""

    def body(name: str) -> Callable[..., Any]:
        def run(year: int, wait: str = "", fails: int = 0) -> str:
            message: Any = CurrentMessage.get_current_message()
            note(name, year, message.options.get("retries", 0) if message else "called")
            number = len(runs())
            gate(wait)
            if number <= fails:
                raise Trouble
            return f"{name} {year}"

        return run

    def make(name: str, options: dict[str, Any]) -> LockedActor:
        every = {"lock": "report:{year}", "lock_from": "enqueue", **options}
        made: Any = dramatiq.actor(actor_name=name, broker=broker, actor_class=LockedActor, **every)
        return made(body(name))  # type: ignore[no-any-return]

    return SimpleNamespace(**{name: make(name, options) for name, options in ACTORS.items()})


heartbeat = int(os.environ.get("TEST_HEARTBEAT", 60_000))
broker = RedisBroker(url=url(1), maintenance_chance=1_000_000, heartbeat_timeout=heartbeat)
# whoever waits for a result waits for it in Redis, longer than redis-py waits for an answer by itself
backend = RedisBackend(client=redis.Redis.from_url(url(2), socket_timeout=None))
broker.add_middleware(Results(backend=backend, store_results=True))
broker.add_middleware(RedisLock())
dramatiq.set_broker(broker)
actors = declare(broker)
