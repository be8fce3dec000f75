"""The Lua scripts, line by line where it matters. Compare with ``django_redislock/store/lua/``.

A channel is the number of a process. Each that is subscribed at the server counts, whether it runs or is stopped.
"""

from __future__ import annotations

from .world import NOBODY, Answer, Attempt, Grant, Id, Lock, Message, Violation, World


def acquire(world: World, attempt: Attempt) -> Answer:
    """acquire.lua, and WAIT: whether the replicas have the writes of this connection"""
    sure = not world.scene.acknowledged or not world.nodes.replica
    return _acquire(world, attempt)._replace(node=world.nodes.master, sure=sure)


def _acquire(world: World, attempt: Attempt) -> Answer:
    client, channel, id = world.clients[attempt], world.scene.homes[attempt], world.scene.id(attempt)
    held = world.lock
    if held and held.id == id:
        if world.scene.acknowledged:
            confirm(world, attempt)
        # the end that follows from this answer is a later one
        world.lock = (world.lock or held)._replace(fresh=True, attempt=attempt)
        return Answer("already", Grant(held.fence, adopted=held.attempt != attempt))  # only where an id is a token
    if held and _may_adopt(world, attempt, held):
        if held.flag == "h":
            world.mark = NOBODY
        # its holder seems dead: if it is alive after all, its fence is outdated from now on
        fence = 1 + max(world.entered, *world.fences())
        world.lock = Lock(id, attempt, fence, "a", node=world.nodes.master)
        _drop(world, id)
        return Answer("already", Grant(fence, adopted=True))
    if not held and (not world.queue or pass_on(world, channel, None if world.without("R9") else id)):
        _drop(world, id)
        return Answer("granted", _grant(world, attempt, "c"))

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
    if (not world.lock or world.lock.id == id) and not set(world.queue) - {id}:
        raise Violation("refused: nobody else has the lock or stands before, and the answer says busy")
    return Answer(state)


def _may_adopt(world: World, attempt: Attempt, held: Lock) -> bool:
    """The token is the same, and nobody is using the lock."""
    if world.scene.tokens[held.attempt] != world.scene.tokens[attempt]:
        return False
    channel = world.scene.homes[held.attempt]
    if channel == world.scene.homes[attempt]:
        return world.clients[held.attempt].at == "gone"
    return not counts(world, channel)


def release(world: World, id: Id, channel: int) -> None:
    """release.lua: release the lock, or leave the queue"""
    held = world.lock
    if held and held.id == id:
        world.lock = ()
    else:
        _drop(world, id)
        if held:
            return
    if world.queue or not held or held.flag != "c":
        pass_on(world, channel, given_back=bool(held))


def confirm(world: World, attempt: Attempt) -> bool:
    """renew.lua; returns whether it has changed anything"""
    if not world.lock or world.lock.attempt != attempt or world.lock.flag == "c":
        return False
    world.mark = NOBODY
    world.lock = world.lock._replace(flag="c", node=world.nodes.master)
    return True


def pass_on(world: World, asker: int, me: Id | None = None, *, given_back: bool = False) -> bool:
    """pass_on.lua; returns whether the caller may take the lock. ``asker``: its channel, which is alive."""
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
            world.mark = channel
            message, process = Message(id, _grant(world, attempt, "h")), world.processes[channel]
            if process.subscribed == "on" and message not in process.inbox:  # two wakes are like one
                world.process(channel, inbox=(*process.inbox, message))
            return False
    world.suspects = ()
    return True


def _waiter(world: World, id: Id) -> Attempt:
    """The attempt that waits with this id: the latest, if several have had it."""
    return max(world.attempts(id), key=lambda attempt: world.clients[attempt].ticket)


def _grant(world: World, attempt: Attempt, flag: str) -> Grant:
    """grant.lua"""
    mine, ticket = world.scene.id(attempt), world.clients[attempt].ticket
    for id in world.queue:
        if id != mine and (not ticket or world.clients[_waiter(world, id)].ticket < ticket):
            raise Violation(f"out of turn: {attempt} is granted the lock before {id}")
    fence = 1 + max(world.entered, *world.fences())
    world.lock = Lock(mine, attempt, fence, flag, node=world.nodes.master)
    return Grant(fence, node=world.nodes.master)


def _drop(world: World, id: Id) -> None:
    world.queue = tuple(other for other in world.queue if other != id)


def counts(world: World, channel: int) -> bool:
    """Whether the process is subscribed at the master: a subscription at another node does not count."""
    process = world.processes[channel]
    return process.state != "dead" and process.subscribed in ("on", "mute") and process.node == world.nodes.master
