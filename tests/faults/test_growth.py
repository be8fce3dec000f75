"""The checks of a soak distinguish growth from variation."""

from __future__ import annotations

import pytest

from redisserver import RedisServer

from .growth import BOUNDS, Watch, growth, watching
from .trial import Launcher, trial

MEMORY = ["own memory, MB", "resident memory, MB"]


@pytest.mark.complete
@pytest.mark.parametrize(("leak", "found"), [(0, []), (40_000, MEMORY)])
def test_workers_that_keep_an_object_of_each_section_are_found(
    leak: int, found: list[str], launcher: Launcher, bare_server: RedisServer
) -> None:
    with trial(launcher, bare_server, spared=[0], leak=leak) as run:
        with watching(run.look_at_spared, every=0.05) as clients, watching(run.look_at_server, every=0.05) as server:
            run.entered(1000)
        assert [one.what for one in clients.growth() + server.growth() if one.leaks] == found
        assert run.finish() == []


@pytest.mark.parametrize("what", BOUNDS)
def test_a_measure_that_grows_beyond_its_bound_is_a_leak(what: str) -> None:
    steps = range(10)
    assert not growth(what, [100 + BOUNDS[what] * step / 8 for step in steps]).leaks
    assert growth(what, [100 + (BOUNDS[what] + 1) * step / 6 for step in steps]).leaks


def test_growth_at_the_start_only_is_no_leak() -> None:
    assert not growth("threads", [1, 10, *[20] * 8]).leaks


def test_variation_is_no_leak() -> None:
    assert not growth("threads", [9, 9, 9, 9, 9, 9, 99, 99, 99, 99, 9, 9, 99, 9, 9]).leaks


def test_one_leaking_process_among_many_is_found() -> None:
    watch = Watch()
    for number in range(10):
        for who, threads in (("p1", 5), ("p2", 5 + number), ("p3", 20 - number)):
            watch.note(who, {"threads": threads})
    assert watch.growth() == [("threads", 7.5, 13.5)]
