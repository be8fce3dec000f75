"""A Redis Cluster of three masters with a replica each, and names whose locks are on a certain node."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import count
from typing import Any

import pytest
from django.test import override_settings
from redis.crc import key_slot

from tests.helpers.cluster import Cluster, Node, redis_cluster
from tests.helpers.ways import DJANGO_REDIS, alias
from tests.inside import counter_of, keys_of

Queue = Callable[..., "Future[Any]"]


def slot_of(name: str) -> int:
    """The slot of everything that belongs to the lock ``name``."""
    return key_slot(str(counter_of(name)).encode())


def key_of(name: str) -> str:
    return keys_of(name, f"redislock{{{counter_of(name)}}}:").lock


def names_on(cluster: Cluster, node: Node, number: int = 1) -> list[str]:
    """So many names, each with another tag, whose locks are on this node."""
    owners, found = cluster.owners(), dict[int, str]()
    for i in count():
        name = f"order:{i}"
        if owners[slot_of(name)] is node:
            found.setdefault(slot_of(name), name)
        if len(found) == number:
            return list(found.values())
    raise AssertionError


@pytest.fixture(scope="session")
def shared() -> Iterator[Cluster]:
    """A cluster shared by tests that do not end nodes."""
    with redis_cluster() as cluster:
        yield cluster


def use(cluster: Cluster, **settings: object) -> override_settings:
    location = [node.url for node in cluster.masters()[:2]]
    return override_settings(
        CACHES={
            "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
            "locks": alias(DJANGO_REDIS, location),
        },
        REDISLOCK={"CACHE": "locks", "CLUSTER": True, **settings},
    )


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    for node in shared.masters():
        node.client().flushall()
    with use(shared):
        yield shared


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster that a test may break."""
    with redis_cluster() as cluster, use(cluster, TTL=6, RETRY_FOR=10):
        yield cluster
