"""A failover of a cluster's shard or by Sentinel: what is lost with the old master, and what the new one knows.

Node 0 is the master until its replica, node 1, is promoted, which happens once or not at all. What that changes:

* *Writes.* From some moment on the replica gets none, and what the master then writes is lost (at most ``Scene.lost``
  writes). WAIT says whether the replica has the writes of this connection.
* *Subscriptions.* The new master counts only those made there. A subscription at the old master, which may now be its
  replica, continues there, and nothing tells the process that it no longer counts.
* *Clocks.* If the new master's is ahead, leases written by the old master end early, and handoffs by the new one
  that are judged by the old one's clock seem to be in the future. If it is behind, time does not make fences grow.
* *Two masters.* On a cluster, the old master wakes up and continues for a moment: it answers requests that it had not
  read, and what it publishes also arrives through the new one.

A holder that loses its lease by this is *robbed*: another one may be inside at the same time until its next renewal.
With acknowledging replicas (``Scene.acknowledged``), that must not happen.

What can be left out (``Scene.without``):

===========  ===========================================================================================================
C2           the anchor from which a handoff's deadline is counted is kept per node
C2 look      a handoff by a node of which there is no anchor means: look
C3           an answer from another node than the one subscribed at, or word that it is another one: subscribe there
C3 all       all waiters look then
C3 close     the subscription at the old master is closed, and its messages are no longer read
C3 signed    on a cluster, a handoff by another node than the one subscribed at means: look
C3 late      an answer to a request of an earlier subscription does not count as such an answer
C6           after a handoff the new holder writes (confirms it), waits for the replicas, and only then enters
C6 repeat    so it does when it finds that it was granted the lock earlier
C6 renewal   a renewal moves the local deadline only once it is acknowledged
C7           on a cluster, a late answer counts only if the cluster then says that it came from the master
known        each call carries the highest fence that its process knows
known wakes  wakes carry it, too
adopt        a holder is not considered dead at a node where it was not subscribed when its lock was written
renewal      a renewal is about one fence: the same attempt may have been granted the lock again
===========  ===========================================================================================================
"""

from __future__ import annotations

from .scripts import hand_over_unawares, written
from .world import Answer, Attempt, Grant, Lock, Nodes, State, Stored, Violation, World

# -- what is read, and from whom ----------------------------------------------------------------------------------


def sign(world: World, answer: Answer) -> Answer:
    """What the master sends: a script's answer, and after it that of WAIT."""
    # a grant that was made earlier, by a handoff or by the first of two repeated calls: this connection wrote nothing
    nothing_written = answer.state == "already" and world.without("C6 repeat")
    sure = not world.scene.acknowledged or not world.nodes.replica or nothing_written
    return answer._replace(node=world.nodes.master, sure=sure)


def learn(world: World, home: int, answer: Answer, *, late: bool = False) -> None:
    """A process reads an answer: it learns that this node is the master, and the time there.

    ``late``: the request was sent under an earlier subscription, so the answer may come from the master of that time.
    """
    process = world.processes[home]
    if world.scene.clock and (answer.node > process.anchor or world.without("C2")):
        world.process(home, anchor=answer.node)
    if answer.grant:
        learn_fence(world, home, answer.grant)
    if late and not world.without("C3 late"):
        return
    if answer.node != process.node and process.subscribed != "off" and not world.without("C3"):
        _unsubscribe(world, home)


def learn_fence(world: World, home: int, grant: Grant) -> None:
    """All later calls of the process carry this fence. (Otherwise, the server's time alone makes fences grow.)"""
    if world.scene.clock == "behind" and grant.fence > world.processes[home].known:
        world.process(home, known=grant.fence)


def is_late(world: World, home: int, grant: Grant) -> bool:
    """Whether the lease of a handoff may have ended, as far as the process knows."""
    if world.without("R1"):
        return False
    anchor = world.processes[home].anchor
    if not world.scene.clock or grant.node == anchor or (grant.node < anchor and not world.without("C2")):
        return grant.over
    # judged by the clock of the other node: if that is behind, the grant is in the future, and seems valid for long
    in_future = (world.scene.clock == "ahead") == (grant.node == 1)
    return not in_future or not (world.without("C2") or world.without("C2 look"))


def _unsubscribe(world: World, home: int) -> None:
    """The subscription is at a node that is not the master, so the process subscribes anew. Unread messages are
    dropped."""
    process = world.processes[home]
    if world.without("C3 close"):
        world.process(home, subscribed="off", old=process.subscribed == "on")
    else:
        world.process(home, subscribed="off", inbox=())


# -- who is robbed ------------------------------------------------------------------------------------------------


def rob(world: World, lock: Lock | tuple[()]) -> None:
    """A lease ends, and a process that believes it cannot know."""
    if lock and world.knows(lock.fence):
        world.node(robbed=(*world.nodes.robbed, lock.fence))


def may_overlap(world: World, *fences: int) -> bool:
    """Whether two may be inside at once: the lease of one was lost in a way that no rule can prevent."""
    scene = world.scene
    preventable = scene.acknowledged or not (scene.lost or scene.clock == "ahead")
    return not preventable and any(fence in world.nodes.robbed for fence in fences)


def ends_early(world: World, lock: Lock) -> bool:
    """Whether the lease may be over by the new master's clock, but not yet for processes that know of it."""
    return lock.node != world.nodes.master and world.scene.clock == "ahead"


def is_held(world: World, attempt: Attempt) -> bool:
    """What renew.lua finds: whether this attempt holds the lock, by the very grant that it knows of."""
    lock = world.lock
    if not lock or lock.attempt != attempt:
        return False
    return lock.fence == world.clients[attempt].fence or world.without("renewal")


# -- what befalls the nodes ---------------------------------------------------------------------------------------


def fall_behind(world: World, _: int) -> bool:
    """the replica gets no more writes"""
    if not world.scene.lost or world.nodes.replica or world.nodes.master:
        return False
    world.node(replica=world.stored())
    return True


def fail_over(world: World, _: int) -> bool:
    """the replica becomes the master"""
    replica, lock = world.nodes.replica, world.lock
    if world.scene.lost is None or world.nodes.master:
        return False
    if world.scene.wakes and lock:
        asking = [attempt for attempt, client in enumerate(world.clients) if client.at == "asks"]
        world.node(asleep=world.queue, unread=tuple(asking))
    if replica:
        # noticing that a master is gone takes seconds, in which a running process reads its messages
        if not world.nodes.lost or world.is_busy_hearing():
            return False
        world.lock, world.queue, world.mark, world.suspects, last = replica
        if (world.lock and world.lock.fence) != (lock and lock.fence):
            rob(world, lock)
            world.lock = world.lock and world.lock._replace(restored=True)
        world.node(last=last)
    world.node(master=1, replica=(), lost=0)
    return True


def wake_up(world: World, _: int) -> bool:
    """the old master wakes up, finds at its end a lease that was renewed at the new one, and hands the lock over"""
    nodes, lock = world.nodes, world.lock
    if not nodes.asleep or not lock or lock.node == 0:
        return False
    id = nodes.asleep[0]
    if world.processes[world.scene.homes[id]].node == 0:
        return False  # processes that are subscribed there believe it: see docs/cluster.rst
    world.node(asleep=())
    hand_over_unawares(world, id)
    return True


def is_signed_by_another(world: World, home: int, grant: Grant) -> bool:
    """Whether a handoff was made by another node than the one that the process is subscribed at."""
    return world.scene.wakes and grant.node != world.processes[home].node and not world.without("C3 signed")


def count_lost(world: World, before: State) -> bool:
    """Count a write that the replica does not get; False: the scene does not lose that many."""
    nodes: Nodes = before[-1]
    if not nodes.replica or not world.nodes.replica:
        return True
    if _written(world.stored()) != _written(Stored(*before[:4], nodes.last)):
        world.node(lost=nodes.lost + 1)
    return world.nodes.lost <= (world.scene.lost or 0)


def _written(stored: Stored) -> Stored:
    """The lock without what only local clocks know."""
    return stored._replace(lock=stored.lock and stored.lock._replace(fresh=True))


# -- what processes make of it ------------------------------------------------------------------------------------


def moved(world: World, home: int) -> bool:
    """its connection to the old master breaks, or it gets MOVED or an unsolicited sunsubscribe"""
    process = world.processes[home]
    if process.node == world.nodes.master or process.subscribed == "off" or not world.is_busy(home):
        return False
    if world.without("C3"):
        return False
    _unsubscribe(world, home)
    return True


def renew(world: World, attempt: Attempt) -> bool:
    """the watchdog renews: the end of the lease moves, or it learns that the lease has ended"""
    client, home, nodes = world.clients[attempt], world.scene.homes[attempt], world.nodes
    if world.scene.lost is None or client.at != "holds" or world.home(attempt).state != "up":
        return False
    if nodes.replica:
        return _renew_in_vain(world, client.fence)
    before = world.lock, world.processes[home]
    learn(world, home, Answer("renewed", node=nodes.master))
    if not world.lock or not is_held(world, attempt):
        world.client(attempt, at="lost", fence=0)
        return True
    if client.fence < world.entered:
        raise Violation(f"not told: {attempt} renews its lease, and somebody has entered since it began")
    world.lock = written(world, world.lock._replace(fresh=True))
    return (world.lock, world.processes[home]) != before


def _renew_in_vain(world: World, fence: int) -> bool:
    """A renewal that the replica does not get: the holder believes in a later end of the lease than the replica
    knows."""
    nodes, replica = world.nodes, world.nodes.replica
    if not replica or not replica.lock or replica.lock.fence != fence or not replica.lock.fresh:
        return False
    if nodes.lost == world.scene.lost:
        return False
    if world.scene.acknowledged and not world.without("C6 renewal"):
        return False  # the holder keeps the earlier end until the later one is acknowledged
    world.lag(lock=replica.lock._replace(fresh=False))
    world.node(lost=nodes.lost + 1)
    return True
