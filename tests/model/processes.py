"""Attempts and processes, as in ``engine/``, and what can happen to them: each action, in the lists at the end, changes
the world and returns True, or finds that it is not possible now and returns False."""

from collections.abc import Callable

from . import failover, scripts
from .world import Attempt, Client, Grant, Id, Violation, World

# -- an attempt ---------------------------------------------------------------------------------------------------


def begin(world: World, attempt: Attempt) -> bool:
    """acquire() is called, in attempts of the same job once the previous one has left"""
    homes, tokens = world.scene.homes, world.scene.tokens
    if world.clients[attempt].at != "new" or world.home(attempt).state != "up":
        return False
    for other, client in enumerate(world.clients):
        same = tokens[other] == tokens[attempt]
        if same and client.at not in ("new", "gone") and not world.scene.together:
            return False
        # identical attempts begin in a fixed order, which merges symmetric states
        crew = homes.count(homes[other]) == homes.count(homes[attempt])
        alike = same or (
            world.scene.limit_of(other) == world.scene.limit_of(attempt)
            and crew
            and tokens.count(tokens[other]) == tokens.count(tokens[attempt]) == 1
        )
        if other < attempt and alike and client.at == "new":
            return False
    return _ask(world, attempt)


def _ask(world: World, attempt: Attempt, *, unasked: bool = False) -> bool:
    ready = world.home(attempt).subscribed != "off"  # if cut or mute, it does not know
    if ready:
        _register(world, attempt)
    return world.client(attempt, at="asks", queues=ready, older=False, unasked=unasked, look=False)


def _register(world: World, attempt: Attempt) -> None:
    waiters = world.home(attempt).waiters
    if attempt not in waiters:
        world.process(world.scene.homes[attempt], waiters=(*waiters, attempt))


def serve(world: World, attempt: Attempt) -> bool:
    """Redis runs the request, whatever has happened to its sender"""
    if world.clients[attempt].at != "asks":
        return False
    world.client(attempt, at="answered", answer=scripts.acquire(world, attempt))
    failover.read_by_another(world, attempt)
    read(world, attempt)
    return True


def read(world: World, attempt: Attempt) -> bool:
    """the answer arrives, at once where the process runs: Attempt.obtain()"""
    client, home = world.clients[attempt], world.scene.homes[attempt]
    if client.at != "answered" or world.home(attempt).state != "up":
        return False
    assert client.answer
    state, grant, *_, sure = client.answer
    world.client(attempt, answer=())
    failover.learn(world, home, client.answer, late=client.older)
    if grant:
        if (grant.over and not world.without("R1")) or not sure:
            return _ask(world, attempt, unasked=client.unasked)
        told = client.grant or world.scene.id(attempt) in [message.id for message in world.processes[home].inbox]
        if state == "already" and client.unasked and not (told or grant.adopted):
            world.process(home, subscribed="off", inbox=())  # the wake has not come: Listener.reconnect()
        return _enter(world, attempt, grant)
    _register(world, attempt)
    if world.home(attempt).subscribed != "off" and not (client.queues and not client.older) and not world.without("R6"):
        return _ask(world, attempt, unasked=client.unasked)
    world.client(attempt, at="waits", queues=False, older=False, unasked=False)
    if client.look:
        _ask(world, attempt)
    if state == "requeued" and client.unasked:
        _tell(world, world.processes[home].waiters)
    return True


def wake(world: World, attempt: Attempt) -> bool:
    """the waiter takes the grant that it was told of, or looks, as it was told: Attempt._wait()"""
    client, waiters = world.clients[attempt], world.home(attempt).waiters
    if client.at != "waits" or not (client.grant or client.look) or world.home(attempt).state != "up":
        return False
    if client.grant:
        unnamed = world.scene.acknowledged and world.without("C3-fence") and not world.nodes.replica
        if unnamed and failover.is_held(world, attempt):
            scripts.confirm(world, attempt)  # whatever grant it finds
            return _enter(world, attempt, client.grant)
        late = failover.is_late(world, world.scene.homes[attempt], client.grant)
        # WAIT is about what its own connection has written: this look confirms the handoff, which is a write
        if not late and not (world.scene.acknowledged and not world.without("C6")):
            return _enter(world, attempt, client.grant)
        world.client(attempt, grant=())
        _tell(world, waiters if late else ())
    return _ask(world, attempt)


def look(world: World, attempt: Attempt) -> bool:
    """a scheduled look is due: the oldest waiter of a process looks"""
    client, process = world.clients[attempt], world.home(attempt)
    if client.at != "waits" or client.look or client.grant or process.state != "up" or process.waiters[0] != attempt:
        return False
    return _ask(world, attempt, unasked=True)


def _enter(world: World, attempt: Attempt, grant: Grant) -> bool:
    """The attempt believes its lease from now on."""
    inside = [
        other
        for other, client in enumerate(world.clients)
        if client.at == "holds" and not failover.may_overlap(world, grant.fence, client.fence)
    ]
    if len(inside) >= world.scene.limit:
        raise Violation(f"two holders: {attempt} enters while {inside[0]} believes its lease")
    above = grant.fence > world.entered or (grant.fence == world.entered and grant.adopted) or world.scene.limit > 1
    # one whose lease is lost on its way may come behind those who have higher fences
    if not above and not failover.may_overlap(world, grant.fence):
        raise Violation(f"fences: {attempt} enters with one that is not above those before")
    world.entered = max(grant.fence, world.entered)
    _forget(world, attempt)
    # the ticket is for a replica that still has it in the queue
    world.clients[attempt] = Client("holds", world.clients[attempt].ticket, fence=grant.fence)
    return True


def leave(world: World, attempt: Attempt) -> bool:
    """the holder releases, even if it has lost the lock; or a waiter gives up and withdraws"""
    if world.clients[attempt].at not in ("waits", "holds", "lost") or world.home(attempt).state != "up":
        return False
    _forget(world, attempt)
    scripts.release(world, world.scene.id(attempt), world.scene.homes[attempt])
    return True


def leave_unheard(world: World, attempt: Attempt) -> bool:
    """a release or withdrawal does not reach Redis: the watchdog sends it later (R7)"""
    if world.clients[attempt].at not in ("waits", "holds") or not _fault(world, world.scene.homes[attempt]):
        return False
    _forget(world, attempt)
    return _release_later(world, world.scene.homes[attempt], world.scene.id(attempt))


def _forget(world: World, attempt: Attempt) -> None:
    waiters = tuple(waiter for waiter in world.home(attempt).waiters if waiter != attempt)
    world.process(world.scene.homes[attempt], waiters=waiters)
    world.client(attempt, at="gone", fence=0, look=False, grant=())


def confirm(world: World, attempt: Attempt) -> bool:
    """the watchdog confirms a handoff (R10); other renewals only keep the deadline from passing"""
    return world.clients[attempt].at == "holds" and failover.is_held(world, attempt) and scripts.confirm(world, attempt)


# -- a process ----------------------------------------------------------------------------------------------------


def hear(world: World, home: int) -> bool:
    """the listener reads a message: Listener.on_message()"""
    process = world.processes[home]
    if process.state != "up" or not process.inbox:
        return False
    id, grant, old = process.inbox[0]
    world.process(home, inbox=process.inbox[1:])
    if not world.without("known-wakes"):
        failover.learn_fence(world, home, grant)
    if old and world.scene.clock == "ahead":
        grant = grant._replace(over=False)  # judged by the clock of the node that it came through
    if grant.over:
        _tell(world, world.processes[home].waiters)
    mine = [attempt for attempt in world.attempts(id) if world.scene.homes[attempt] == home]
    for attempt in mine:
        if attempt in process.waiters:
            if not world.scene.wakes or grant.node == process.node or world.without("C3-signed"):
                return world.client(attempt, grant=grant)
            _tell(world, (attempt,))
            return True
    return any(world.clients[attempt].at in ("holds", "lost") for attempt in mine) or _release_later(world, home, id)


def send_pending(world: World, home: int) -> bool:
    """the watchdog sends a release or withdrawal that had not reached Redis"""
    pending = world.processes[home].pending
    if not pending:
        return False
    world.process(home, pending=pending[1:])
    scripts.release(world, pending[0], home)
    return True


def _release_later(world: World, home: int, id: Id) -> bool:
    pending = world.processes[home].pending
    return world.process(home, pending=pending if world.without("R7") or id in pending else (*pending, id))


def _tell(world: World, attempts: tuple[Attempt, ...]) -> None:
    """Tell them to look: at once, or when the answer that they wait for has come."""
    for attempt in attempts:
        client = world.clients[attempt]
        # with two nodes, it matters what happens before it looks: wake()
        if client.at == "waits" and not client.grant and world.scene.lost is None:
            _ask(world, attempt)
        else:
            world.client(attempt, look=True)


def notice(world: World, home: int) -> bool:
    """the listener finds its connection broken"""
    broken = world.processes[home].state == "up" and world.processes[home].subscribed in ("cut", "mute")
    return broken and world.process(home, subscribed="off", inbox=())


def subscribe(world: World, home: int) -> bool:
    """the listener subscribes anew, and tells all waiters: Listener.subscribed()"""
    process = world.processes[home]
    if process.state != "up" or process.subscribed != "off":
        return False
    world.process(home, subscribed="on", node=world.nodes.master)
    for attempt, client in enumerate(world.clients):
        if world.scene.homes[attempt] == home and client.at in ("asks", "answered"):
            world.client(attempt, older=True)
    front_only = world.without("R6") or world.without("C3-all")
    _tell(world, process.waiters[:1] if front_only else process.waiters)
    return True


def stop(world: World, home: int) -> bool:
    """SIGSTOP, a frozen container: it still counts as subscribed"""
    return _fault(world, home) and world.process(home, state="stopped")


def go_on(world: World, home: int) -> bool:
    """SIGCONT: it continues with what it knew"""
    return world.processes[home].state == "stopped" and world.process(home, state="up")


def die(world: World, home: int) -> bool:
    """kill -9: requests that it has sent may still arrive"""
    return _fault(world, home) and world.process(home, state="dead", subscribed="off", inbox=(), waiters=())


def cut(world: World, home: int) -> bool:
    """its subscription breaks, and Redis sees it first"""
    return _fault(world, home, "on") and world.process(home, subscribed="cut")


def mute(world: World, home: int) -> bool:
    """its subscription breaks, and Redis does not see it: wakes are lost"""
    return _fault(world, home, "on") and world.process(home, subscribed="mute", inbox=())


def _fault(world: World, home: int, subscribed: str = "") -> bool:
    """Whether there may be another one, where it makes a difference."""
    possible = world.faults > 0 and world.is_busy(home) and subscribed in ("", world.processes[home].subscribed)
    world.faults -= possible
    return possible


def deadline(world: World, place: int) -> bool:
    """the lease ends by the clock of a process that knows of it: never later than in Redis (R1)"""
    [lock] = world.permits()[place : place + 1] or [None]
    if not lock or not lock.fresh or world.is_busy_hearing():
        return False
    fence = lock.fence
    world.change_locks(lambda lock: lock._replace(fresh=lock.fresh and lock.fence != fence))
    for attempt, client in enumerate(world.clients):
        if client.at == "holds" and client.fence == fence:
            world.client(attempt, at="lost", fence=0)
    # otherwise it makes no difference any more
    known = fence if world.scene.without in ("R1", "C2", "C2-look", "C3-close") else 0
    world.change_grants(lambda grant: grant._replace(fence=known, over=True) if grant.fence == fence else grant)
    return True


def expire(world: World, place: int) -> bool:
    """the lease ends in Redis"""
    [lock] = world.permits()[place : place + 1] or [None]
    early = lock and lock.node != world.nodes.master and world.scene.clock == "ahead"  # by the new master's clock
    if not lock or (lock.fresh and not early):
        return False
    failover.rob(world, lock)
    world.take(lock.id)
    channel = world.scene.homes[lock.attempt]
    if lock.marked and channel not in world.suspects:
        world.suspects = (*world.suspects, channel)  # as the next script does: drop_ended()
    return True


Action = Callable[[World, int], bool]

# what happens by itself and at once
CLIENT_STEPS: list[Action] = [serve, read, wake]
PROCESS_STEPS: list[Action] = [hear, send_pending, subscribe]
# what may happen or not
CLIENT_EVENTS: list[Action] = [begin, look, leave, leave_unheard, confirm, failover.renew, failover.answer_late]
PROCESS_EVENTS: list[Action] = [notice, failover.moved, stop, go_on, die, cut, mute]
TIME: list[Action] = [deadline, expire]
NODES: list[Action] = [failover.fall_behind, failover.fail_over, failover.wake_up]
# faults: at most as many as the scene says
FAULTS: list[Action] = [leave_unheard, stop, die, cut, mute]
