"""A failover of a cluster's shard or by Sentinel. Node 0 is the master until its replica, node 1, is promoted, once or
not at all. What that changes:

* *Writes.* From some moment on the replica gets none (at most ``Scene.lost``). WAIT says whether it has those of this
  connection.
* *Subscriptions.* The new master counts only those made there, and nothing tells a process that its own is elsewhere.
* *Clocks.* By that of the new master, leases written by the old one may end early, and handoffs by a node of which
  only the other's clock is known may seem to be in the future. If it is behind, time does not make fences grow.
* *Two masters.* On a cluster (``Scene.wakes``), the old master wakes up and continues for a moment: it answers requests
  that it had not read, and what it publishes also arrives through the new one.

A holder that loses its lease by this is *robbed*: another one may be inside at the same time until its next renewal.
With acknowledging replicas, that must not happen. What can be left out:

* C2: the anchor from which a handoff's deadline is counted is kept per node. C2-look: without one, a waiter looks.
* C3: an answer from another node than the one subscribed at, or word that it is another one, means: subscribe there.
  C3-all: all waiters look then. C3-fence: a renewal is about one fence, as an attempt may be granted the lock twice.
  C3-close: the subscription at the old master is closed, and its messages are no longer read. C3-signed: on a cluster,
  a handoff by another node than the one subscribed at means: look. C3-late: an answer to a request of an earlier
  subscription is not about the present one.
* C6: after a handoff the new holder writes (confirms it), waits for the replicas, and only then enters. C6-repeat: so
  it does when it finds that it was granted the lock earlier. C6-renewal: a renewal moves the local deadline only once
  it is acknowledged.
* C7: on a cluster, a late answer counts only if the cluster then says that it came from the master.
* adopt: a holder is not dead at a node where it was not subscribed when its lock was written. (The scripts do not know
  that: it is what a failover costs, see docs/protocol.rst.)
* known: each call carries the highest fence that its process knows. known-wakes: wakes carry it, too.
"""

from .scripts import grant_unawares, publish, written
from .world import Answer, Attempt, Grant, Lock, Message, State, Stored, Violation, World


def learn(world: World, home: int, answer: Answer, *, late: bool = False) -> None:
    """A process reads an answer: it learns that this node is the master, and the time there.

    ``late``: the request was sent under an earlier subscription, so the answer may come from the master of that time.
    """
    process = world.processes[home]
    if world.scene.clock and (answer.node > process.anchor or world.without("C2")):
        world.process(home, anchor=answer.node)
    if answer.grant:
        learn_fence(world, home, answer.grant)
    current = not late or world.without("C3-late")
    if current and answer.node != process.node and process.subscribed != "off" and not world.without("C3"):
        _unsubscribe(world, home)


def learn_fence(world: World, home: int, grant: Grant) -> None:
    """All later calls of the process carry this fence. (Otherwise, the server's time alone makes fences grow.)"""
    if world.scene.clock == "behind":
        world.process(home, known=max(grant.fence, world.processes[home].known))


def _unsubscribe(world: World, home: int) -> bool:
    """It is subscribed at a node that is not the master, so it subscribes anew, and drops unread messages."""
    process = world.processes[home]
    if world.without("C3-close"):
        return world.process(home, subscribed="off", old=process.subscribed == "on")
    return world.process(home, subscribed="off", inbox=())


def is_late(world: World, home: int, grant: Grant) -> bool:
    """Whether the lease of a handoff may have ended, as far as the process knows."""
    anchor = world.processes[home].anchor
    if world.without("R1") or not world.scene.clock or grant.node == anchor:
        return grant.over and not world.without("R1")
    if grant.node < anchor and not world.without("C2"):
        return grant.over
    # judged by the clock of the other node: if that is behind, the grant is in the future, and seems valid for long
    in_future = (world.scene.clock == "ahead") == (grant.node == 1)
    return not in_future or not (world.without("C2") or world.without("C2-look"))


def rob(world: World, lock: Lock | tuple[()]) -> None:
    """A lease ends, and a process that believes it cannot know."""
    if lock and world.knows(lock.fence):
        world.node(robbed=(*world.nodes.robbed, lock.fence))


def may_overlap(world: World, *fences: int) -> bool:
    """Whether two may be inside at once: the lease of one was lost in a way that no rule can prevent."""
    preventable = world.scene.acknowledged or not (world.scene.lost or world.scene.clock == "ahead")
    return not preventable and any(fence in world.nodes.robbed for fence in fences)


def is_held(world: World, attempt: Attempt) -> bool:
    """What renew.lua finds: whether this attempt holds the lock, by the very grant that it knows of."""
    fences = [lock.fence for lock in world.permits() if lock.attempt == attempt]
    return bool(fences) and (world.clients[attempt].fence in fences or world.without("C3-fence"))


def fall_behind(world: World, _: int) -> bool:
    """the replica gets no more writes"""
    possible = world.scene.lost and not world.nodes.replica and world.nodes.master == 0
    return bool(possible) and world.node(replica=world.stored())


def fail_over(world: World, _: int) -> bool:
    """the replica becomes the master"""
    replica, lock = world.nodes.replica, world.lock
    # noticing that a master is gone takes seconds, in which a running process reads its messages
    if world.scene.lost is None or world.nodes.master or (replica and world.is_busy_hearing()):
        return False
    if world.scene.wakes and lock:
        asking = [attempt for attempt, client in enumerate(world.clients) if client.at == "asks"]
        world.node(asleep=world.queue, unread=tuple(asking))
    if replica:
        world.read(replica)
        if (world.lock and world.lock.fence) != (lock and lock.fence):
            rob(world, lock)
            world.lock = world.lock and world.lock._replace(restored=True)
    return world.node(master=1, replica=(), lost=0)


def wake_up(world: World, _: int) -> bool:
    """the old master wakes up, finds at its end a lease that was renewed at the new one, and hands the lock over"""
    for id in world.nodes.asleep[:1]:
        # processes that are subscribed there believe it: see docs/cluster.rst
        if world.lock and world.lock.node == 1 and world.home(id).node == 1:
            publish(world, world.scene.homes[id], Message(id, grant_unawares(world, id)))
            return world.node(asleep=())
    return False


def answer_late(world: World, attempt: Attempt) -> bool:
    """the old master wakes up, reads a request of before, and finds at its end a lease that was renewed since"""
    client, lock = world.clients[attempt], world.lock
    if client.at != "asks" or attempt not in world.nodes.unread or not lock or lock.node == 0:
        return False
    read_by_another(world, attempt)
    # otherwise the process asks elsewhere
    return not world.without("C7") or world.client(
        attempt, at="answered", answer=Answer("granted", grant_unawares(world, attempt), node=0)
    )


def read_by_another(world: World, attempt: Attempt) -> None:
    """The new master has the request, so the old one will not read it."""
    world.node(unread=tuple(other for other in world.nodes.unread if other != attempt))


def count_lost(world: World, before: State) -> bool:
    """Count a write that the replica does not get; False: the scene does not lose that many."""
    nodes = before[-1]
    if nodes.replica and world.nodes.replica and _written(world.stored()) != _written(before[0]):
        world.node(lost=nodes.lost + 1)
    return world.nodes.lost <= (world.scene.lost or 0)


def _written(stored: Stored) -> Stored:
    """Without what only local clocks know."""
    return stored._replace(lock=stored.lock and stored.lock._replace(fresh=True))


# -- what happens ------------------------------------------------------------------------------------------------


def moved(world: World, home: int) -> bool:
    """its connection to the old master breaks, or it gets MOVED or an unsolicited sunsubscribe"""
    process = world.processes[home]
    if process.node == world.nodes.master or process.subscribed == "off" or not world.is_busy(home):
        return False
    return not world.without("C3") and _unsubscribe(world, home)


def renew(world: World, attempt: Attempt) -> bool:
    """the watchdog renews: the end of the lease moves, or it learns that the lease has ended"""
    client, home = world.clients[attempt], world.scene.homes[attempt]
    if world.scene.lost is None or client.at != "holds" or world.home(attempt).state != "up":
        return False
    if world.nodes.replica:
        return _renew_in_vain(world, client.fence)
    learn(world, home, Answer("renewed", node=world.nodes.master))
    if not world.lock or not is_held(world, attempt):
        return world.client(attempt, at="lost", fence=0)
    if client.fence < world.entered:
        raise Violation(f"not told: {attempt} renews its lease, and somebody has entered since it began")
    world.lock = written(world, world.lock._replace(fresh=True))
    return True


def _renew_in_vain(world: World, fence: int) -> bool:
    """The replica does not get it: the holder believes in a later end of the lease than the replica knows."""
    replica = world.nodes.replica
    if not replica or not replica.lock or replica.lock.fence != fence or not replica.lock.fresh:
        return False
    if world.scene.acknowledged and not world.without("C6-renewal"):
        return False  # the holder keeps the earlier end until the later one is acknowledged
    lock = replica.lock._replace(fresh=False)
    return world.node(replica=replica._replace(lock=lock), lost=world.nodes.lost + 1)
