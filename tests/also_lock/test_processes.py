"""Eight processes, half of them with old code, and some of each are killed."""

from contextlib import closing
from pathlib import Path

import pytest
import redis

from redisserver import RedisServer
from tests.faults.moving import OLD, Move, read
from tests.helpers.actors import until

NAMES = ["seat:1", "seat:2"]


@pytest.mark.complete
def test_without_the_setting_they_are(server: RedisServer, client: redis.Redis, tmp_path: Path) -> None:
    """So whoever looks would see it."""
    with closing(Move("redis-py", server, tmp_path / "log", NAMES[:1])) as move:
        for ours in (True, False):
            move.add(ours=ours, on=False)
        move.ready()
        until(lambda: read(tmp_path / "log").overlaps)
        move.end()


@pytest.mark.complete
@pytest.mark.parametrize("kind", OLD)
def test_old_processes_and_new_ones_are_never_inside_together(
    kind: str, server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    with closing(Move(kind, server, tmp_path / "log", NAMES)) as move:
        for number in range(8):
            move.add(ours=number % 2 == 0)
        move.ready()
        for _ in range(4):
            wanted = move.sections() + 100
            until(lambda wanted=wanted: move.sections() >= wanted)
            move.kill()
        until(lambda: min(read(tmp_path / "log").sections[ours] for ours in (True, False)) > 20)
        left = move.end()
    told = read(tmp_path / "log")
    assert (told.overlaps, told.lost, left) == ([], 0, [])
