"""Breadth-first search through all states, and the promises that are checked in each.

Two holders, fences and turns are checked where they occur, in ``processes.py`` and ``scripts.py``. This module checks
that nobody is forgotten: in each state in which only clocks can make anything happen, the next look of each process,
and what follows from it, must bring every waiter of a live process back into the queue (or give it the lock), and must
not leave the lock free or with an attempt that has left; and the master must count the process, so that its waiters
stay.
"""

from __future__ import annotations

from typing import NamedTuple

from .failover import count_lost
from .processes import CLIENT_EVENTS, CLIENT_STEPS, FAULTS, NODES, PROCESS_EVENTS, PROCESS_STEPS, TIME, Action, look
from .scripts import counts
from .world import Scene, State, Violation, World


class Found(NamedTuple):
    """The result of a search: how many states there are, and the shortest path to a violation, if any."""

    states: int
    violation: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        steps = (f"{number:3} {step}" for number, step in enumerate(self.trace, 1))
        return "\n".join([f"{self.states} states", *steps, self.violation])


def search(scene: Scene) -> Found:
    """Visit all states of ``scene``; ends at the first violation."""
    clients, processes = range(len(scene.homes)), range(max(scene.homes) + 1)
    actions: list[tuple[Action, int]] = [(action, 0) for action in (*TIME, *NODES)]
    actions += [(action, one) for action in (*CLIENT_STEPS, *CLIENT_EVENTS) for one in clients]
    actions += [(action, one) for action in (*PROCESS_STEPS, *PROCESS_EVENTS) for one in processes]
    came_from: dict[State, tuple[State, Action, int] | None] = {}
    frontier = [_follow_story(scene, actions, came_from)]
    if scene.only:
        actions = [(action, one) for action, one in actions if action not in FAULTS or action.__name__ == scene.only]
    while frontier:
        reached = []
        for state in frontier:
            try:
                check_nobody_is_forgotten(scene, state)
            except Violation as violation:
                return Found(len(came_from), str(violation), _trace(came_from, state))
            world = World(scene, state)
            for action, one in actions:
                try:
                    if not action(world, one):
                        continue  # the action was not possible, and has changed nothing
                except Violation as violation:
                    trace = (*_trace(came_from, state), _words(action, one))
                    return Found(len(came_from), str(violation), trace)
                possible = count_lost(world, state)
                after = world.freeze()
                world = World(scene, state)
                if possible and after not in came_from:
                    came_from[after] = state, action, one
                    reached.append(after)
        frontier = reached
    return Found(len(came_from))


def _follow_story(
    scene: Scene, actions: list[tuple[Action, int]], came_from: dict[State, tuple[State, Action, int] | None]
) -> State:
    """The state in which the scene's story ends."""
    named = {f"{action.__name__} {one}": (action, one) for action, one in actions}
    state = World(scene).freeze()
    came_from[state] = None
    for step in filter(None, scene.story.split(", ")):
        world, (action, one) = World(scene, state), named[step]
        assert action(world, one), step
        assert count_lost(world, state)
        before, state = state, world.freeze()
        came_from[state] = before, action, one
    return state


def check_nobody_is_forgotten(scene: Scene, state: State) -> None:
    world = World(scene, state)
    if not _waiting(world) or not _quiet(world):
        return
    lock = world.lock
    # a lock that a failover has brought back ends by itself, as nobody renews it
    if (
        lock
        and not lock.restored
        and world.clients[lock.attempt].at == "gone"
        and world.home(lock.attempt).state == "up"
    ):
        raise Violation(f"orphan: {lock.attempt} has left, and holds the lock for nobody")
    oldest = [process.waiters[0] for process in world.processes if process.state == "up" and process.waiters]
    for attempt in oldest:
        look(world, attempt)
        _go_on_until_quiet(world)
    for attempt in _waiting(world):
        id = scene.id(attempt)
        if id not in world.queue and not (world.lock and world.lock.id == id):
            raise Violation(f"forgotten: {attempt} waits and is not queued, after the next look of its process")
        if not counts(world, scene.homes[attempt]):
            raise Violation(f"forgotten: {attempt} waits, and is taken for dead after the next look of its process")
    if _waiting(world) and not world.lock:
        raise Violation("forgotten: the lock is free, and the next looks of all processes have left it so")


def _waiting(world: World) -> list[int]:
    return [
        attempt
        for attempt, client in enumerate(world.clients)
        if client.at == "waits" and world.home(attempt).state == "up"
    ]


def _quiet(world: World) -> bool:
    """Whether nothing is on its way to or from running processes, and all of them receive what Redis publishes."""
    if world.nodes.replica:
        return False  # a promotion is under way
    for attempt, client in enumerate(world.clients):
        busy = client.at in ("asks", "answered") or client.grant or client.look
        if world.home(attempt).state == "up" and busy:
            return False
    return all(
        process.subscribed == "on" and not process.inbox and not process.pending
        for process in world.processes
        if process.state == "up"
    )


def _go_on_until_quiet(world: World) -> None:
    clients = [attempt for attempt in range(len(world.clients)) if world.home(attempt).state == "up"]
    processes = [number for number, process in enumerate(world.processes) if process.state == "up"]
    while any(step(world, one) for step in PROCESS_STEPS for one in processes) or any(
        step(world, one) for step in CLIENT_STEPS for one in clients
    ):
        pass


def _trace(came_from: dict[State, tuple[State, Action, int] | None], state: State) -> tuple[str, ...]:
    steps = []
    while (origin := came_from[state]) is not None:
        state, action, one = origin
        steps.append(_words(action, one))
    return tuple(reversed(steps))


def _words(action: Action, one: int) -> str:
    kind = "attempt" if action in (*CLIENT_STEPS, *CLIENT_EVENTS) else "process"
    who = "" if action in (*TIME, *NODES) else f"{kind} {one}"
    return f"{who:9} {action.__name__:13} {(action.__doc__ or '').splitlines()[0]}"
