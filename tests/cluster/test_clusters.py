"""What works on one server works on a cluster, which aliases can be clusters, and what is refused by name."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from time import monotonic
from typing import Any
from urllib.parse import quote
from zlib import crc32

import pytest
import redis
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.http import HttpResponse
from django.test import RequestFactory
from redis.cluster import RedisCluster

from django_redislock import (
    ConditionalValue,
    Counter,
    Lock,
    LockError,
    LockNotAcquired,
    LockPool,
    LockSet,
    LockUnavailable,
    Semaphore,
    alist_locks,
    alist_pools,
    force_release,
    get_lock,
    list_locks,
    list_pools,
    locked_get_or_set,
    locked_view,
)
from tests.admin.pages import login, select, told
from tests.checks.conftest import ids
from tests.helpers.actors import GENEROUS, Crowd, until
from tests.helpers.browser import LIST
from tests.helpers.cluster import Cluster
from tests.helpers.docs import redis_user
from tests.helpers.proxy import proxy
from tests.helpers.state import count, outlives
from tests.helpers.ways import BOTH, DJANGO_REDIS, NAME, alias, connections
from tests.inside import (
    ACQUIRE,
    RENEW,
    Ears,
    believe_at,
    limit,
    note_exchanges,
    note_round_trips,
    refuse_subscription,
    suspect,
)

from .conftest import Queue, key_of, names_on, slot_of, use

MANY = [f"order:{number}" for number in range(200)]

Look = Callable[[int, Any], object]


def mine(look: Look) -> Look:
    """Only in this thread: the process has others that send."""
    me = threading.current_thread()
    return lambda port, commands: look(port, commands) if threading.current_thread() is me else None


def test_semaphores_are_spread_as_well_and_lists_show_all_of_them(cluster: Cluster) -> None:
    names = [f"semaphore:export:{number}" for number in range(20)]
    permits = [Semaphore(name, limit=2) for name in names]
    for permit in (*permits, permits[0]):
        assert permit.acquire()
    with pytest.raises(LockNotAcquired):
        Semaphore(names[0], limit=2, blocking_timeout=0.1).__enter__()
    assert sum(bool(node.client().dbsize()) for node in cluster.masters()) > 1
    listed = {lock.name: lock.permits_held for lock in list_locks("semaphore:*")}
    assert listed == dict.fromkeys(names, 1) | {names[0]: 2}
    for name in names:
        assert force_release(name)
    assert list_locks() == []


def test_a_set_of_locks_may_be_on_several_nodes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    together = [name for name in sorted(MANY) if slot_of(name) == slot_of(min(MANY))]
    apart = [f"z:{name}" for name in MANY[:20]]
    asked: list[int] = []
    for names in ([*together, *apart], together):  # so that the nodes know the scripts
        with LockSet(*names):
            pass
    note_round_trips(monkeypatch, mine(lambda port, commands: asked.append(len(commands))))
    with LockSet(*together, *apart) as locks:
        assert locks.names == (*together, *sorted(apart))
        assert asked == [len(together), *[1] * len(apart)]
    with LockSet(*together):
        asked.clear()
    assert len(together) > 1
    assert asked == [len(together)]
    assert list_locks() == []


@pytest.mark.complete
def test_old_code_and_ours_exclude_each_other_whatever_the_slot_of_the_old_key(cluster: Cluster) -> None:
    with use(cluster, ALSO_LOCK="redis-py"), closing(RedisCluster.from_url(cluster.masters()[0].url)) as client:
        for name in MANY[:20]:
            theirs = client.lock(name, timeout=60)
            assert theirs.acquire(blocking=False)
            assert Lock(name).acquire(blocking=False) is False
            theirs.release()
            with Lock(name):
                assert not theirs.acquire(blocking=False)
        with Lock(MANY[0], ttl=3) as lock:
            until(lambda: outlives(3, MANY[0]))
            assert client.exists(MANY[0])
            assert not lock.lost
        assert not any(client.exists(name) for name in MANY[:20])
    assert list_locks() == []


def test_the_cluster_is_not_asked_anew_whose_the_slot_of_each_old_key_is(cluster: Cluster) -> None:
    masters = [node.client() for node in cluster.masters()]
    with use(cluster, ALSO_LOCK="redis-py"):
        Lock("a").locked()  # the cluster has been asked
        for master in masters:
            master.config_resetstat()
        for name in MANY[:20]:
            with Lock(name):
                pass
        assert sum(count(master, "cluster|slots") for master in masters) <= 1  # one, where a machine is slow


def test_names_are_spread_over_slots_and_a_section_is_two_round_trips(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: the tag of a name depends on nothing else."""
    asked: list[int] = []
    note_round_trips(monkeypatch, mine(lambda port, commands: asked.append(port)))
    for _ in range(2):  # at first, the nodes do not know the scripts
        asked.clear()
        for name in MANY:
            with Lock(name):
                pass
    assert len(asked) == 2 * len(MANY)
    assert len({slot_of(name) for name in MANY}) > 50
    for name in MANY:
        Lock(name).acquire()
    (key,) = cluster.owner_of(slot_of("order:1")).client().keys("*lock:order:1")
    assert key == b"redislock{%d}:lock:order:1" % (crc32(b"order:1") % 64)
    assert len(list_locks()) == len(asyncio.run(alist_locks())) == len(MANY)
    call_command("redislocks", "clear", "--all", "--noinput")
    assert list_locks() == []


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("what", ["locks", "pools"])
def test_a_list_asks_for_each_tag_once_and_again_for_one_that_has_some_of_them(
    what: str, asynchronous: bool, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"order:{number}" for number in range(10, 20)]
    for name in MANY[:40]:
        Lock(name).acquire()
        LockPool(name).extend(["a"])
    asked = note_exchanges(monkeypatch)
    if asynchronous:
        listed: Any = asyncio.run(alist_locks("order:1?") if what == "locks" else alist_pools("order:1?"))
    else:
        listed = list_locks("order:1?") if what == "locks" else list_pools("order:1?")
    assert [each.name for each in listed] == names
    tags = {slot_of(name if what == "locks" else f"pool:{quote(name)}:a") for name in names}
    assert len(asked) == 64 + len(tags)


def test_whoever_waits_at_a_node_first_subscribes_to_all_its_tags_and_is_woken_by_one_message(
    cluster: Cluster, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So whoever waits there next is not overtaken while its process subscribes, and each node has one connection."""
    asked: list[Any] = []
    note_round_trips(monkeypatch, lambda port, commands: asked.extend(word for command in commands for word in command))
    for node in cluster.masters():
        names = names_on(cluster, node, 5)
        held = Lock(names[0])
        held.acquire()
        waiting = queue(Lock(names[0]))
        ears = [Ears(name=name) for name in names]
        until(lambda ears=ears: all(each.hears for each in ears))
        channels = [each.channel for each in ears]
        assert node.client().execute_command("PUBSUB", "SHARDNUMSUB", *channels)[1::2] == [1] * 5
        heard = ears[0].heard
        held.release()
        assert waiting.result(30)
        assert ears[0].heard == heard + 1
        suspect(names[1])
        held = Lock(names[1])
        held.acquire()  # the node that answers has not been replaced, so its messages are believed again
        waiting = queue(Lock(names[1]))
        asked.clear()
        held.release()
        assert waiting.result(30)
        assert ACQUIRE not in asked
    until(lambda: all(len(node.client().client_list(_type="pubsub")) == 1 for node in cluster.masters()))


def test_pools_values_and_cached_values(cluster: Cluster) -> None:
    pools = [LockPool(f"cars {number}") for number in range(8)]
    for pool in pools:
        pool.extend(["a", "b"])
        with pool.acquire() as member:
            assert (pool.info().free, get_lock(member.name) is not None) == (1, True)
            with pool.acquire(), pytest.raises(LockNotAcquired):
                pool.acquire(blocking_timeout=0)
    assert [pool.name for pool in list_pools()] == sorted(pool.name for pool in pools)
    value = ConditionalValue("best")
    assert [value.setgt(3), value.setgt(2), value.get()] == [True, False, 3]
    assert [Counter("visits").incr() for _ in range(3)] == [1, 2, 3]
    assert locked_get_or_set("answer", lambda: 42) == 42


def test_a_node_that_has_the_lock_no_longer_is_not_believed_and_a_renewal_is_sent_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that was paused answers one request more, before it hears that it is none any more."""
    here, there = cluster.masters()[:2]
    (replica,) = cluster.replicas_of(here)
    (name,) = names_on(cluster, here)
    asked, lock = list[int](), Lock(name, ttl=4.5)

    def moved_meanwhile(port: int, commands: Any) -> None:
        asked.append(port)
        if len(asked) == 1:
            believe_at(name, there.port)

    ears = Ears(name=name)
    believe_at(name, replica.port)
    ears.start()
    until(lambda: ears.hears)
    assert ears.node == here.port  # R3, C3: no script at a replica counts who is subscribed there
    with monkeypatch.context() as patch:
        note_round_trips(patch, after=mine(moved_meanwhile))
        lock.acquire()
        assert asked == [here.port, there.port, here.port]  # the other one has sent us back
    believe_at(name, there.port)
    assert [info.name for info in list_locks()] == [name]
    end = monotonic() + lock.remaining()

    believed = [monotonic()]

    def is_renewed_twice() -> bool:
        # somebody else may find out meanwhile; and one renewal may be on its way already. What was sent to the wrong
        # node is sent on within 0.05 s, and must find the right one then
        if monotonic() > believed[0] + 0.5:
            believed[0] = monotonic()
            believe_at(name, there.port)
        return monotonic() + lock.remaining() > end + 2.0

    until(is_renewed_twice)
    assert not lock.lost


def test_where_no_node_can_be_asked_about_one_that_answers_late_its_answer_counts_and_it_stays_in_doubt(
    cluster: Cluster, crowd: Crowd, retry_for: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C7: all are full."""

    def asked() -> int:
        return sum(count(node, "cluster|slots") for node in nodes)

    retry_for(0.1)
    me, lock, nodes = crowd(), Lock("a", ttl=60), [node.client() for node in cluster.nodes]
    me(lock, "acquire")
    before = asked()
    for node in nodes:
        node.config_set("maxclients", 1)
    try:
        with monkeypatch.context() as patch:
            limit(patch, no_failover_within=-1.0)
            assert me(lock, "extend", 60)
            me(lock, "release")
        assert asked() == before
    finally:
        for node in nodes:
            node.config_set("maxclients", 10_000)
    limit(monkeypatch, no_failover_within=GENEROUS)
    assert not me(lock, "locked")
    assert asked() > before


def test_a_neighbour_that_was_refused_is_subscribed_when_somebody_waits_there_and_one_that_is_refused_then_anew(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = cluster.masters()[0]
    names = names_on(cluster, here, 2)
    one, two = (Ears(name=name) for name in names)
    believe_at(names[1], here.port)
    refused = refuse_subscription(monkeypatch, two, lambda number, itself: itself)
    one.start()
    until(lambda: refused and one.hears)
    assert not two.ready
    two.start()
    until(lambda: two.hears)
    two.end()
    refused = refuse_subscription(monkeypatch, one, lambda number, itself: not itself)
    generation = one.generation
    two.start()
    until(lambda: refused and two.hears and one.hears and one.generation > generation)


def test_an_answer_that_is_lost_before_replicas_have_it_is_asked_for_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6: one that came twice was not written by the connection that would wait for replicas."""
    lock = Lock("order:1", replicas=1)
    with Lock("order:1"):
        pass  # the node knows the script
    confirmed, lost = list[object](), list[object]()

    def too_late(port: int, commands: Any) -> None:
        if any(RENEW in command for command in commands) and not confirmed:
            confirmed.append(commands)
            cluster.owner_of(slot_of(lock.name)).client().delete(key_of(lock.name))

    def lose_answer(port: int, commands: Any) -> None:
        if commands[-1][0] == "WAIT" and not lost:
            lost.append(commands)
            raise redis.ConnectionError("the answer is lost")

    note_round_trips(monkeypatch, too_late, lose_answer)
    assert lock.acquire()
    assert lock.owned()
    assert confirmed


BOUND = 4


@pytest.mark.complete
def test_a_process_or_event_loop_has_as_many_connections_as_the_documentation_says(
    cluster: Cluster, crowd: Any, queue: Queue, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count() -> int:
        return sum(len(connections(client)) for client, _ in nodes)

    nodes = [(node.client(), names_on(cluster, node, 4)) for node in cluster.masters()]
    location = [node.url for node in cluster.masters()]
    settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, location, client_name=NAME)}
    settings.REDISLOCK = {**settings.REDISLOCK, "MAX_CONNECTIONS": BOUND, "TTL": 60}
    for _, names in nodes:
        me, you, held, lock = crowd(), crowd(), Lock(names[0]), Lock(names[0])
        me(held, "acquire")
        waiting = queue(lock, you)
        me(held, "release")
        assert waiting.result(30)
        until(lambda you=you, lock=lock: you.read(lock.remaining) > 30)  # confirmed by the sender
    for client, _ in nodes:
        client.client_pause(60_000, all=False)
    asking = [crowd().start(Lock(name), "acquire") for _, names in nodes for name in names[1:]]
    try:
        # besides: those that listen, and those that have renewed what is held
        until(lambda: count() >= BOUND + 2 * len(nodes))
    finally:
        for client, _ in nodes:
            client.client_unpause()
    assert all(future.result(30) for future in asking)
    # this thread has asked who waits
    assert count() <= BOUND + 2 * len(nodes) + crowd.awaits * len(nodes)
    limit(monkeypatch, idle_for_threads=0.0, idle_for_loops=0.0, idle_look=0.05)
    until(lambda: count() <= 1 + 2 * len(nodes) + crowd.awaits)


NOWHERE = "redis://127.0.0.1:1/0"


def use_all() -> None:
    """At all nodes."""
    for number in range(10):
        with Lock(f"order:{number}"):
            pass


def test_an_alias_that_cannot_be_a_cluster_is_refused(settings: Any) -> None:
    settings.REDISLOCK = {"CLUSTER": True}
    for location, why in (
        ("redis://127.0.0.1:6379/3", "names database 3, and a cluster has only database 0"),
        ("unix:///tmp/redis.sock", "is reached by UnixDomainSocketConnection"),
    ):
        settings.CACHES = {"default": alias(DJANGO_REDIS, location)}
        with pytest.raises(ImproperlyConfigured, match=f"is a cluster, but it {why}"):
            Lock("a").acquire()
        assert "E003" in ids(deploy=True)


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
    assert ids(deploy=True) == []
    settings.REDISLOCK = {**settings.REDISLOCK, "REPLICAS": 2}
    assert ids(deploy=True) == ["W009"]
    cluster.masters()[1].client().config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert ids(deploy=True) == ["W009", "W005"]
    finally:
        cluster.masters()[1].client().config_set("maxmemory-policy", "noeviction")
    settings.REDISLOCK = {"CACHE": "locks"}
    assert ids(deploy=True) == ["E007"]
    settings.REDISLOCK = {"CLUSTER": ["lokcs"]}
    assert ids() == ["E002"]


@pytest.mark.django_db
@pytest.mark.parametrize("known_by", ["its client", "the setting"])
def test_a_client_of_a_cluster_is_recognised_and_one_that_is_away_is_unavailable(
    known_by: str, cluster: Cluster, settings: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
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
    if known_by == "the setting":
        Ears(name="a").start()
        until(lambda: "event=listener-disconnected" in caplog.text)
    assert "W004" in ids(deploy=True)
    assert "W004" not in ids()
    settings.REDISLOCK = {**settings.REDISLOCK, "VIEW_UNAVAILABLE_STATUS": 503}
    view = locked_view("a")(lambda request: HttpResponse("ran"))
    assert view(RequestFactory().get("/")).status_code == 503
    page = login(User.objects.create_superuser("jo")).get(LIST)
    assert "Could not read the locks from Redis" in page.text


@pytest.mark.parametrize("named", ["a URL", "no URL"])
def test_where_all_nodes_that_a_cluster_client_has_found_get_new_addresses_its_location_leads_to_them(
    named: str, cluster: Cluster, settings: Any, retry_for: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        links = {node.port: stack.enter_context(proxy(node.port)) for node in cluster.nodes}
        door = stack.enter_context(proxy(cluster.masters()[0].port))  # a service name, say
        ports = {port: link.port for port, link in links.items()}
        remap = lambda address: (address[0], ports.get(address[1], address[1]))  # noqa: E731
        make = lambda self, write=True: RedisCluster.from_url(door.url, address_remap=remap)  # noqa: E731
        monkeypatch.setattr("django_redis.client.DefaultClient.get_client", make)
        settings.REDISLOCK = {"CACHE": "locks"}
        settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, door.url if named == "a URL" else "shop")}
        use_all()
        if named == "a URL":
            retry_for(GENEROUS)
            ports.clear()
            for link in links.values():
                link.cut()
            use_all()


def test_the_function_of_a_cluster_client_comes_after_the_login(
    cluster: Cluster, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with redis-py, where the client of one server leaves the login to the function."""
    users: list[str] = []

    def note(connection: redis.Connection) -> None:
        connection.send_command("ACL", "WHOAMI")
        users.append(connection.read_response().decode())

    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "locks", "reset", "on", ">s3cret", "+@all", "~*", "&*")
    make = lambda self, write=True: RedisCluster.from_url(self._server[0], redis_connect_func=note)  # noqa: E731
    monkeypatch.setattr("django_redis.client.DefaultClient.get_client", make)
    url = cluster.masters()[0].url.replace("redis://", "redis://locks:s3cret@")
    settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, url)}
    with Lock("a", using="locks"):
        assert get_lock("a", using="locks")
    assert set(users) == {"locks"}


def test_announced_addresses_are_translated(cluster: Cluster, settings: Any) -> None:
    seen: list[tuple[str, int]] = []

    def remap(address: tuple[str, int]) -> tuple[str, int]:
        seen.append(address)
        return "127.0.0.1", address[1]

    first = cluster.masters()[0].url
    settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, first, address_remap=remap)}
    use_all()
    assert {port for _, port in seen} >= {master.port for master in cluster.masters()}


def test_a_user_with_the_documented_rights_can_use_a_cluster(cluster: Cluster, settings: Any, queue: Queue) -> None:
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
    if redis.VERSION < (5, 0, 8):
        rights.add("+info")
    become("resetchannels", "~redislock{*}:*", "&redislock{*}:wake!*", *sorted(rights))
    for node in cluster.masters():
        (name,) = names_on(cluster, node)
        held = Lock(name, replicas=1)
        held.acquire()
        waiting = queue(Lock(name))
        until(lambda name=name: Ears(name=name).hears)
        held.release()
        assert waiting.result(30)
    until(lambda: len(list_locks()) == 3)  # the first one, which no replica had, is given back in the background
    for node in cluster.nodes:
        node.ask("ACL", "DELUSER", "locks")


@pytest.mark.django_db
def test_who_acquired_after_the_confirmation_is_spared_however_high_the_fences_of_other_nodes_are(
    cluster: Cluster,
) -> None:
    admin, node, other = login(User.objects.create_superuser("jo")), *cluster.masters()[:2]
    (first,), (second,) = names_on(cluster, node), names_on(cluster, other)
    ahead = (int(node.client().time()[0]) + 600) * 10**6  # as if its clock were
    node.client().set(key_of(first).replace(f"lock:{first}", "fence"), ahead)
    for name in (first, second):
        Lock(name, ttl=600).acquire()
    asked = select(admin, first, second).context
    force_release(second)
    assert Lock(second, ttl=600, token="t" * 22).acquire()
    assert told(select(admin, first, second, post="yes", **asked["fences"]))[0] == "1 lock was force-released."
    assert (Lock(first).locked(), Lock(second).locked()) == (False, True)
