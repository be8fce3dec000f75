"""Which aliases can be clusters, what the checks say of them, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError

from django_redislock import Lock, LockError, LockUnavailable, list_locks, locked_view
from tests.admin.pages import login
from tests.helpers.browser import LIST
from tests.helpers.cluster import Cluster
from tests.helpers.docs import redis_user
from tests.helpers.ways import BOTH, DJANGO_REDIS, alias
from tests.inside import Ears

from .conftest import Eventually, Queue, names_on

CLUSTER = {"CACHE": "locks", "CLUSTER": True}
NOWHERE = "redis://127.0.0.1:1/0"


def ids(*, deploy: bool = True) -> list[str]:
    found = run_checks(include_deployment_checks=deploy)
    return [str(message.id).removeprefix("django_redislock.") for message in found if "redislock" in str(message.id)]


def use_all() -> None:
    """At all nodes."""
    for number in range(10):
        with Lock(f"order:{number}"):
            pass


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (alias(DJANGO_REDIS, "redis://127.0.0.1:6379/3"), "names database 3, and a cluster has only database 0"),
        (alias(DJANGO_REDIS, "unix:///tmp/redis.sock"), "is reached by UnixDomainSocketConnection"),
    ],
)
def test_an_alias_that_cannot_be_a_cluster_is_refused(given: dict[str, Any], why: str, settings: Any) -> None:
    settings.CACHES = {"default": given}
    settings.REDISLOCK = {"CLUSTER": True}
    with pytest.raises(ImproperlyConfigured, match=f"is a cluster, but it {why}"):
        Lock("a").acquire()
    assert "E003" in ids()


@BOTH
def test_the_setting_names_the_aliases_whose_addresses_are_all_tried(
    backend: str, cluster: Cluster, settings: Any
) -> None:
    settings.CACHES = {"default": alias(backend, [NOWHERE, cluster.masters()[0].url])}
    for setting in True, ["default"]:
        settings.REDISLOCK = {"CLUSTER": setting, "RETRY_FOR": 0}
        use_all()
    for setting in False, ["other"]:
        settings.REDISLOCK = {"CLUSTER": setting, "RETRY_FOR": 0}
        with pytest.raises(LockUnavailable):  # it is one server, the first
            use_all()
    failed = []
    for node in cluster.masters():
        settings.CACHES = {"default": alias(backend, node.url)}
        try:
            Lock("a").acquire(blocking_timeout=0)
        except LockError as error:
            failed.append(str(error))
    assert len(failed) == 2  # one node has the slot of the tag 0
    for text in failed:
        assert "MOVED" in text
        assert text.endswith("This is a node of a Redis Cluster: set REDISLOCK['CLUSTER'] = True.")


@pytest.mark.complete
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
    settings.REDISLOCK = {"CLUSTER": ["lokcs"]}
    assert ids(deploy=False) == ["E002"]


@pytest.mark.django_db
@pytest.mark.parametrize("known_by", ["its client", "the setting"])
def test_a_client_of_a_cluster_is_recognised_and_one_that_is_away_is_unavailable(
    known_by: str, cluster: Cluster, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if known_by == "its client":
        make = lambda self, write=True: RedisCluster.from_url(self._server[0])  # noqa: E731
        monkeypatch.setattr("django_redis.client.DefaultClient.get_client", make)
    settings.REDISLOCK = {"CACHE": "locks", "CLUSTER": known_by == "the setting", "RETRY_FOR": 0}
    settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, cluster.masters()[0].url)}
    use_all()
    settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, NOWHERE)}
    with pytest.raises(LockUnavailable, match="cannot be reached for"):
        Lock("a").acquire()
    assert "W004" in ids()
    assert "W004" not in ids(deploy=False)
    settings.REDISLOCK = {**settings.REDISLOCK, "VIEW_UNAVAILABLE_STATUS": 503}
    view = locked_view("a")(lambda request: HttpResponse("ran"))
    assert view(RequestFactory().get("/")).status_code == 503
    page = login(User.objects.create_superuser("jo")).get(LIST)
    assert "Could not read the locks from Redis" in page.text


@pytest.mark.parametrize("found", ["6.2.14", redis.ConnectionError("down"), ResponseError("NOPERM")])
def test_a_cluster_without_sharded_messages_is_refused_by_name_if_it_says_its_version(
    found: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def info(self: redis.Redis, section: str) -> dict[str, str]:
        if isinstance(found, Exception):
            raise found
        return {"redis_version": found}

    monkeypatch.setattr(redis.Redis, "info", info)
    if isinstance(found, Exception):
        use_all()
    else:
        with pytest.raises(ImproperlyConfigured, match=r"is version 6\.2\.14; locks on a cluster need"):
            use_all()


def test_announced_addresses_are_translated(cluster: Cluster, settings: Any) -> None:
    seen: list[tuple[str, int]] = []

    def remap(address: tuple[str, int]) -> tuple[str, int]:
        seen.append(address)
        return "127.0.0.1", address[1]

    first = cluster.masters()[0].url
    settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, first, address_remap=remap)}
    use_all()
    assert {port for _, port in seen} >= {master.port for master in cluster.masters()}


def test_a_user_with_the_documented_rights_can_use_a_cluster(
    cluster: Cluster, settings: Any, queue: Queue, eventually: Eventually
) -> None:
    def become(*rights: str) -> None:
        for node in cluster.nodes:
            node.ask("ACL", "SETUSER", "locks", "reset", "on", ">s3cret", *rights)
        url = cluster.masters()[0].url.replace("redis://", "redis://locks:s3cret@")
        settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, url)}

    become("~*", "&*", "+@all", "-wait")
    with pytest.raises(LockUnavailable, match="Without WAIT, no replicas can be asked for: set REPLICAS to 0"):
        Lock("a", replicas=1).acquire()
    rights = {word for word in redis_user()[0] if word[0] == "+"} - {"+subscribe", "+publish", "+pubsub|numsub"}
    rights |= {"+ssubscribe", "+spublish", "+pubsub|shardnumsub", "+cluster|slots", "+cluster|myid", "+wait"}
    become("resetchannels", "~redislock{*}:*", "&redislock{*}:wake!*", *sorted(rights))
    for node in cluster.masters():
        (name,) = names_on(cluster, node)
        held = Lock(name, replicas=1)
        held.acquire()
        waiting = queue(Lock(name))
        eventually(lambda name=name: Ears(name=name).hears)
        held.release()
        assert waiting.result(30)
    assert len(list_locks()) == 3
    for node in cluster.nodes:
        node.ask("ACL", "DELUSER", "locks")
