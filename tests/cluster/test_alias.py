"""Which aliases can be clusters, what the checks say of them, and what is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory
from django.urls import reverse
from redis.exceptions import MovedError, RedisClusterException, ResponseError, SlotNotCoveredError

from django_redislock import Lock, LockUnavailable, get_lock, list_locks, locked_view
from django_redislock.cache_lock import CacheLock
from django_redislock.engine.runtime import runtime
from django_redislock.store.cluster import Cluster as LockStore
from django_redislock.store.stores import get_partition, get_store, make_store
from tests.admin.pages import login
from tests.helpers.cluster import Cluster
from tests.helpers.docs import redis_user
from tests.helpers.ways import DJANGO, DJANGO_REDIS, alias

CLUSTER = {"CACHE": "locks", "CLUSTER": True}


def ids(*, deploy: bool = True) -> list[str]:
    found = run_checks(include_deployment_checks=deploy)
    return [str(message.id).removeprefix("django_redislock.") for message in found if "redislock" in str(message.id)]


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("redis://127.0.0.1:6379/3", "names database 3, and a cluster has only database 0"),
        ("unix:///tmp/redis.sock", "is reached by UnixDomainSocketConnection"),
    ],
)
def test_an_alias_that_cannot_be_a_cluster_is_refused(location: str, why: str, settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": DJANGO_REDIS, "LOCATION": location}}
    settings.REDISLOCK = {"CLUSTER": True}
    with pytest.raises(ImproperlyConfigured, match=f"is a cluster, but it {why}"):
        Lock("a").acquire()
    assert "E003" in ids()


@pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGO])
@pytest.mark.parametrize("cluster", [True, ["default"], ["other"], False])
def test_the_setting_names_the_aliases(backend: str, cluster: object, settings: Any) -> None:
    settings.CACHES = {"default": alias(backend, ["redis://127.0.0.1:1/0", "redis://127.0.0.1:2"])}
    settings.REDISLOCK = {"CLUSTER": cluster}
    store = get_store()
    assert store.clustered is (cluster in (True, ["default"]))
    if store.clustered:
        assert store.origin.startup == (("127.0.0.1", 1), ("127.0.0.1", 2))
        assert store.identity == (("cluster", ("127.0.0.1", 1), ("127.0.0.1", 2)), "redislock")


def test_the_checks_look_at_every_node(cluster: Cluster, settings: Any) -> None:
    assert ids() == []
    settings.REDISLOCK = {**CLUSTER, "REPLICAS": 2}
    assert ids() == ["W009"]
    cluster.masters()[1].client().config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert ids() == ["W009", "W005"]
    finally:
        cluster.masters()[1].client().config_set("maxmemory-policy", "noeviction")
    settings.REDISLOCK = {"CACHE": "locks"}
    assert ids() == ["E007"]


def test_a_cluster_that_is_away_is_one_that_cannot_be_inspected(settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, "redis://127.0.0.1:1/0")}
    settings.REDISLOCK = {**CLUSTER, "RETRY_FOR": 0}
    assert ids() == ["W004"]
    with pytest.raises(LockUnavailable, match="cannot be reached for the lock 'a'"):
        Lock("a").acquire()


@pytest.mark.django_db
def test_a_client_whose_cluster_is_away_is_unavailable(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from redis.cluster import RedisCluster

    def get_client(self: Any, write: bool = True) -> Any:
        return RedisCluster.from_url("redis://127.0.0.1:1")

    monkeypatch.setattr("django_redis.client.DefaultClient.get_client", get_client)
    settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, "redis://127.0.0.1:1/0")}
    settings.REDISLOCK = {"CACHE": "locks"}
    with pytest.raises(LockUnavailable, match="cannot be reached for locks"):
        Lock("a").acquire()
    with pytest.raises(redis.ConnectionError, match="cannot be reached for locks"):
        CacheLock("a")
    assert ids() == ["W004"]
    assert ids(deploy=False) == []
    settings.REDISLOCK = {"CACHE": "locks", "VIEW_UNAVAILABLE_STATUS": 503}
    view = locked_view("a")(lambda request: HttpResponse("ran"))
    assert view(RequestFactory().get("/")).status_code == 503
    page = login(User.objects.create_superuser("jo")).get(reverse("admin:django_redislock_heldlock_changelist"))
    assert "Could not read the locks from Redis" in page.text


@pytest.mark.parametrize("version", ["6.2.14", "7.0.0"])
def test_a_cluster_without_sharded_messages_is_refused_by_name(version: str, settings: Any) -> None:
    def fail(section: str) -> None:
        raise redis.ConnectionError("down")

    client, down = SimpleNamespace(info=lambda section: {"redis_version": version}), SimpleNamespace(info=fail)
    nodes = {"down": SimpleNamespace(redis_connection=down), "a": SimpleNamespace(redis_connection=client)}
    manager: Any = SimpleNamespace(nodes_cache=nodes)
    settings.CACHES = {"default": alias(DJANGO_REDIS, "redis://127.0.0.1:1/0")}
    settings.REDISLOCK = {"CLUSTER": True}
    store = make_store("default", "x")
    assert isinstance(store, LockStore)
    if version.startswith("6"):
        with pytest.raises(ImproperlyConfigured, match=r"is version 6\.2\.14; locks on a cluster need"):
            store._check_version(manager)
    else:
        store._check_version(manager)

    def refuse(section: str) -> None:
        raise ResponseError("NOPERM")

    client.info = refuse
    store._check_version(manager)
    client.info = fail
    store._check_version(manager)


def test_nodes_in_doubt_are_asked_when_nobody_else_answers(settings: Any) -> None:
    settings.CACHES = {"default": alias(DJANGO_REDIS, "redis://127.0.0.1:1/0")}
    settings.REDISLOCK = {"CLUSTER": True}
    store = make_store("default", "x")
    assert isinstance(store, LockStore)
    asked: list[list[str]] = []
    answering: set[str] = set()

    def initialize() -> None:
        asked.append(sorted(manager.startup_nodes))
        if not answering.intersection(manager.startup_nodes):
            raise RedisClusterException("nobody answers")

    nodes = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]  # the settings name the first
    manager: Any = SimpleNamespace(startup_nodes={}, initialize=initialize)

    def ask() -> list[list[str]]:
        manager.startup_nodes = {name: SimpleNamespace(name=name) for name in nodes}
        asked.clear()
        store._initialize(manager)
        return asked

    answering.update(nodes)
    assert ask() == [nodes]
    nodes = nodes[1:]
    assert ask() == [nodes]
    answering.difference_update(nodes)
    assert ask() == [nodes, ["127.0.0.1:1"]]
    nodes = ["127.0.0.1:1", *nodes]
    answering.update(nodes)
    store.doubt(store._node_at("127.0.0.1", 1))
    assert ask() == [nodes[1:]]
    store.doubt(store._node_at("127.0.0.1", 2))
    assert ask() == [nodes[2:]]
    answering.discard("127.0.0.1:3")
    assert ask() == [nodes[2:], nodes[:2]]
    store.doubt(store._node_at("127.0.0.1", 3))
    assert ask() == [nodes]
    answering.clear()
    for _ in range(2):
        with pytest.raises(RedisClusterException):
            ask()
        assert sorted(manager.startup_nodes) == nodes, "they are asked again the next time"
        store._node_at("127.0.0.1", 3).doubted_at = 0.0


def test_a_cluster_that_serves_no_slot_of_ours_is_away(settings: Any) -> None:
    def find(slot: int) -> None:
        raise SlotNotCoveredError(f"Slot {slot} is not covered")

    settings.CACHES = {"default": alias(DJANGO_REDIS, "redis://127.0.0.1:1/0")}
    settings.REDISLOCK = {"CLUSTER": True}
    store = make_store("default", "x")
    assert isinstance(store, LockStore)
    manager: Any = SimpleNamespace(get_node_from_slot=find)
    with pytest.raises(SlotNotCoveredError):
        store._read_nodes_by_tag(manager)


def test_announced_addresses_are_translated(cluster: Cluster, settings: Any) -> None:
    seen: list[tuple[str, int]] = []

    def remap(address: tuple[str, int]) -> tuple[str, int]:
        seen.append(address)
        return "127.0.0.1", address[1]

    url = cluster.masters()[0].url
    settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, url, address_remap=remap)}
    with Lock("a"):
        assert {port for _, port in seen} >= {node.port for node in cluster.masters()}
    store, partition = get_store(), get_partition(None, "a")
    assert isinstance(store, LockStore)
    error = MovedError(f"1 :{cluster.masters()[0].port}")  # the host that was asked
    assert store.redirect(partition, error, partition.node)
    assert seen[-1] == ("127.0.0.1", cluster.masters()[0].port)
    with Lock("a"):
        pass


def test_a_user_without_the_right_to_wait_is_a_clear_error(cluster: Cluster, settings: Any) -> None:
    for node in cluster.masters():
        node.client().execute_command("ACL SETUSER locks on >secret ~* &* +@all -wait")
    try:
        url = cluster.masters()[0].url.replace("redis://", "redis://locks:secret@")
        settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, url)}
        with pytest.raises(LockUnavailable, match="Without WAIT, no replicas can be asked for: set REPLICAS to 0"):
            Lock("a", replicas=1).acquire()
        with Lock("a"):
            pass
    finally:
        for node in cluster.masters():
            node.client().execute_command("ACL DELUSER locks")


def test_a_user_with_the_documented_rights_can_use_a_cluster(
    cluster: Cluster, settings: Any, other: Any, eventually: Any
) -> None:
    rights = {word for word in redis_user()[0] if word[0] == "+"} - {"+subscribe", "+publish", "+pubsub|numsub"}
    rights |= {"+ssubscribe", "+spublish", "+pubsub|shardnumsub", "+cluster|slots", "+cluster|myid", "+wait"}
    rights |= {"~redislock{*}:*", "&redislock{*}:wake!*"}
    clients = [node.client() for node in cluster.nodes]
    for client in clients:
        client.execute_command("ACL", "SETUSER", "locks", "reset", "on", ">s3cret", "resetchannels", *sorted(rights))
    try:
        url = cluster.masters()[0].url.replace("redis://", "redis://locks:s3cret@")
        settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, url)}
        for name in [f"order:{number}" for number in range(6)]:
            held = Lock(name, replicas=1)
            held.acquire()
            waiting = other().start(Lock(name).acquire)
            eventually(lambda name=name: (info := get_lock(name)) is not None and info.waiters == 1)
            eventually(lambda name=name: runtime().listener(get_partition(None, name)).hears)
            held.release()
            assert waiting.result(30)
        assert len(list_locks()) == 6
    finally:
        for client in clients:
            client.execute_command("ACL", "DELUSER", "locks")


def test_sentinels_are_no_cluster(settings: Any) -> None:
    settings.CACHES = {
        "default": {
            "BACKEND": DJANGO_REDIS,
            "LOCATION": "redis://service/0",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
                "SENTINELS": [("127.0.0.1", 1)],
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            },
        }
    }
    settings.REDISLOCK = {"CLUSTER": True}
    settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.SentinelConnectionFactory"
    with pytest.raises(ImproperlyConfigured, match="is reached by SentinelManaged"):
        Lock("a").acquire()


def test_the_settings_are_checked(settings: Any) -> None:
    settings.REDISLOCK = {"CLUSTER": "yes"}
    with pytest.raises(
        ImproperlyConfigured,
        match=r"^REDISLOCK\['CLUSTER'\] must be True, False or a list of cache aliases, not 'yes'\.$",
    ):
        Lock("a").acquire()


def test_an_alias_that_is_not_in_caches_is_told(settings: Any) -> None:
    settings.REDISLOCK = {"CLUSTER": ["lokcs"]}
    assert ids(deploy=False) == ["E002"]
