"""The Lua scripts, line by line where it matters. Compare with ``django_redislock/store/lua/``.

A channel is the number of a process. Each that is subscribed at the server counts, whether it runs or is stopped.
"""

from .world import NOBODY, Answer, Attempt, Grant, Id, Lock, Message, Violation, World


def acquire(world: World, attempt: Attempt) -> Answer:
    """acquire.lua, and WAIT: whether the replicas have the writes of this connection"""
    answer = _acquire(world, attempt)
    # a grant that was made earlier, by a handoff or by the first of two repeated calls: this connection wrote nothing
    nothing_written = answer.state == "already" and world.without("C6-repeat")
    sure = not world.scene.acknowledged or not world.nodes.replica or nothing_written
    return answer._replace(node=world.nodes.master, sure=sure)


def _acquire(world: World, attempt: Attempt) -> Answer:
    client, channel, id = world.clients[attempt], world.scene.homes[attempt], world.scene.id(attempt)
    held = world.held_by(id) or (() if world.free(world.scene.limit_of(attempt)) else world.lock)
    if held and held.id == id:
        if world.scene.acknowledged and not world.without("C6-repeat"):
            confirm(world, attempt)
        # the end that follows from this answer is a later one
        world.put((world.held_by(id) or held)._replace(fresh=True, attempt=attempt))
        return Answer("already", Grant(held.fence, adopted=held.attempt != attempt))  # only where an id is a token
    if held and _may_adopt(world, attempt, held):
        if held.flag == "h":
            world.mark = NOBODY
        # its holder seems dead: if it is alive after all, its fence is outdated from now on
        fence = _next_fence(world, channel)
        world.lock = written(world, Lock(id, attempt, fence, "a"))
        _drop(world, id)
        return Answer("already", Grant(fence, adopted=True))
    before = world.limit
    if world.scene.limits:
        world.limit = world.asked = world.scene.limit_of(attempt)  # what was asked for last counts
    if not held and (not world.queue or grant_next(world, channel, None if world.without("R9") else id)):
        _drop(world, id)
        grant = _grant(world, channel, attempt, "c")
        if world.free():
            grant_next(world, channel)
        return Answer("granted", grant)

    state = "busy"
    if client.queues:
        if id not in world.queue and client.ticket:
            state = "requeued"
        if not client.ticket:
            world.client(attempt, ticket=1 + max(other.ticket for other in world.clients))
        if id not in world.queue:
            world.queue = tuple(sorted((*world.queue, id), key=lambda one: world.clients[_waiter(world, one)].ticket))
        if world.mark == channel:
            world.mark = NOBODY
        world.suspects = tuple(suspect for suspect in world.suspects if suspect != channel)
        for lock in world.permits():
            if lock.marked and world.scene.homes[lock.attempt] == channel:
                world.put(lock._replace(marked=False))
    if (world.free() or world.held_by(id)) and not set(world.queue) - {id}:
        raise Violation("refused: nobody else has the lock or stands before, and the answer says busy")
    if world.without("limit"):
        world.limit = before
    return Answer(state)


def _may_adopt(world: World, attempt: Attempt, held: Lock) -> bool:
    """The token is the same, and nobody is using the lock."""
    if world.scene.tokens[held.attempt] != world.scene.tokens[attempt]:
        return False
    channel = world.scene.homes[held.attempt]
    if channel == world.scene.homes[attempt]:
        return world.clients[held.attempt].at == "gone"
    if not (held.counted and held.node == world.nodes.master) and not world.without("adopt"):
        return False  # it need not be dead at a node where it was never subscribed
    return not counts(world, channel)


def release(world: World, id: Id, channel: int) -> None:
    """release.lua: release the lock, or leave the queue"""
    held = world.held_by(id)
    if held:
        world.take(id)
    else:
        _drop(world, id)
        if not world.free():
            return
    if (world.queue or not held or held.flag != "c") and (world.free() or world.without("lowered")):
        grant_next(world, channel, given_back=bool(held))
    if held and not world.permits():
        world.limit = world.asked = 0  # the keys go with the last permit


def confirm(world: World, attempt: Attempt) -> bool:
    """renew.lua; returns whether it has changed anything"""
    for lock in world.permits():
        if lock.attempt == attempt and lock.flag != "c":
            world.mark = NOBODY
            world.put(written(world, lock._replace(flag="c", marked=False)))
            return True
    return False


def grant_next(world: World, asker: int, me: Id | None = None, *, given_back: bool = False) -> bool:
    """grant_in_order; returns whether the caller may take the lock. ``asker``: its channel, which is alive."""
    if world.mark not in (NOBODY, asker, *world.suspects) and not given_back:
        world.suspects = (*world.suspects, world.mark)
    world.mark = NOBODY
    for id in world.queue:
        if id == me:
            return True
        _drop(world, id)
        attempt = _waiter(world, id)
        channel = world.scene.homes[attempt]
        if counts(world, channel) and (channel == asker or channel not in world.suspects):
            if world.scene.limit == 1:  # else each handoff has a mark of its own: expire()
                world.mark = channel
            publish(world, channel, Message(id, _grant(world, asker, attempt, "h")))
            if not world.free() and not world.without("free"):
                return False
    world.suspects = ()
    return True


def publish(world: World, channel: int, message: Message) -> None:
    """PUBLISH, or SPUBLISH"""
    process = world.processes[channel]
    if process.subscribed == "on" and message not in process.inbox:  # two wakes are like one
        copies = (message, message._replace(old=True)) if process.old else (message,)
        world.process(channel, inbox=(*process.inbox, *copies))


def grant_unawares(world: World, attempt: Attempt) -> Grant:
    """The old master grants a lock that it no longer decides on."""
    return Grant(_next_fence(world, world.scene.homes[attempt]), node=0)


def _waiter(world: World, id: Id) -> Attempt:
    """The attempt that waits with this id: the latest, if several have had it."""
    return max(world.attempts(id), key=lambda attempt: world.clients[attempt].ticket)


def _grant(world: World, asker: int, attempt: Attempt, flag: str) -> Grant:
    """grant()"""
    mine, ticket = world.scene.id(attempt), world.clients[attempt].ticket
    for id in world.queue:
        if id != mine and (not ticket or world.clients[_waiter(world, id)].ticket < ticket):
            raise Violation(f"out of turn: {attempt} is granted the lock before {id}")
    fence = _next_fence(world, asker)
    marked = flag == "h" and world.scene.limit > 1
    world.put(written(world, Lock(mine, attempt, fence, flag, marked=marked)))
    return Grant(fence, node=world.nodes.master)


def written(world: World, lock: Lock) -> Lock:
    counted = not world.scene.together or counts(world, world.scene.homes[lock.attempt])
    return lock._replace(node=world.nodes.master, counted=counted)


def _next_fence(world: World, asker: int) -> int:
    """next_fence()"""
    fence = 1 + max(world.entered, *world.fences())
    if world.scene.clock == "behind":
        if world.nodes.master:  # its clock is still behind the last fences, so they do not grow with time
            drawn = 1 + max(world.last, 0 if world.without("known") else world.processes[asker].known)
            if drawn < fence:
                raise Violation("fences: one is drawn that is not above all that were granted before")
            fence = drawn
        world.last = fence
    return fence


def _drop(world: World, id: Id) -> None:
    world.queue = tuple(other for other in world.queue if other != id)


def counts(world: World, channel: int) -> bool:
    """Whether the process is subscribed at the master: a subscription at another node does not count."""
    process = world.processes[channel]
    return process.state != "dead" and process.subscribed in ("on", "mute") and process.node == world.nodes.master
