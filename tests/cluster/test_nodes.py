"""Masters that die, hang or are replaced, slots that move, and replicas that have to acknowledge grants (C2 to C7)."""

import math
import threading
from contextlib import ExitStack, suppress
from socket import socket
from time import monotonic
from typing import Any

import pytest

from django_redislock import Lock, LockPool, LockUnavailable, Semaphore, force_release, get_lock, list_locks
from rediscluster import HOST
from tests.helpers.actors import GENEROUS, until
from tests.helpers.cluster import Cluster, Node, redis_cluster
from tests.helpers.proxy import proxy
from tests.helpers.state import count, waiters
from tests.helpers.ways import DJANGO_REDIS, alias, kill
from tests.inside import Ears, HeldUpQuestion, ask_cluster, limit, nodes_known, suspect

from .conftest import Queue, key_of, names_on, slot_of, use

pytestmark = pytest.mark.complete


def test_a_dead_master_costs_the_failover_and_no_lock(own_cluster: Cluster, queue: Queue, settings: Any) -> None:
    first = own_cluster.masters()[0]
    names = names_on(own_cluster, first, 3)
    held = [Lock(name, ttl=60) for name in names]
    for lock in held:
        lock.acquire()
    waiting = [queue(Lock(name, ttl=60)) for name in names]
    fences = [lock.fence for lock in held]
    own_cluster.kill(first)
    assert {lock.name for lock in list_locks()} == set(names)
    for lock in held:
        lock.release()  # within RETRY_FOR, at the new master
    assert all(future.result(30) for future in waiting)
    now = {lock.name: lock.fence for lock in list_locks()}
    assert all(now[name] > fence for name, fence in zip(names, fences, strict=True))
    settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 0.1}
    for node in own_cluster.reachable():
        own_cluster.kill(node)
    with pytest.raises(LockUnavailable, match="cannot be reached for locks"):
        list_locks()


def test_a_replaced_master_whose_address_still_takes_connections_is_left(own_cluster: Cluster, settings: Any) -> None:
    """And hangs up: a proxy before it, say."""

    def acquired() -> bool:
        with suppress(LockUnavailable):
            return Lock(another, ttl=60).acquire(blocking=False)
        return False

    first, second = own_cluster.masters()[:2]
    name, another = names_on(own_cluster, first, 2)
    with proxy(first.port) as link:
        remap = {(HOST, first.port): (HOST, link.port)}
        locks = alias(DJANGO_REDIS, second.url, address_remap=lambda address: remap.get(address, address))
        settings.CACHES = {**settings.CACHES, "locks": locks}
        lock = Lock(name, ttl=60)
        lock.acquire()
        link.cut()
        own_cluster.failover(own_cluster.replicas_of(first)[0])
        until(acquired)
        lock.release()


def test_a_node_that_hangs_delays_no_lease_on_another(own_cluster: Cluster) -> None:
    """C5: each is renewed for itself."""
    hangs, lives = own_cluster.masters()[:2]
    (one,), (two,) = names_on(own_cluster, hangs), names_on(own_cluster, lives)
    there, here = Lock(one, ttl=60), Lock(two, ttl=3)
    there.acquire()
    here.acquire()
    own_cluster.pause(hangs)
    for _ in range(3):
        end = monotonic() + here.remaining()
        until(lambda end=end: monotonic() + here.remaining() > end + 0.5)
    assert not here.lost


def test_a_machine_that_is_gone_keeps_nobody_from_subscribing_at_another_node(
    cluster: Cluster, settings: Any, other: Any, queue: Queue
) -> None:
    """Nothing there answers who connects, for as long as the alias waits for it."""
    gone, lives = cluster.masters()[:2]
    (one,), (two,) = names_on(cluster, gone), names_on(cluster, lives)
    with ExitStack() as sockets:
        hole, *full = (sockets.enter_context(socket()) for _ in range(4))
        hole.bind((HOST, 0))
        hole.listen(0)
        for each in full:  # more than it has room for
            each.setblocking(False)
            each.connect_ex(hole.getsockname())
        remap = {(HOST, gone.port): hole.getsockname()}
        keywords = {"socket_connect_timeout": 300, "address_remap": lambda address: remap.get(address, address)}
        settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, lives.url, **keywords)}
        other().start(Lock(one, token="t" * 22).acquire)  # who bears a token subscribes first
        until(lambda: any(thread.name == "redislock-subscriber" for thread in threading.enumerate()))
        lock = Lock(two, ttl=60)
        lock.acquire()
        waiting = queue(Lock(two, ttl=60))
        until(lambda: lives.ask("PUBSUB", "SHARDCHANNELS"))
        lock.release()
        assert waiting.result(60)


def test_a_lease_goes_on_at_the_new_master_when_the_old_one_is_cut_off() -> None:
    """It says CLUSTERDOWN, for as long as it is asked; nothing else in this process asks where the slots are."""
    with redis_cluster(partitionable=True) as cluster, use(cluster, TTL=24):
        first = cluster.masters()[0]
        (name,) = names_on(cluster, first)
        lock = Lock(name)
        lock.acquire()
        cluster.partition(first)
        cluster.wait_for_failover(first)
        new = cluster.owner_of(slot_of(name)).client()
        left = new.pttl(key_of(name))
        until(lambda: lock.lost or int(new.pttl(key_of(name))) > left)
        assert not lock.lost
        lock.release()


def test_a_handoff_by_a_replaced_master_that_wakes_up_is_ignored(
    own_cluster: Cluster, crowd: Any, queue: Queue
) -> None:
    """C3: it works off a renewal of before, finds the lease at its end, and is heard through the new master."""
    first, me = own_cluster.masters()[0], crowd()
    held = [Lock(name, ttl=15) for name in names_on(own_cluster, first, 4)]
    for lock in held:
        me(lock, "acquire")
    waiting = [queue(Lock(lock.name, ttl=15), crowd()) for lock in held]
    over = monotonic() + first.client().pttl(key_of(held[0].name)) / 1000 + 3
    own_cluster.pause(first)
    own_cluster.wait_for_failover(first)
    until(lambda: all(Ears(name=lock.name).used_for_handovers for lock in held))
    until(lambda: monotonic() > over and me.read(lambda: all(lock.remaining() > 5 for lock in held)))
    own_cluster.resume(first)
    until(lambda: first.replication()["role"] == "slave" and first.replication()["master_link_status"] == "up")
    assert not any(future.done() for future in waiting)
    assert not any(lock.lost for lock in held)
    for lock in held:
        me(lock, "release")
    assert all(future.result(30) for future in waiting)


def test_replicas_acknowledge_grants_and_handoffs(own_cluster: Cluster, me: Any, you: Any, queue: Queue) -> None:
    first = own_cluster.masters()[0]
    (name,), (replica,) = names_on(own_cluster, first), own_cluster.replicas_of(first)
    lock, following, plain = Lock(name, replicas=1), Lock(name, replicas=1), Lock(name)
    with use(own_cluster, REPLICAS=2), pytest.raises(LockUnavailable, match="1 of 2 replicas"):
        Lock(name).acquire()
    me(lock, "acquire")
    waiting = queue(following, you)
    me(lock, "release")
    assert waiting.result(30)
    you(following, "release")

    me(plain, "acquire")
    waiting = queue(following, you)
    own_cluster.kill(replica)
    me(plain, "release")
    with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
        waiting.result(30)
    until(lambda: get_lock(name) is None)  # the handoff was passed on, or withdrawn
    own_cluster.owner_of(slot_of(name)).client().script_flush()
    with pytest.raises(LockUnavailable, match=r"0 of 1 replicas acknowledged it within 0\.5 s\.$"):
        me(lock, "acquire", blocking_timeout=GENEROUS)
    until(lambda: get_lock(name) is None)
    me(plain, "acquire")
    me(plain, "release")


def serve_no_more(cluster: Cluster, *names: str) -> None:
    for node in cluster.masters():
        node.ask("CLUSTER", "DELSLOTS", *{slot_of(name) for name in names})


def test_a_slot_that_nobody_serves_fails_its_own_locks_alone(crowd: Any, queue: Queue) -> None:
    options: dict[str, Any] = {"masters": 2, "replicas": 0, "cluster_require_full_coverage": "no"}
    with redis_cluster(**options) as cluster, use(cluster, TTL=60, RETRY_FOR=0.2):
        first, second = cluster.masters()
        (name, neighbour), (elsewhere,) = names_on(cluster, first, 2), names_on(cluster, second)
        me, held = crowd(), Lock(name)
        refused = pytest.raises(LockUnavailable, match=r"^Redis refuses to serve .*: CLUSTERDOWN Hash slot not served")
        me(held, "acquire")
        serve_no_more(cluster, name)
        for since in ("before", "it was asked"):
            with refused:
                crowd()(Lock(name), "acquire", blocking_timeout=5)
            with refused:
                list_locks()
            for each in (neighbour, elsewhere):
                you, lock, following = crowd(), Lock(each), Lock(each)
                me(lock, "acquire")
                waiting_there = queue(following, you)
                until(lambda each=each: Ears(name=each).hears)
                me(lock, "release")
                assert waiting_there.result(30), since
                you(following, "release")
            suspect(None)
        first.ask("CLUSTER", "ADDSLOTS", slot_of(name))
        until(lambda: Lock(name).locked())
        me(held, "release")
        cluster.wait_until_ok()
        serve_no_more(cluster, *(f"order:{number}" for number in range(1000)))
        with (
            use(cluster, RETRY_FOR=0.2),
            pytest.raises(LockUnavailable, match=r"cannot be reached|Hash slot not served"),
        ):
            Lock(name).acquire()


@pytest.mark.parametrize("how", ["answers late", "has not answered before", "is connected to late"])
def test_requests_that_a_replaced_master_had_not_read_are_sent_to_the_new_one(
    how: str, settings: Any, crowd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections have much patience, and the nodes can be cut off from each other."""
    with redis_cluster(partitionable=True) as cluster:
        locks = alias(DJANGO_REDIS, [node.url for node in cluster.masters()[:2]], socket_timeout=GENEROUS)
        settings.CACHES = {**settings.CACHES, "locks": locks}
        settings.REDISLOCK = {"CACHE": "locks", "CLUSTER": True, "TTL": 60, "RETRY_FOR": GENEROUS}
        master, me = cluster.masters()[0], crowd()
        (name,) = names_on(cluster, master)
        lock = Lock(name)
        me(lock, "acquire")
        me(lock, "release")
        if how == "is connected to late":
            kill(master.client())
        if how == "has not answered before":
            limit(monkeypatch, no_failover_within=math.inf)
            suspect(name)
            ask_cluster()  # nobody knows yet what will become of it
        cluster.pause(master)
        cluster.partition(master)  # it does not hear of what happens
        acquired = me.start(lock, "acquire")  # this is read when it runs again
        cluster.wait_for_failover(master)
        cluster.resume(master)
        assert acquired.result(GENEROUS)
        assert cluster.owner_of(slot_of(name)).client().exists(key_of(name)), "the new master knows of it"
        me(lock, "release")


@pytest.mark.parametrize("trouble", ["a lost connection", "late answers"])
def test_a_node_that_was_in_trouble_is_asked_about_until_another_one_has_named_it(
    trouble: str, cluster: Cluster, crowd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no longer than that."""

    def use_it(times: int) -> int:
        """How often the nodes were asked by then where the slots are."""
        for _ in range(times):
            me(lock, "acquire")
            me(lock, "release")
        return sum(count(node.client(), "cluster|slots") for node in cluster.nodes)

    limit(monkeypatch, no_failover_within=GENEROUS)
    (name,) = names_on(cluster, cluster.masters()[0])
    me, lock = crowd(), Lock(name)
    before = use_it(1)
    with monkeypatch.context() as patch:
        if trouble == "a lost connection":
            suspect(name)
        else:
            limit(patch, no_failover_within=-1.0)
        use_it(2)
    asked = use_it(1)
    assert asked > before
    assert use_it(3) == asked


def test_answers_of_a_node_that_was_in_trouble_wait_for_one_question(
    cluster: Cluster, crowd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, no_failover_within=GENEROUS)
    (name,) = names_on(cluster, cluster.masters()[0])
    people, lock = [crowd() for _ in range(3)], Lock(name)
    assert not people[0](lock, "locked")
    suspect(name)
    ask_cluster()  # nobody knows yet what will become of it
    question = HeldUpQuestion(monkeypatch)
    looking = [person.start(lock, "locked") for person in people]
    until(lambda: question.heard == 3)
    question.let_go()
    assert not any(found.result(GENEROUS) for found in looking)
    assert not people[0](lock, "locked")
    assert question.asked == 1


@pytest.fixture
def contended(own_cluster: Cluster, queue: Queue) -> Any:
    """A held lock and a waiter: the name, the holder, and the waiter's future."""
    (name,) = names_on(own_cluster, own_cluster.masters()[0])
    held = Lock(name, ttl=GENEROUS)
    held.acquire()
    waiting = queue(Lock(name))
    until(lambda: Ears(name=name).hears)
    return name, held, waiting


def test_a_lock_and_its_waiter_move_with_their_slot(own_cluster: Cluster, contended: Any) -> None:
    name, held, waiting = contended
    ears, fence = Ears(name=name), held.fence
    source, target = own_cluster.owner_of(slot_of(name)), own_cluster.masters()[1]
    others = [Lock(name, ttl=6) for name in names_on(own_cluster, source, 8)[1:]]
    for lock in others:
        lock.acquire()
    generation, owners = ears.generation, own_cluster.owners()
    slots = {slot_of(f"order:{number}") for number in range(1000)}  # all that locks may be in
    own_cluster.move(*(slot for slot in slots if owners[slot] is source), to=target)
    # Redis has told the process that its subscription is over; it subscribes anew, and all who wait look again
    until(lambda: ears.generation > generation and ears.node == target.port)
    until(lambda: not source.client().client_list(_type="pubsub"))  # where nobody is told anything any more
    until(lambda: waiters(name) == 1)
    held.extend(1)
    assert held.fence == fence
    held.release()
    assert waiting.result(30)
    info = get_lock(name)
    assert info is not None
    assert info.fence > fence
    end = monotonic() + max(lock.remaining() for lock in others)
    until(lambda: monotonic() + min(lock.remaining() for lock in others) > end)
    assert not any(lock.lost for lock in others)


def leave_behind(cluster: Cluster, slot: int, target: Node) -> None:
    """Let this node keep a copy of the slot's keys, as one that was promoted before it heard that they had moved."""
    source = cluster.owner_of(slot)
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
    with source.client() as origin, target.client(single_connection_client=True) as copies:
        for key in source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            copies.execute_command("ASKING")
            copies.restore(key, max(0, origin.pttl(key)), origin.dump(key))
    target.ask("CLUSTER", "SETSLOT", slot, "STABLE")


def test_what_the_node_that_gets_a_slot_still_has_of_it_harms_nobody(
    own_cluster: Cluster, contended: Any, queue: Queue
) -> None:
    """In what it has, the first one holds the lock, another one waits, and a lock that is free by now is held."""
    name, former, waiting = contended
    slot, target = slot_of(name), own_cluster.masters()[1]
    gone = next(Lock(f"n:{i}", ttl=3, auto_renew=False) for i in range(100_000) if slot_of(f"n:{i}") == slot)
    gone.acquire()
    fence_of_gone = gone.fence or 0
    leave_behind(own_cluster, slot, target)
    gone.release()
    former.release()
    assert waiting.result(30)
    force_release(name)
    held = Lock(name, ttl=GENEROUS)
    held.acquire()
    waiting, fence = queue(Lock(name)), held.fence
    own_cluster.move(slot, to=target)
    held.extend(1)
    assert (held.fence, waiting.done()) == (fence, False)
    held.release()
    assert waiting.result(30)
    with Lock(gone.name, blocking_timeout=GENEROUS) as again:  # when the lease that came back has ended
        assert (again.fence or 0) > fence_of_gone


@pytest.mark.parametrize("reads", [False, True], ids=["the listener's thread reads", "the waiting thread reads"])
def test_a_waiter_is_woken_where_its_lock_is_now(
    reads: bool, own_cluster: Cluster, other: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: the other tags of its node stay, and their messages go on arriving on the old connection."""
    limit(monkeypatch, look_every=600, reads_for=600)
    settings.REDISLOCK = {**settings.REDISLOCK, "SLOW_WAIT": 600}
    first, target = own_cluster.masters()[:2]
    (name,) = names_on(own_cluster, first)
    ears, held, thread = Ears(name=name), Lock(name, ttl=600), other()
    ears.start()
    until(lambda: ears.hears)
    held.acquire()
    waiting = thread.start(Lock(name).acquire)
    (queue,) = until(lambda: first.client().keys(f"*:queue:{name}"))
    if reads:
        (id,) = list[Any](first.client().zrange(queue, 0, -1))
        first.client().execute_command("SPUBLISH", ears.channel, f"w {id.decode()} {name}")
        until(lambda: ears.a_waiter_reads)
    own_cluster.move(slot_of(name), to=target)
    until(lambda: ears.node == target.port)
    held.release()
    assert waiting.result(60)


@pytest.mark.parametrize("half", [True, False], ids=["TRYAGAIN", "ASK"])
def test_a_single_try_is_not_refused_while_a_slot_is_being_moved(
    half: bool, own_cluster: Cluster, crowd: Any, settings: Any
) -> None:
    """C4: it is tried again, within RETRY_FOR."""
    first, target = own_cluster.masters()[:2]
    (name,) = names_on(own_cluster, first)
    neighbour = next(f"n:{i}" for i in range(100_000) if slot_of(f"n:{i}") == slot_of(name))
    Lock(neighbour, ttl=60).acquire()
    own_cluster.begin_move(slot_of(name), to=target)
    if half:  # the fence alone: the index stays
        (fence,) = first.client().keys("*fence")
        first.client().execute_command("MIGRATE", HOST, target.port, fence, 0, 5000)
        settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 0.1}
        with pytest.raises(LockUnavailable, match=r"^Redis refuses to serve the lock .*: TRYAGAIN \w"):
            Lock(name).acquire(blocking_timeout=0)
        settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 10}
    else:
        own_cluster.migrate_keys(slot_of(name))
    trying = crowd().start(Lock(name), "acquire", blocking_timeout=0)
    told = "errorstat_TRYAGAIN" if half else "errorstat_ASK"
    until(lambda: told in first.client().info("errorstats") or trying.done())
    assert not trying.done()
    if half:
        own_cluster.migrate_keys(slot_of(name))
    own_cluster.finish_move(slot_of(name))
    assert trying.result(30)


@pytest.mark.parametrize("kind", ["a lock", "a semaphore", "a member"])
def test_no_release_breaks_off_while_its_slot_is_being_moved(
    kind: str, own_cluster: Cluster, crowd: Any, queue: Queue
) -> None:
    """C4: all its keys are still there, and it deletes some of them before it hands the lock over."""
    me, first = crowd(), own_cluster.masters()[0]
    (name,) = names_on(own_cluster, first)
    LockPool("accounts").assign(["a"])
    make: Any = {
        "a lock": lambda: Lock(name, ttl=GENEROUS),
        "a semaphore": lambda: Semaphore(name, limit=1, ttl=GENEROUS),
        "a member": lambda: Lock("pool:accounts:a", ttl=GENEROUS),
    }[kind]
    held = make()
    me(held, "acquire")
    waiting = queue(make())
    slot = slot_of(held.name)
    source = own_cluster.owner_of(slot)
    (target, *_) = (node for node in own_cluster.masters() if node is not source)
    own_cluster.begin_move(slot, to=target)
    releasing = me.start(held, "release")
    until(lambda: "errorstat_TRYAGAIN" in source.client().info("errorstats") or releasing.done())
    own_cluster.migrate_keys(slot)
    own_cluster.finish_move(slot)
    releasing.result(GENEROUS)
    assert waiting.result(GENEROUS)


def test_a_node_that_joins_and_one_that_leaves(
    own_cluster: Cluster, contended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, idle_look=0.1)
    name, held, waiting = contended
    source, target = own_cluster.owner_of(slot_of(name)), own_cluster.masters()[1]
    joined = own_cluster.add_master()
    own_cluster.move(slot_of(name), to=joined)
    assert Lock(name).locked()
    until(lambda: joined.port in nodes_known())
    own_cluster.move(slot_of(name), to=target)
    assert Lock(name).locked()
    until(lambda: joined.port not in nodes_known())  # who only follows the redirections forgets nodes as well
    own_cluster.remove(source)
    until(lambda: waiters(name) == 1)
    held.release()
    assert waiting.result(30)
    # nothing of the one that has left is kept, once somebody has asked for what it had
    assert [lock.name for lock in list_locks()] == [name]
    until(lambda: source.port not in nodes_known())
