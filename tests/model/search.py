"""Breadth-first search through all states, and the promises that are checked in each.

Two holders, fences and turns are checked where they occur, in ``processes.py`` and ``scripts.py``; here, that nobody is
forgotten: where only clocks can make anything happen, the next looks of all processes must set everything right.
"""

import gc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .failover import count_lost
from .processes import CLIENT_EVENTS, CLIENT_STEPS, FAULTS, NODES, PROCESS_EVENTS, PROCESS_STEPS, TIME, Action, look
from .scripts import counts
from .world import Scene, State, Violation, World

Origins = dict[State, tuple[State, Action, int] | None]  # how each state was reached first


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
    gc.disable()  # there are no cycles in millions of tuples; to look for them takes a fifth of the time
    try:
        return _search(scene)
    finally:
        gc.enable()


def _search(scene: Scene) -> Found:
    clients, processes = range(len(scene.homes)), range(max(scene.homes) + 1)
    actions: list[tuple[Action, int]] = [(action, place) for action in TIME for place in range(scene.limit)]
    actions += [(action, 0) for action in NODES]
    actions += [(action, one) for action in (*CLIENT_STEPS, *CLIENT_EVENTS) for one in clients]
    actions += [(action, one) for action in (*PROCESS_STEPS, *PROCESS_EVENTS) for one in processes]
    state = World(scene).freeze()
    origins: Origins = {state: None}
    named = {f"{action.__name__} {one}": (action, one) for action, one in actions}
    for step in filter(None, scene.story.split(", ")):
        action, one = named[step]
        after = _next(scene, state, action, one)
        assert after, f"the story cannot go on: {step}"
        origins[after] = state, action, one
        state = after
    if scene.only:
        actions = [(action, one) for action, one in actions if action not in FAULTS or action.__name__ == scene.only]
    frontier = [state]
    while frontier:
        reached = []
        for state in frontier:
            last: tuple[Action, int] | None = None
            try:
                check_nobody_is_forgotten(scene, state)
                world = World(scene, state)
                for last in actions:
                    action, one = last
                    if not action(world, one):
                        continue  # and has changed nothing
                    # before the work of freezing it: most of them are known as they are
                    if count_lost(world, state) and world.state() not in origins:
                        after = world.freeze()
                        if after not in origins:
                            origins[after] = state, action, one
                            reached.append(after)
                    world = World(scene, state)
            except Violation as violation:
                steps = trace(origins, state) if last is None else (*trace(origins, state), _words(*last))
                return Found(len(origins), str(violation), steps)
        frontier = reached
    return Found(len(origins))


def _next(scene: Scene, state: State, action: Action, one: int) -> State | None:
    world = World(scene, state)
    return world.freeze() if action(world, one) and count_lost(world, state) else None


def check_nobody_is_forgotten(scene: Scene, state: State) -> None:
    world = World(scene, state)
    if not _at(world, "waits") or not _quiet(world):
        return
    for lock in world.permits():
        # a lock that a failover has brought back ends by itself, as nobody renews it
        if not lock.restored and lock.attempt in _at(world, "gone"):
            raise Violation(f"orphan: {lock.attempt} has left, and holds the lock for nobody")
    oldest = [process.waiters[0] for process in world.processes if process.state == "up" and process.waiters]
    for attempt in oldest:
        look(world, attempt)
        _go_on_until_quiet(world)
    for attempt in _at(world, "waits"):
        id = scene.id(attempt)
        if id not in world.queue and not world.held_by(id):
            raise Violation(f"forgotten: {attempt} waits and is not queued, after the next look of its process")
        if not counts(world, scene.homes[attempt]):
            raise Violation(f"forgotten: {attempt} waits, and is taken for dead after the next look of its process")
    if _at(world, "waits") and world.free():
        raise Violation("forgotten: the lock is free, and the next looks of all processes have left it so")


def _at(world: World, *states: str) -> list[int]:
    return [one for one, client in enumerate(world.clients) if client.at in states and world.home(one).state == "up"]


def _quiet(world: World) -> bool:
    """Whether nothing is on its way to or from running processes, and all of them receive what Redis publishes."""
    up = [process for process in world.processes if process.state == "up"]
    told = [one for one in _at(world, "waits") if world.clients[one].grant or world.clients[one].look]
    promoting = bool(world.nodes.replica)
    return not (promoting or told or _at(world, "asks", "answered")) and all(
        process.subscribed == "on" and not process.inbox and not process.pending for process in up
    )


def _go_on_until_quiet(world: World) -> None:
    steps = [(step, one) for step in PROCESS_STEPS for one, home in enumerate(world.processes) if home.state == "up"]
    steps += [(step, one) for step in CLIENT_STEPS for one in _at(world, "asks", "answered", "waits")]
    while any(step(world, one) for step, one in steps):
        pass


def trace(origins: Mapping[Any, tuple[Any, Callable[..., bool], int] | None], state: Any) -> tuple[str, ...]:
    """The steps that led to this state."""
    steps = []
    while (origin := origins[state]) is not None:
        state, action, one = origin
        steps.append(_words(action, one))
    return tuple(reversed(steps))


def _words(action: Callable[..., bool], one: int) -> str:
    return f"{action.__name__} {one}: {(action.__doc__ or '').splitlines()[0]}"
