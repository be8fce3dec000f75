"""A master that dies while three real sentinels watch it, without and with replicas that acknowledge grants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from redisserver import RedisServer
from tests.helpers.requirements import require
from tests.helpers.sentinels import NAME, SentinelGroup
from tests.helpers.ways import DJANGO_REDIS

from .faults import PATIENT, SIT_OUT, YES, Fault
from .trial import Trial, eventually


class OnSentinels(RedisServer):
    """The current master, and the ``group``. ``settings`` are those of the workers."""

    def __init__(self, group: SentinelGroup, **settings: Any) -> None:
        self.__dict__ = {**group.servers[0].__dict__}
        self.group = group
        self.settings = settings
        self.cache = {
            "BACKEND": DJANGO_REDIS,
            "LOCATION": f"redis://{NAME}/0",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                "SENTINELS": group.sentinel_addresses,
                "SOCKET_TIMEOUT": 2,
            },
        }


@contextmanager
def on_sentinels(**settings: Any) -> Iterator[RedisServer]:
    with closing(require(SentinelGroup)) as group:
        yield OnSentinels(group, **settings)


def with_replicas() -> AbstractContextManager[RedisServer]:
    return on_sentinels(REPLICAS=1)


def kill_watched(run: Trial) -> None:
    replace(run, deaf=False)


def kill_watched_of_deaf_replicas(run: Trial) -> None:
    """Its replicas have received nothing for the last half second."""
    replace(run, deaf=True)


def replace(run: Trial, *, deaf: bool) -> None:
    assert isinstance(run.server, OnSentinels)
    group = run.server.group
    with run.trouble(forgets=True):
        if deaf:
            old = replace_unheard(group, lambda: run.last(0.5))
        else:
            old = group.kill_master()
            group.wait_for_failover(old)
    run.moved(group.master_server())
    with run.trouble():
        old.start()
        group.wait_until_ok()


def replace_unheard(group: SentinelGroup, meanwhile: Callable[[], object]) -> RedisServer:
    """Kill the master and wait for its successor, which has received nothing of ``meanwhile``. Return the old
    master."""
    old = group.master_server()
    followers = [client for server, client in zip(group.servers, group.clients, strict=True) if server.port != old.port]
    for client in followers:  # a password that nobody asked for: the link stays down
        client.config_set("masterauth", "wrong")
        client.execute_command("CLIENT", "KILL", "TYPE", "master")
    meanwhile()
    group.kill_master()
    eventually(lambda: group.master_server() is not old)
    for client in followers:
        client.config_set("masterauth", "")
    group.wait_for_failover(old)
    return old


HOLDS = [0.0] * 20 + [0.01] * 10 + [0.1] * 4 + [0.5] * 2 + [3.0]
ON_SENTINELS = [
    Fault("Sentinel: the master dies", kill_watched, PATIENT, SIT_OUT, YES, server=on_sentinels, holds=HOLDS),
    Fault(
        "the same, with ``REPLICAS = 1``", kill_watched, PATIENT, SIT_OUT, YES, server=with_replicas, holds=HOLDS
    ),
    Fault(
        "Sentinel: the master dies, replicas without the last writes", kill_watched_of_deaf_replicas, PATIENT, SIT_OUT,
        YES, server=on_sentinels, holds=HOLDS,
    ),
    Fault(
        "this too, with ``REPLICAS = 1``", kill_watched_of_deaf_replicas, PATIENT, SIT_OUT,
        YES, server=with_replicas, holds=HOLDS,
    ),
]  # fmt: skip
