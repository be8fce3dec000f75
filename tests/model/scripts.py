"""The Lua scripts, line by line where it matters. Compare with ``django_redislock/scripts/``.

A channel is a process's number. ``PUBSUB NUMSUB`` and ``PUBLISH`` see a process that is subscribed at the server,
whether it runs or stands still.
"""

from __future__ import annotations

from collections.abc import Sequence

from .world import Answer, Grant, Lock, Message, Token, Violation, World

NOBODY = -1  # the '-' of the field '!'


def acquire(world: World, token: Token) -> Answer:
    """acquire.lua"""
    client, channel = world.clients[token], world.scene.homes[token]
    mode = world.scene.modes[token]
    if not world.lock and not world.queue:
        return Answer("granted", _grant(world, token, "c"))
    if world.lock:
        if world.lock.token == token:
            world.lock = world.lock._replace(fresh=True)  # the end that follows from this answer is a later one
            return Answer("already", Grant(world.lock.fence))
    elif pass_on(world, channel, None if world.without("R9") else token, mode) == "take":
        _drop(world, [token])
        return Answer("granted", _grant(world, token, "c"))

    state = "busy"
    if client.queues:
        new = token not in world.queue
        if new and client.ticket:
            state = "requeued"
        if not client.ticket:
            world.client(token, ticket=1 + max(other.ticket for other in world.clients))
        if new:
            world.queue = tuple(sorted((*world.queue, token), key=lambda waiter: world.clients[waiter].ticket))
        if channel in world.marks:
            at = world.marks.index(channel)
            world.marks = (*world.marks[:at], *((NOBODY,) if at == 0 else ()), *world.marks[at + 1 :])
    if (not world.lock or world.lock.token == token) and not set(world.queue) - {token}:
        raise Violation("refused: nobody else has the lock or stands before, and the answer says busy")
    return Answer(state)


def release(world: World, token: Token) -> None:
    """release.lua: give it back, or leave the queue"""
    channel = world.scene.homes[token]
    held, trace = world.lock, False
    if held and held.token == token:
        trace = held.flag == "h"
        world.lock = ()
    else:
        _drop(world, [token])
        if held:
            return
    if not world.queue:
        if trace:
            world.marks = ()
        return
    pass_on(world, channel)


def confirm(world: World, token: Token) -> bool:
    """renew.lua; answers whether it has changed anything"""
    channel = world.scene.homes[token]
    if not world.lock or world.lock.token != token or world.lock.flag == "c":
        return False
    if world.marks == (channel,):
        world.marks = ()
    elif world.marks:
        world.marks = (NOBODY, *world.marks[1:])
    world.lock = world.lock._replace(flag="c")
    return True


def pass_on(world: World, asker: int, me: Token | None = None, my_mode: str = "") -> str:
    """pass_on.lua. ``asker``: the channel of whoever calls; it lives."""
    suspects = {channel for channel in world.marks if channel not in (asker, NOBODY)}
    before = world.marks or (NOBODY,)

    def mark(current: int) -> None:
        new = (current, *(channel for channel in before if channel in suspects))
        if new != before:
            world.marks = new

    drop: list[Token] = []
    verdict = ""
    for token in world.queue:
        if token == me:
            verdict = "take"
            break
        channel = world.scene.homes[token]
        patient = world.scene.modes[token] == "F" or world.clients[token].aged
        if my_mode == "L" and not patient:
            verdict = "take"
            break
        if channel in suspects or not _counts(world, channel):
            drop.append(token)
        elif patient:
            _drop(world, [token])
            mark(channel)
            grant = _grant(world, token, "h", drop)
            _publish(world, channel, Message(token, grant))
            verdict = "passed"
            break
        else:
            mark(NOBODY)
            _publish(world, channel, Message(token))
            verdict = "passed"
            break
    _drop(world, drop)
    if not verdict:
        world.marks = ()
        return "take"
    return verdict


def _grant(world: World, token: Token, flag: str, dropped: Sequence[Token] = ()) -> Grant:
    """grant.lua"""
    _check_turn(world, token, dropped)
    fences = [grant.fence for grant in world.grants()] + [client.fence for client in world.clients]
    fence = 1 + max([world.entered, *fences])
    world.lock = Lock(token, fence, flag)
    return Grant(fence)


def _check_turn(world: World, token: Token, dropped: Sequence[Token]) -> None:
    """A Lock may overtake those behind a Lock, in their first 100 ms; nobody else may overtake."""
    mine, modes = world.clients[token].ticket, world.scene.modes
    for other in world.queue:
        before = other not in (token, *dropped) and (not mine or world.clients[other].ticket < mine)
        if before and (modes[token] == "F" or modes[world.queue[0]] == "F" or world.clients[other].aged):
            raise Violation(f"out of turn: {token} is granted the lock before {other}")


def _drop(world: World, tokens: list[Token]) -> None:
    if tokens:
        world.queue = tuple(token for token in world.queue if token not in tokens)


def _counts(world: World, channel: int) -> bool:
    process = world.processes[channel]
    return process.state != "dead" and process.subscribed in ("on", "mute")


def _publish(world: World, channel: int, message: Message) -> None:
    process = world.processes[channel]
    # who stands still reads two wakes like one
    if process.subscribed == "on" and message not in process.inbox:
        world.process(channel, inbox=(*process.inbox, message))
