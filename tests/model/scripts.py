"""The Lua scripts, line by line where it matters. Compare with ``django_redislock/store/lua/``.

A channel is the number of a process. ``PUBSUB NUMSUB`` and ``PUBLISH`` see each process that is subscribed at the
server, whether it runs or is stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

from .world import NOBODY, Answer, Attempt, Grant, Id, Lock, Message, Violation, World


def acquire(world: World, attempt: Attempt) -> Answer:
    """acquire.lua"""
    client, channel, id = world.clients[attempt], world.scene.homes[attempt], world.scene.id(attempt)
    if not world.lock and not world.queue:
        return Answer("granted", _grant(world, channel, attempt, "c"))
    held = world.lock
    if held and held.id == id:
        if world.scene.acknowledged and not world.without("C6 repeat") and confirm(world, attempt):
            held = world.lock or held
        adopted = held.attempt != attempt  # only where an id is a token
        # the end that follows from this answer is a later one
        world.lock = held._replace(fresh=True, attempt=attempt)
        return Answer("already", Grant(held.fence, adopted=adopted))
    if held and _may_adopt(world, attempt, held):
        if held.flag == "h":
            world.mark = NOBODY
        # its holder seems dead: if it is alive after all, its fence is outdated from now on
        fence = _next_fence(world, channel)
        world.lock = written(world, Lock(id, attempt, fence, "a"))
        _drop(world, [id])
        return Answer("already", Grant(fence, adopted=True))
    if not held and pass_on(world, channel, None if world.without("R9") else id) == "take":
        _drop(world, [id])
        return Answer("granted", _grant(world, channel, attempt, "c"))

    state = "busy"
    if client.queues:
        if id not in world.queue and client.ticket:
            state = "requeued"
        if not client.ticket:
            world.client(attempt, ticket=1 + max(other.ticket for other in world.clients))
        if id not in world.queue:
            world.queue = tuple(sorted((*world.queue, id), key=lambda waiter: _ticket(world, waiter)))
        if world.mark == channel:
            world.mark = NOBODY
        world.suspects = tuple(suspect for suspect in world.suspects if suspect != channel)
    if (not world.lock or world.lock.id == id) and not set(world.queue) - {id}:
        raise Violation("refused: nobody else has the lock or stands before, and the answer says busy")
    return Answer(state)


def _ticket(world: World, id: Id) -> int:
    return max(world.clients[attempt].ticket for attempt in world.attempts(id))


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
    held = world.lock
    given_up = ""
    if held and held.id == id:
        given_up = held.flag
        world.lock = ()
    else:
        _drop(world, [id])
        if held:
            return
    if not world.queue:
        if given_up != "c":
            world.mark, world.suspects = NOBODY, ()
        return
    pass_on(world, channel, given_up=given_up)


def confirm(world: World, attempt: Attempt) -> bool:
    """renew.lua; returns whether it has changed anything"""
    if not world.lock or world.lock.attempt != attempt or world.lock.flag == "c":
        return False
    world.mark = NOBODY
    world.lock = written(world, world.lock._replace(flag="c"))
    return True


def pass_on(world: World, asker: int, me: Id | None = None, given_up: str = "") -> str:
    """pass_on.lua. ``asker``: the channel of the caller, which is alive. ``given_up``: flag of the lock before."""
    suspects = world.suspects
    marked = world.mark
    if marked != NOBODY and not given_up and marked != asker and marked not in suspects:
        suspects = world.suspects = (*suspects, marked)
    drop: list[Id] = []
    verdict = ""
    for id in world.queue:
        if id == me:
            verdict = "take"
            break
        attempt = _waiter(world, id)
        channel = world.scene.homes[attempt]
        if (channel in suspects and channel != asker) or not counts(world, channel):
            drop.append(id)
        else:
            _drop(world, [id])
            grant = _grant(world, asker, attempt, "h", drop)
            world.mark = channel
            _publish(world, channel, Message(id, grant))
            verdict = "passed"
            break
    _drop(world, drop)
    if verdict != "passed":
        world.mark = NOBODY
    if not verdict:
        world.suspects = ()
        return "take"
    return verdict


def hand_over_unawares(world: World, id: Id) -> None:
    """The old master hands over a lock that it no longer decides on."""
    waiter = _waiter(world, id)
    _publish(world, world.scene.homes[waiter], Message(id, grant_unawares(world, waiter)))


def grant_unawares(world: World, attempt: Attempt) -> Grant:
    """See hand_over_unawares()."""
    return Grant(_next_fence(world, world.scene.homes[attempt]), node=0)


def _waiter(world: World, id: Id) -> Attempt:
    """The attempt that waits with this id: the latest, if several have had it."""
    return max(world.attempts(id), key=lambda attempt: world.clients[attempt].ticket)


def _grant(world: World, asker: int, attempt: Attempt, flag: str, dropped: Sequence[Id] = ()) -> Grant:
    """grant.lua"""
    _check_turn(world, attempt, dropped)
    fence = _next_fence(world, asker)
    world.lock = written(world, Lock(world.scene.id(attempt), attempt, fence, flag))
    return Grant(fence, node=world.nodes.master)


def written(world: World, lock: Lock) -> Lock:
    """The lock as written by the current master."""
    counted = not world.scene.together or counts(world, world.scene.homes[lock.attempt])
    return lock._replace(node=world.nodes.master, counted=counted)


def _next_fence(world: World, asker: int) -> int:
    """fence.lua"""
    fences = [grant.fence for grant in world.grants()] + [client.fence for client in world.clients]
    replica = world.nodes.replica
    if replica and replica.lock:
        fences.append(replica.lock.fence)  # this fence may come back
    fence = 1 + max([world.entered, *fences])
    if world.scene.clock == "behind":
        if world.nodes.master:  # its clock is still behind the last fences, so they do not grow with time
            known = 0 if world.without("known") else world.processes[asker].known
            drawn = 1 + max(world.nodes.last, known)
            if drawn < fence:
                raise Violation("fences: one is drawn that is not above all that were granted before")
            fence = drawn
        world.node(last=fence)
    return fence


def _check_turn(world: World, attempt: Attempt, dropped: Sequence[Id]) -> None:
    """Nobody overtakes."""
    mine, ticket = world.scene.id(attempt), world.clients[attempt].ticket
    for id in world.queue:
        if id not in (mine, *dropped) and (not ticket or _ticket(world, id) < ticket):
            raise Violation(f"out of turn: {attempt} is granted the lock before {id}")


def _drop(world: World, ids: list[Id]) -> None:
    if ids:
        world.queue = tuple(id for id in world.queue if id not in ids)


def counts(world: World, channel: int) -> bool:
    """Whether the process is subscribed at the master: a subscription at another node does not count."""
    process = world.processes[channel]
    return process.state != "dead" and process.subscribed in ("on", "mute") and process.node == world.nodes.master


def _publish(world: World, channel: int, message: Message) -> None:
    process = world.processes[channel]
    # a stopped process will read two wakes like one
    if process.subscribed == "on" and message not in process.inbox:
        copies = (message, message._replace(old=True)) if process.old else (message,)
        world.process(channel, inbox=(*process.inbox, *copies))
