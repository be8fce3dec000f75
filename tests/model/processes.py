"""Attempts and processes, as in ``engine/``, and what can happen to them.

Each function in the lists at the end is an action: it changes the world and returns True, or finds that it is not
possible now and returns False.
"""

from __future__ import annotations

from collections.abc import Callable

from . import scripts
from .failover import (
    ends_early,
    fail_over,
    fall_behind,
    is_held,
    is_late,
    is_signed_by_another,
    learn,
    learn_fence,
    may_overlap,
    moved,
    renew,
    rob,
    sign,
    wake_up,
)
from .world import Answer, Attempt, Client, Grant, Id, Violation, World

# -- an attempt ---------------------------------------------------------------------------------------------------


def begin(world: World, attempt: Attempt) -> bool:
    """acquire() is called, in attempts of the same job once the previous one has left"""
    scene = world.scene
    if world.clients[attempt].at != "new" or world.home(attempt).state != "up":
        return False
    for other in range(len(world.clients)):
        if other == attempt:
            continue
        same = scene.tokens[other] == scene.tokens[attempt]
        if same and world.clients[other].at not in ("new", "gone") and not scene.together:
            return False
        # identical attempts begin in a fixed order, which merges symmetric states
        alike = same or (
            (scene.homes[other] == scene.homes[attempt] or _crew(world, other) == _crew(world, attempt))
            and {scene.tokens.count(scene.tokens[one]) for one in (other, attempt)} == {1}
        )
        if other < attempt and alike and world.clients[other].at == "new":
            return False
    _ask(world, attempt, unasked=False)
    return True


def _crew(world: World, attempt: Attempt) -> int:
    return world.scene.homes.count(world.scene.homes[attempt])


def _ask(world: World, attempt: Attempt, *, unasked: bool) -> None:
    home = world.scene.homes[attempt]
    ready = _ready(world, home)
    if ready and attempt not in world.processes[home].waiters:
        world.process(home, waiters=(*world.processes[home].waiters, attempt))
    world.client(attempt, at="asks", queues=ready, older=False, unasked=unasked, look=False)


def _ready(world: World, process: int) -> bool:
    return world.processes[process].subscribed != "off"  # if cut or mute, it does not know


def serve(world: World, attempt: Attempt) -> bool:
    """Redis runs the request, whatever has happened to its sender"""
    if world.clients[attempt].at != "asks":
        return False
    world.client(attempt, at="answered", answer=sign(world, scripts.acquire(world, attempt)))
    _read_by_another(world, attempt)
    read(world, attempt)
    return True


def answer_late(world: World, attempt: Attempt) -> bool:
    """the old master wakes up, reads a request of before, and finds at its end a lease that was renewed since"""
    client, lock = world.clients[attempt], world.lock
    if client.at != "asks" or attempt not in world.nodes.unread or not lock or lock.node == 0:
        return False
    _read_by_another(world, attempt)
    if world.without("C7"):
        world.client(attempt, at="answered", answer=Answer("granted", scripts.grant_unawares(world, attempt), node=0))
        read(world, attempt)
    else:
        _ask(world, attempt, unasked=client.unasked)  # elsewhere
    return True


def _read_by_another(world: World, attempt: Attempt) -> None:
    world.node(unread=tuple(other for other in world.nodes.unread if other != attempt))


def read(world: World, attempt: Attempt) -> bool:
    """the answer arrives, at once where the process runs: Attempt.obtain()"""
    client, home = world.clients[attempt], world.scene.homes[attempt]
    if client.at != "answered" or world.home(attempt).state != "up":
        return False
    assert client.answer
    state, grant, _, sure = client.answer
    world.client(attempt, answer=())
    learn(world, home, client.answer, late=client.older)
    process = world.processes[home]
    if grant:
        if (grant.over and not world.without("R1")) or not sure:
            _ask(world, attempt, unasked=client.unasked)
            return True
        id = world.scene.id(attempt)
        unheard = not any(message.id == id for message in process.inbox) and not client.grant
        if state == "already" and not grant.adopted and client.unasked and unheard and process.subscribed != "off":
            world.process(home, subscribed="off", inbox=())  # the wake has not come: Listener.reconnect()
        _enter(world, attempt, grant)
        return True
    if attempt not in process.waiters:
        process = process._replace(waiters=(*process.waiters, attempt))
        world.process(home, waiters=process.waiters)
    ready = _ready(world, home)
    if ready and not (client.queues and not client.older) and not world.without("R6"):
        _ask(world, attempt, unasked=client.unasked)
        return True
    world.client(attempt, at="waits", queues=False, older=False, unasked=False)
    if client.look:
        _ask(world, attempt, unasked=False)
    if state == "requeued" and client.unasked:
        _tell_all(world, home)
    return True


def wake(world: World, attempt: Attempt) -> bool:
    """the waiter takes the grant that it was told of: Attempt._wait()"""
    client = world.clients[attempt]
    if client.at != "waits" or not client.grant or world.home(attempt).state != "up":
        return False
    if is_late(world, world.scene.homes[attempt], client.grant):
        world.client(attempt, grant=())
        _tell_all(world, world.scene.homes[attempt])
        _ask(world, attempt, unasked=False)
    elif world.scene.acknowledged and world.without("renewal") and not world.nodes.replica and is_held(world, attempt):
        scripts.confirm(world, attempt)  # whatever grant it finds
        _enter(world, attempt, client.grant)
    elif world.scene.acknowledged and not world.without("C6"):
        # WAIT is about what its own connection has written: this look confirms the handoff, which is a write, and tells
        # the fence
        world.client(attempt, grant=())
        _ask(world, attempt, unasked=False)
    else:
        _enter(world, attempt, client.grant)
    return True


def obey(world: World, attempt: Attempt) -> bool:
    """the waiter looks, as it was told"""
    client = world.clients[attempt]
    if client.at != "waits" or not client.look or client.grant or world.home(attempt).state != "up":
        return False
    _ask(world, attempt, unasked=False)
    return True


def look(world: World, attempt: Attempt) -> bool:
    """a scheduled look is due: the oldest waiter of a process looks"""
    client, process = world.clients[attempt], world.home(attempt)
    if client.at != "waits" or process.state != "up" or client.grant or process.waiters[0] != attempt:
        return False
    if client.look:
        return False  # it looks anyway
    _ask(world, attempt, unasked=True)
    return True


def _enter(world: World, attempt: Attempt, grant: Grant) -> None:
    """The attempt believes its lease from now on."""
    for other, client in enumerate(world.clients):
        if client.at == "holds" and not may_overlap(world, grant.fence, client.fence):
            raise Violation(f"two holders: {attempt} enters while {other} believes its lease")
    above = grant.fence > world.entered or (grant.fence == world.entered and grant.adopted)
    # one whose lease is lost on its way may come behind those who have higher fences
    if not above and not may_overlap(world, grant.fence):
        raise Violation(f"fences: {attempt} enters with one that is not above those before")
    world.entered = max(grant.fence, world.entered)
    _unregister(world, attempt)
    # the ticket is for a replica that still has it in the queue
    world.clients[attempt] = Client("holds", world.clients[attempt].ticket, fence=grant.fence)


def _unregister(world: World, attempt: Attempt) -> None:
    home = world.scene.homes[attempt]
    waiters = world.processes[home].waiters
    if attempt in waiters:
        world.process(home, waiters=tuple(waiter for waiter in waiters if waiter != attempt))


def leave(world: World, attempt: Attempt) -> bool:
    """the holder releases, even if it has lost the lock; or a waiter gives up and withdraws"""
    if world.clients[attempt].at not in ("waits", "holds", "lost") or world.home(attempt).state != "up":
        return False
    _forget(world, attempt)
    scripts.release(world, world.scene.id(attempt), world.scene.homes[attempt])
    return True


def leave_unheard(world: World, attempt: Attempt) -> bool:
    """a release or withdrawal does not reach Redis: the watchdog sends it later (R7)"""
    if world.clients[attempt].at not in ("waits", "holds") or world.home(attempt).state != "up" or not _fault(world):
        return False
    _forget(world, attempt)
    _release_later(world, world.scene.homes[attempt], world.scene.id(attempt))
    return True


def _forget(world: World, attempt: Attempt) -> None:
    _unregister(world, attempt)
    world.client(attempt, at="gone", fence=0, look=False, grant=())


def confirm(world: World, attempt: Attempt) -> bool:
    """the watchdog confirms a handoff (R10); other renewals only keep the deadline from passing"""
    return world.clients[attempt].at == "holds" and is_held(world, attempt) and scripts.confirm(world, attempt)


# -- a process ----------------------------------------------------------------------------------------------------


def hear(world: World, home: int) -> bool:
    """the listener reads a message: Listener.on_message()"""
    process = world.processes[home]
    if process.state != "up" or not process.inbox:
        return False
    id, grant, old = process.inbox[0]
    world.process(home, inbox=process.inbox[1:])
    if not world.without("known wakes"):
        learn_fence(world, home, grant)
    if old and world.scene.clock == "ahead":
        grant = grant._replace(over=False)  # judged by the clock of the node that it came through
    if grant.over:
        _tell_all(world, home)
    mine = [attempt for attempt in world.attempts(id) if world.scene.homes[attempt] == home]
    for attempt in mine:
        if attempt in process.waiters:
            if is_signed_by_another(world, home, grant):
                _tell(world, attempt)
            else:
                world.client(attempt, grant=grant)
            return True
    if not any(world.clients[attempt].at in ("holds", "lost") for attempt in mine):
        _release_later(world, home, id)
    return True


def send_pending(world: World, home: int) -> bool:
    """the watchdog sends a release or withdrawal that had not reached Redis"""
    process = world.processes[home]
    if not process.pending:
        return False
    world.process(home, pending=process.pending[1:])
    scripts.release(world, process.pending[0], home)
    return True


def _release_later(world: World, home: int, id: Id) -> None:
    pending = world.processes[home].pending
    if not world.without("R7") and id not in pending:
        world.process(home, pending=(*pending, id))


def _tell_all(world: World, home: int) -> None:
    for attempt in world.processes[home].waiters:
        _tell(world, attempt)


def _tell(world: World, attempt: Attempt) -> None:
    """Tell it to look: at once, or when the answer that it waits for has come."""
    client = world.clients[attempt]
    # with two nodes, it matters what happens before it looks: obey()
    if client.at == "waits" and not client.grant and world.scene.lost is None:
        _ask(world, attempt, unasked=False)
    else:
        world.client(attempt, look=True)


def notice(world: World, home: int) -> bool:
    """the listener finds its connection broken"""
    process = world.processes[home]
    if process.state != "up" or process.subscribed not in ("cut", "mute"):
        return False
    world.process(home, subscribed="off", inbox=())
    return True


def subscribe(world: World, home: int) -> bool:
    """the listener subscribes anew, and tells all waiters: Listener.subscribed()"""
    process = world.processes[home]
    if process.state != "up" or process.subscribed != "off":
        return False
    world.process(home, subscribed="on", node=world.nodes.master)
    for attempt, client in enumerate(world.clients):
        if world.scene.homes[attempt] == home and client.at in ("asks", "answered"):
            world.client(attempt, older=True)
    if not (world.without("R6") or world.without("C3 all")):
        _tell_all(world, home)
    elif process.waiters:
        _tell(world, process.waiters[0])  # only the front waiter
    return True


def stop(world: World, home: int) -> bool:
    """SIGSTOP, a frozen container: it still counts as subscribed"""
    if not world.is_busy(home) or not _fault(world):
        return False
    world.process(home, state="stopped")
    return True


def go_on(world: World, home: int) -> bool:
    """SIGCONT: it continues with what it knew"""
    if world.processes[home].state != "stopped":
        return False
    world.process(home, state="up")
    return True


def die(world: World, home: int) -> bool:
    """kill -9: requests that it has sent may still arrive"""
    if not world.is_busy(home) or not _fault(world):
        return False
    world.process(home, state="dead", subscribed="off", inbox=(), waiters=())
    return True


def cut(world: World, home: int) -> bool:
    """its subscription breaks, and Redis sees it first"""
    if not world.is_busy(home) or world.processes[home].subscribed != "on" or not _fault(world):
        return False
    world.process(home, subscribed="cut")
    return True


def mute(world: World, home: int) -> bool:
    """its subscription breaks, and Redis does not see it: wakes are lost"""
    if not world.is_busy(home) or world.processes[home].subscribed != "on" or not _fault(world):
        return False
    world.process(home, subscribed="mute", inbox=())
    return True


def _fault(world: World) -> bool:
    if world.faults == 0:
        return False
    world.faults -= 1
    return True


# -- time ---------------------------------------------------------------------------------------------------------


def deadline(world: World, _: int) -> bool:
    """the lease ends by the clock of a process that knows of it: never later than in Redis (R1)"""
    if not world.lock or not world.lock.fresh or world.is_busy_hearing():
        return False
    fence, replica = world.lock.fence, world.nodes.replica
    world.lock = world.lock._replace(fresh=False)
    if replica and replica.lock and replica.lock.fence == fence:
        world.lag(lock=replica.lock._replace(fresh=False))
    for attempt, client in enumerate(world.clients):
        if client.at == "holds" and client.fence == fence:
            world.client(attempt, at="lost", fence=0)
    believed = world.scene.without in ("R1", "C2", "C2 look", "C3 close")
    known = fence if believed else 0  # otherwise it makes no difference any more
    world.change_grants(lambda grant: grant._replace(fence=known, over=True) if grant.fence == fence else grant)
    return True


def expire(world: World, _: int) -> bool:
    """the lease ends in Redis"""
    if not world.lock or (world.lock.fresh and not ends_early(world, world.lock)):
        return False
    rob(world, world.lock)
    world.lock = ()
    return True


Action = Callable[[World, int], bool]

# what happens by itself and at once
CLIENT_STEPS: list[Action] = [serve, read, wake, obey]
PROCESS_STEPS: list[Action] = [hear, send_pending, subscribe]
# what may happen or not
CLIENT_EVENTS: list[Action] = [begin, look, leave, leave_unheard, confirm, renew, answer_late]
PROCESS_EVENTS: list[Action] = [notice, moved, stop, go_on, die, cut, mute]
TIME: list[Action] = [deadline, expire]
NODES: list[Action] = [fall_behind, fail_over, wake_up]
# faults: at most as many as the scene says
FAULTS: list[Action] = [leave_unheard, stop, die, cut, mute]
