from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from redisserver import RedisServer
from tests.helpers.jobs import held, runs, url
from tests.jobs.queues import (  # noqa: F401 (fixtures)
    Queue,
    Start,
    Work,
    celery_queue,
    django_tasks_queue,
    django_tasks_site,
    dramatiq_queue,
    huey_queue,
    rq_queue,
)

READ: dict[str, Callable[[Any, str], Any]] = {
    "string": lambda client, key: client.get(key),
    "list": lambda client, key: client.lrange(key, 0, -1),
    "set": lambda client, key: client.smembers(key),
    "zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
    "hash": lambda client, key: client.hgetall(key),
}


@pytest.fixture(autouse=True)
def _a_failure_explains_itself(request: pytest.FixtureRequest, server: RedisServer) -> Iterator[None]:
    """Print what a test that failed has left behind: such failures seldom come again."""
    before = request.session.testsfailed
    yield
    if request.session.testsfailed > before:
        print(f"The jobs noted {runs()}; held are {held()}")
        for database in range(4):
            with redis.Redis.from_url(url(database)) as client:
                for key in client.scan_iter():
                    kind = client.type(key).decode()
                    print(database, key, client.ttl(key), READ[kind](client, key) if kind in READ else kind)
                clients = client.client_list() if database == 1 else []
            for one in clients:
                print({name: one[name] for name in ("addr", "name", "age", "idle", "db", "flags", "cmd")})


@pytest.fixture
def site(adapter: Queue) -> Any:
    """Of the ``adapter`` that each file names."""
    return adapter.site


@pytest.fixture
def worker(adapter: Queue) -> Start:
    return adapter.start


@pytest.fixture
def work(adapter: Queue) -> Work:
    return adapter.work
