"""Clients and listeners, as ``attempt.py``, ``listener.py`` and ``watchdog.py`` have them, and what may befall them.

Each function of the lists at the end is an action: it changes the world and answers True, or finds that it is not
possible now and answers False.
"""

from __future__ import annotations

from collections.abc import Callable

from . import scripts
from .world import Client, Grant, Token, Violation, World

# -- an attempt ---------------------------------------------------------------------------------------------------


def begin(world: World, token: Token) -> bool:
    """acquire() is called; ones that are alike begin in a fixed order, which merges symmetric states"""
    homes, modes = world.scene.homes, world.scene.modes
    if world.clients[token].at != "new" or world.home(token).state != "up":
        return False
    for other in range(token):
        alike = modes[other] == modes[token] and (
            homes[other] == homes[token] or _crew(world, homes[other]) == _crew(world, homes[token])
        )
        if alike and world.clients[other].at == "new":
            return False
    _ask(world, token, unasked=False)
    return True


def _crew(world: World, process: int) -> str:
    return "".join(mode for mode, home in zip(world.scene.modes, world.scene.homes, strict=True) if home == process)


def _ask(world: World, token: Token, *, unasked: bool) -> None:
    home = world.scene.homes[token]
    ready = _ready(world, home)
    if ready and token not in world.processes[home].waiters:
        world.process(home, waiters=(*world.processes[home].waiters, token))
    world.client(token, at="asks", queues=ready, older=False, unasked=unasked, look=False)


def _ready(world: World, process: int) -> bool:
    return world.processes[process].subscribed != "off"  # cut and mute: it does not know


def serve(world: World, token: Token) -> bool:
    """Redis runs the request, whatever has become of its sender"""
    if world.clients[token].at != "asks":
        return False
    world.client(token, at="answered", answer=scripts.acquire(world, token))
    read(world, token)
    return True


def read(world: World, token: Token) -> bool:
    """the answer arrives, at once where the process runs: Attempt.obtain()"""
    client, home = world.clients[token], world.scene.homes[token]
    process = world.processes[home]
    if client.at != "answered" or process.state != "up":
        return False
    assert client.answer
    state, grant = client.answer
    world.client(token, answer=())
    if grant:
        if grant.over and not world.without("R1"):
            _ask(world, token, unasked=client.unasked)
            return True
        lost = not any(message.token == token for message in process.inbox) and not client.grant
        if state == "already" and client.unasked and lost and process.subscribed != "off":
            world.process(home, subscribed="off", inbox=())  # the wake has not come: Listener.reconnect()
        _enter(world, token, grant)
        return True
    if token not in process.waiters:
        process = process._replace(waiters=(*process.waiters, token))
        world.process(home, waiters=process.waiters)
    ready = _ready(world, home)
    if ready and not (client.queues and not client.older) and not world.without("R6"):
        _ask(world, token, unasked=client.unasked)
        return True
    world.client(token, at="waits", queues=False, older=False, unasked=False)
    if client.look:
        _ask(world, token, unasked=False)
    if state == "requeued" and client.unasked:
        _tell_all(world, home)
    return True


def wake(world: World, token: Token) -> bool:
    """the waiter takes what it was told: Attempt._wait()"""
    client = world.clients[token]
    if client.at != "waits" or not client.grant or world.home(token).state != "up":
        return False
    if client.grant.over and not world.without("R1"):
        world.client(token, grant=())
        _tell_all(world, world.scene.homes[token])
        _ask(world, token, unasked=False)
    else:
        _enter(world, token, client.grant)
    return True


def look(world: World, token: Token) -> bool:
    """the clock says that it is time: the oldest waiter of a process looks"""
    client, process = world.clients[token], world.home(token)
    if client.at != "waits" or process.state != "up" or client.grant or process.waiters[0] != token:
        return False
    _ask(world, token, unasked=True)
    return True


def _enter(world: World, token: Token, grant: Grant) -> None:
    """The client believes its lease from now on."""
    for other, client in enumerate(world.clients):
        if client.at == "holds":
            raise Violation(f"two holders: {token} enters while {other} believes its lease")
    if grant.fence <= world.entered:
        raise Violation(f"fences: {token} enters with one that is not above those before")
    world.entered = grant.fence
    _unregister(world, token)
    world.clients[token] = Client("holds", fence=grant.fence)


def _unregister(world: World, token: Token) -> None:
    home = world.scene.homes[token]
    waiters = world.processes[home].waiters
    if token in waiters:
        world.process(home, waiters=tuple(waiter for waiter in waiters if waiter != token))


def leave(world: World, token: Token) -> bool:
    """the holder releases, whether or not it has lost the lock; or a waiter gives up, and withdraws"""
    if world.clients[token].at not in ("waits", "holds", "lost") or world.home(token).state != "up":
        return False
    _forget(world, token)
    scripts.release(world, token)
    return True


def leave_unheard(world: World, token: Token) -> bool:
    """a waiter gives up, and its withdraw is lost: the watchdog says it later (R7)"""
    if world.clients[token].at != "waits" or world.home(token).state != "up" or not _fault(world):
        return False
    _forget(world, token)
    _send_farewell(world, world.scene.homes[token], token)
    return True


def _forget(world: World, token: Token) -> None:
    _unregister(world, token)
    world.client(token, at="gone", fence=0, look=False, grant=())


def confirm(world: World, token: Token) -> bool:
    """the watchdog confirms a handoff (R10); other renewals only keep the deadline from passing"""
    return world.clients[token].at == "holds" and scripts.confirm(world, token)


def age(world: World, token: Token) -> bool:
    """the oldest ticket that was younger is 100 ms old now (only where Lock waiters are among them)"""
    young = [waiter for waiter in world.queue if not world.clients[waiter].aged]
    if "L" not in world.scene.modes or young[:1] != [token]:
        return False
    world.client(token, aged=True)
    return True


# -- a process ----------------------------------------------------------------------------------------------------


def hear(world: World, home: int) -> bool:
    """the listener reads a message: Listener._dispatch()"""
    process = world.processes[home]
    if process.state != "up" or not process.inbox:
        return False
    token, grant = process.inbox[0]
    world.process(home, inbox=process.inbox[1:])
    if grant and grant.over:
        _tell_all(world, home)
    at = world.clients[token].at
    if token in process.waiters:
        if grant:
            world.client(token, grant=grant)
        else:
            _tell(world, token)
    elif at not in ("holds", "lost"):
        _send_farewell(world, home, token)
    return True


def say_farewell(world: World, home: int) -> bool:
    """a release or withdraw that was left to the watchdog"""
    process = world.processes[home]
    if not process.farewells:
        return False
    world.process(home, farewells=process.farewells[1:])
    scripts.release(world, process.farewells[0])
    return True


def _send_farewell(world: World, home: int, token: Token) -> None:
    farewells = world.processes[home].farewells
    if not world.without("R7") and token not in farewells:
        world.process(home, farewells=(*farewells, token))


def _tell_all(world: World, home: int) -> None:
    for token in world.processes[home].waiters:
        _tell(world, token)


def _tell(world: World, token: Token) -> None:
    """To look: at once, or when the answer that it waits for has come."""
    client = world.clients[token]
    if client.at == "waits" and not client.grant:
        _ask(world, token, unasked=False)
    else:
        world.client(token, look=True)


def notice(world: World, home: int) -> bool:
    """the listener finds its connection broken"""
    process = world.processes[home]
    if process.state != "up" or process.subscribed not in ("cut", "mute"):
        return False
    world.process(home, subscribed="off", inbox=())
    return True


def subscribe(world: World, home: int) -> bool:
    """the listener subscribes anew, and tells all that wait: Listener._subscribed()"""
    process = world.processes[home]
    if process.state != "up" or process.subscribed != "off":
        return False
    world.process(home, subscribed="on")
    for token, client in enumerate(world.clients):
        if world.scene.homes[token] == home and client.at in ("asks", "answered"):
            world.client(token, older=True)
    if not world.without("R6"):
        _tell_all(world, home)
    elif process.waiters:
        _tell(world, process.waiters[0])  # only the front waiter
    return True


def stop(world: World, home: int) -> bool:
    """SIGSTOP, a frozen container: it still counts as subscribed"""
    if not _busy(world, home) or not _fault(world):
        return False
    world.process(home, state="stopped")
    return True


def go_on(world: World, home: int) -> bool:
    """SIGCONT: it goes on with what it knew"""
    if world.processes[home].state != "stopped":
        return False
    world.process(home, state="up")
    return True


def die(world: World, home: int) -> bool:
    """kill -9: what it had sent may still arrive"""
    if not _busy(world, home) or not _fault(world):
        return False
    world.process(home, state="dead", subscribed="off", inbox=(), waiters=())
    return True


def cut(world: World, home: int) -> bool:
    """its subscription breaks, and Redis sees it first"""
    if not _busy(world, home) or world.processes[home].subscribed != "on" or not _fault(world):
        return False
    world.process(home, subscribed="cut")
    return True


def mute(world: World, home: int) -> bool:
    """its subscription breaks, and Redis does not see it: wakes are lost"""
    if not _busy(world, home) or world.processes[home].subscribed != "on" or not _fault(world):
        return False
    world.process(home, subscribed="mute", inbox=())
    return True


def _busy(world: World, home: int) -> bool:
    """A fault where nobody acts yet, or any more, makes no difference."""
    return world.processes[home].state == "up" and any(
        world.scene.homes[token] == home and client.at not in ("new", "gone")
        for token, client in enumerate(world.clients)
    )


def _fault(world: World) -> bool:
    if world.faults == 0:
        return False
    world.faults -= 1
    return True


# -- time ---------------------------------------------------------------------------------------------------------


def deadline(world: World, _: int) -> bool:
    """the local end of the lease passes, in the clock of whoever knows of it: never later than in Redis (R1)"""
    if not world.lock or not world.lock.fresh or _busy_hearing(world):
        return False
    fence = world.lock.fence
    world.lock = world.lock._replace(fresh=False)
    for token, client in enumerate(world.clients):
        if client.at == "holds" and client.fence == fence:
            world.client(token, at="lost", fence=0)
    known = fence if world.without("R1") else 0  # else it makes no difference any more
    world.change_grants(lambda grant: Grant(known, over=True) if grant.fence == fence else grant)
    return True


def _busy_hearing(world: World) -> bool:
    """A process that runs reads its messages long before a lease ends; one that is slower has stood still."""
    running = [process.state == "up" for process in world.processes]
    return any(process.inbox for process in world.processes if process.state == "up") or any(
        client.grant for token, client in enumerate(world.clients) if running[world.scene.homes[token]]
    )


def expire(world: World, _: int) -> bool:
    """the lease ends in Redis"""
    if not world.lock or world.lock.fresh:
        return False
    world.lock = ()
    return True


Action = Callable[[World, int], bool]

# what goes on by itself and at once
CLIENT_STEPS: list[Action] = [serve, read, wake]
PROCESS_STEPS: list[Action] = [hear, say_farewell, subscribe]
# what may happen or not
CLIENT_EVENTS: list[Action] = [begin, look, leave, leave_unheard, confirm, age]
PROCESS_EVENTS: list[Action] = [notice, stop, go_on, die, cut, mute]
TIME: list[Action] = [deadline, expire]
