"""Sets of locks, as in ``engine/several.py``: a model of its own, in which a lock is one step that cannot fail.

A process acquires the locks of one set, in the order of their names: one after the other, or (``+``) the first time all
in one step, as in one round trip. It holds those that it has while it waits for the next. What it got behind a busy one
it gives back in a step of its own, so that others meet it meanwhile. It may give up while it waits, and die anywhere;
then its locks end one by one. What is checked in each state:

* circle: nobody waits for somebody who waits for him;
* all or none: whoever is inside holds all, and whoever has left holds none, and queues nowhere;
* stuck: as long as somebody is there, something can happen, and no patience has to end for that.

What can be left out: ``order``: sets are acquired as they were written. ``behind``: what was got behind a busy one is
kept. ``back``: whoever gives up keeps what he has. ``handed``: nor does he pass on what he was handed in this moment.
"""

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .search import Found, trace
from .world import Violation


class Scene(NamedTuple):
    sets: tuple[str, ...]  # the set of each process, a letter for each name; with "+", it asks for all at once
    deaths: int = 0
    without: str = ""  # the rule that is left out

    def names(self, one: int) -> str:
        """The names, in the order in which this process acquires them."""
        written = self.sets[one].rstrip("+")
        return written if self.without == "order" else "".join(sorted(written))


def read_scene(words: list[str]) -> Scene:
    """``ab ba+ 1 order``: the sets, how many may die, and the rule that is left out."""
    at = next(number for number, word in enumerate(words) if word.isdigit())
    return Scene(tuple(words[:at]), int(words[at]), *words[at + 1 :])


class Process(NamedTuple):
    # new; asks; waits (in one queue); inside; leaves (gives back what it has); gone; dead
    at: str = "new"
    got: int = 0  # how many of its names it knows to hold, from the first one on
    behind: str = ""  # what it got beside them, and is to give back


# processes; the holder of each name, if any; the queue of each name; how many may still die
Holders = tuple[tuple[str, int], ...]
Queues = tuple[tuple[str, tuple[int, ...]], ...]
State = tuple[tuple[Process, ...], Holders, Queues, int]


class World:
    def __init__(self, scene: Scene, state: State | None = None) -> None:
        self.scene = scene
        processes, holders, queues, self.deaths = state or ((Process(),) * len(scene.sets), (), (), scene.deaths)
        self.processes, self.holders, self.queues = list(processes), dict(holders), dict(queues)

    def state(self) -> State:
        holders, queues = tuple(sorted(self.holders.items())), tuple(sorted(self.queues.items()))
        return tuple(self.processes), holders, queues, self.deaths

    def change(self, one: int, **changes: object) -> bool:  # True, as actions
        self.processes[one] = self.processes[one]._replace(**changes)  # type: ignore[arg-type]
        return True

    def wanted(self, one: int) -> str:
        """The next name that it needs."""
        return self.scene.names(one)[self.processes[one].got]

    def take(self, one: int, name: str) -> bool:
        """acquire.lua, for one that does not wait"""
        free = name not in self.holders
        if free:
            self.holders[name] = one
        return free

    def queue(self, one: int, name: str) -> None:
        self.queues[name] = (*self.queues.get(name, ()), one)

    def release(self, one: int, name: str) -> None:
        """release.lua: whoever waits and lives is handed it; and what this one still wants is withdrawn"""
        self.queues[name] = tuple(other for other in self.queues.pop(name, ()) if other != one)
        if self.holders.get(name) == one:
            del self.holders[name]
            alive = [other for other in self.queues[name] if self.processes[other].at != "dead"]
            if alive:
                self.holders[name] = alive[0]
            self.queues[name] = tuple(alive[1:])
        if not self.queues[name]:
            del self.queues[name]

    def goes_on(self, one: int, got: int) -> bool:
        return self.change(one, got=got, at="inside" if got == len(self.scene.names(one)) else "asks")


def begin(world: World, one: int) -> bool:
    """acquire() is called; all locks may be asked for in one step: Several._try_together()"""
    if world.processes[one].at != "new":
        return False
    names = world.scene.names(one)
    if "+" not in world.scene.sets[one]:
        return world.change(one, at="asks")
    free = [world.take(one, name) for name in names]
    got = [*free, False].index(False)
    behind = "".join(name for name, taken in zip(names[got:], free[got:], strict=True) if taken)
    world.goes_on(one, got)
    if not got:
        world.queue(one, names[0])  # the first request queues at once, if it has to
        world.change(one, at="waits")
    return world.change(one, behind="" if world.scene.without == "behind" else behind)


def give_back_behind(world: World, one: int) -> bool:
    """what was got behind a busy one is given back, before anything else"""
    behind = world.processes[one].behind
    for name in behind:
        world.release(one, name)
    return bool(behind) and world.change(one, behind="")


def ask(world: World, one: int) -> bool:
    """the next lock is asked for, and got or queued for"""
    process = world.processes[one]
    if process.at != "asks" or process.behind:
        return False
    name = world.wanted(one)
    if world.holders.get(name) == one or world.take(one, name):  # kept from before: only without "behind"
        return world.goes_on(one, process.got + 1)
    world.queue(one, name)
    return world.change(one, at="waits")


def hear(world: World, one: int) -> bool:
    """it learns that it was handed the lock for which it waits"""
    process = world.processes[one]
    heard = process.at == "waits" and not process.behind and world.holders.get(world.wanted(one)) == one
    return heard and world.goes_on(one, process.got + 1)


def give_up(world: World, one: int) -> bool:
    """its patience ends: it withdraws, with the lock that it may have been handed in this moment"""
    process, rule = world.processes[one], world.scene.without
    if process.at != "waits" or process.behind:
        return False
    if rule != "handed" or world.holders.get(world.wanted(one)) != one:
        world.release(one, world.wanted(one))
    return world.change(one, at="gone" if rule == "back" else "leaves")


def leave(world: World, one: int) -> bool:
    """it gives back what it has: all in one step, or the last one first"""
    process = world.processes[one]
    if process.at not in ("inside", "leaves"):
        return False
    left = 0 if "+" in world.scene.sets[one] else max(0, process.got - 1)
    for name in world.scene.names(one)[left : process.got]:
        world.release(one, name)
    return world.change(one, got=left, at="leaves" if left else "gone")


def die(world: World, one: int) -> bool:
    """kill -9"""
    if not world.deaths or world.processes[one].at in ("new", "gone", "dead"):
        return False
    world.deaths -= 1
    return world.change(one, at="dead", got=0, behind="")


def expire_first(world: World, one: int) -> bool:
    """the first lease of a dead process ends"""
    return _expire(world, one, 0)


def expire_last(world: World, one: int) -> bool:
    """the last lease of a dead process ends"""
    return _expire(world, one, -1)


def _expire(world: World, one: int, place: int) -> bool:
    held = sorted(name for name, holder in world.holders.items() if holder == one)
    if not held or world.processes[one].at != "dead":
        return False
    world.release(one, held[place])
    return True


Action = Callable[[World, int], bool]
STEPS: list[Action] = [begin, give_back_behind, ask, hear, leave, expire_first, expire_last]
EVENTS: list[Action] = [give_up, die]  # may happen or not


def search(scene: Scene) -> Found:
    """Visit all states of ``scene``, the nearest ones first; ends at the first violation."""
    state = World(scene).state()
    origins: dict[State, tuple[State, Action, int] | None] = {state: None}
    frontier = [state]
    while frontier:
        reached: list[State] = []
        for state in frontier:
            try:
                steps = list(_following(scene, state, STEPS))
                check(World(scene, state), stuck=not steps)
            except Violation as violation:
                return Found(len(origins), str(violation), trace(origins, state))
            for after, action, one in (*steps, *_following(scene, state, EVENTS)):
                if after not in origins:
                    origins[after] = state, action, one
                    reached.append(after)
        frontier = reached
    return Found(len(origins))


def _following(scene: Scene, state: State, actions: list[Action]) -> Iterator[tuple[State, Action, int]]:
    for action in actions:
        for one in range(len(scene.sets)):
            world = World(scene, state)
            if action(world, one):
                yield world.state(), action, one


def check(world: World, *, stuck: bool) -> None:
    """``stuck``: nothing happens here unless somebody gives up, or dies."""
    waits_for: dict[int, int] = {}
    for one, process in enumerate(world.processes):
        held = {name for name, holder in world.holders.items() if holder == one}
        if process.at == "inside" and held != {*world.scene.names(one)}:
            raise Violation(f"all or none: {one} is inside, and holds {sorted(held)}")
        if process.at == "gone" and (held or any(one in queue for queue in world.queues.values())):
            raise Violation(f"all or none: {one} has left, and holds {sorted(held)}, or queues")
        if process.at == "waits":
            holder = world.holders[world.wanted(one)]
            if holder != one and world.wanted(one) not in world.processes[holder].behind:  # which it gives back
                waits_for[one] = holder
    for one in waits_for:
        other, seen = waits_for[one], {one}
        while other in waits_for and other not in seen:
            seen.add(other)
            other = waits_for[other]
        if other == one:
            raise Violation(f"circle: {one} waits for {waits_for[one]}, and in the end for itself")
    if stuck and any(process.at not in ("gone", "dead") for process in world.processes):
        raise Violation("stuck: somebody is there, and nothing can happen")


if __name__ == "__main__":
    print(search(read_scene(sys.argv[1:])))
