"""Each mode of ``manage.py lockbench`` once, with tiny settings: what it reports, and that our lock did not fail."""

import json
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import parse as parse_xml

import pytest
from django.core.management import CommandError, call_command

from bench.run import MODES
from shop.management.commands.lockbench import Command as Lockbench
from tests.helpers.jobs import require_package

pytestmark = pytest.mark.complete

BOTH = pytest.mark.parametrize("coroutines", [False, True], ids=["threads", "coroutines"])
CLUSTER = pytest.mark.parametrize("cluster", [False, True], ids=["server", "cluster"])


def lockbench(*args: str, **options: Any) -> str:
    out = StringIO()
    call_command(Lockbench(stdout=out), *args, **options)
    return out.getvalue()


def figures(*args: str, **options: Any) -> dict[str, Any]:
    """The contenders' figures; the frame around them is checked here."""
    result = json.loads(lockbench(*args, json=True, **options))
    assert set(result) == {"mode", "asyncio", "cluster", "options", "machine", "contenders", "notes"}
    assert {"CPUs", "Python", "redis", "hiredis", "server"} <= set(result["machine"])
    for contender in result["contenders"].values():
        assert {row.key for row in MODES[args[0]].rows} <= set(contender)
    return result["contenders"]  # type: ignore[no-any-return]


def with_sections(least: int, *args: str, **options: Any) -> dict[str, Any]:
    """The same, measured for a time in which each has so many sections, however busy the machine is."""
    seconds, found = 0.5, figures(*args, seconds=0.5, **options)
    while seconds < 8 and any(one["sections"] < least for one in found.values()):
        seconds *= 4
        found = figures(*args, seconds=seconds, **options)
    return found


@CLUSTER
@BOTH
def test_uncontended_pairs_take_two_round_trips(coroutines: bool, cluster: bool) -> None:
    masters = {"cluster": True, "masters": 2} if cluster else {}
    found = figures("uncontended", asyncio=coroutines, seconds=0.1, **masters)
    in_threads = {"python-redis-lock"} if not (coroutines or cluster) else set()
    drop_in = set() if coroutines else {"cache.lock"}
    assert set(found) == {"redis-py", "Lock"} | in_threads | drop_in | (set() if cluster else {"floor"})
    assert {key: contender["round_trips"] for key, contender in found.items()} == {
        key: 3 if key in in_threads else 2 for key in found
    }


@pytest.mark.parametrize(
    ("names", "cluster", "coroutines"), [(1, False, False), (6, False, True), (1, True, False), (6, True, True)]
)
def test_a_contended_lock_excludes_keeps_the_order_and_is_on_one_node(
    names: int, cluster: bool, coroutines: bool
) -> None:
    options = {"asyncio": coroutines, "cluster": cluster, "names": names, "procs": 3, "rounds": 1}
    found = with_sections(60, "contended", only="redis-py,Lock", **options)
    ours = found["Lock"]
    assert (ours["violations"], ours["inversions_in_server_order"], ours["troubles"]) == (0, 0, {})
    assert ours["numbered"] == ours["sections"] > 0
    assert (ours["busiest_percent"] < 90) is (cluster and names > 1)  # the six are not on one of the three


def test_charts_are_drawn_of_what_was_measured(tmp_path: Path) -> None:
    require_package("matplotlib")
    from bench.report import CHARTS

    found = figures("contended", procs=2, seconds=0.3, rounds=1, charts=tmp_path)
    texts = {path.name: " ".join(parse_xml(path).getroot().itertext()).split() for path in tmp_path.iterdir()}
    assert set(texts) == {f"{chart}-{theme}.svg" for chart in CHARTS for theme in ("light", "dark")}
    assert set(found) <= set(texts["throughput-light.svg"])


@CLUSTER
def test_many_locks_and_waiters_are_counted_and_listed(cluster: bool) -> None:
    [found] = figures("load", cluster=cluster, locks=2000, waiters=4000, names=20, seconds=0.1).values()
    assert found["listed"] == 2000
    # what a node keeps for all weighs on each, and so does what its clients free meanwhile
    assert 100 < found["lock_bytes"] < 5_000
    assert 0 < found["waiter_bytes"] < 10_000
    nodes = 3 if cluster else 1
    # those of threads; at each node one to listen and one to renew
    assert 1 <= found["quiet_connections"] <= found["busy_connections"] <= 16 + 2 * nodes


@BOTH
def test_idle_waiters_all_wait(coroutines: bool) -> None:
    waiters = 120 if coroutines else 3
    found = figures("idle", asyncio=coroutines, procs=1, waiters=waiters, seconds=0.2, only="redis-py,Lock")
    assert all((contender["waiting"], contender["troubles"]) == (waiters, {}) for contender in found.values())
    # one for each that waits would be more than a hundred
    assert all(0 < contender["connections"] < 60 for contender in found.values())


@BOTH
def test_drain_serves_all_in_order(coroutines: bool) -> None:
    waiters = 100 if coroutines else 20
    ours = figures("drain", asyncio=coroutines, waiters=waiters, rounds=1, only="redis-py,Lock")["Lock"]
    assert (ours["got"], ours["release_failed"], ours["violations"]) == (waiters, 0, 0)
    assert (ours["numbered"], ours["inversions_in_server_order"], ours["troubles"]) == (waiters, 0, {})


@BOTH
def test_a_dogpile_computes_its_value_once(coroutines: bool) -> None:
    waiters = 20 if coroutines else 5
    found = figures("dogpile", asyncio=coroutines, procs=2, waiters=waiters, hold_ms=20, rounds=1)
    for key in set(found) - {"get_or_set"}:
        assert (found[key]["asked"], found[key]["got"], found[key]["computed"]) == (2 * waiters, 2 * waiters, 1)


@BOTH
def test_members_of_a_pool_are_held_once(coroutines: bool) -> None:
    [pool] = with_sections(100, "pool", asyncio=coroutines, procs=3, members=20).values()
    assert (pool["violations"], pool["troubles"]) == (0, {})
    assert pool["round_trips"] < 2.2  # a renewal, or the last call's answer


@BOTH
def test_no_more_than_the_limit_hold_a_semaphore(coroutines: bool) -> None:
    # long enough for Python's own work to matter little: of one permit there are at most 25 turns
    only = "Lock,Semaphore 1,Semaphore 5,sorted sets 5"
    found = figures("semaphore", asyncio=coroutines, procs=3, hold_ms=60, seconds=1.5, rounds=1, only=only)
    assert set(found) == set(only.split(","))
    assert {(one["violations"], *one["troubles"]) for one in found.values()} == {(0,)}
    ours = [one for key, one in found.items() if key[:9] in ("Lock", "Semaphore")]
    assert {(one["inversions_in_server_order"], one["numbered"] == one["sections"]) for one in ours} == {(0, True)}
    # of three processes none waits for one of five permits
    assert found["Semaphore 5"]["sections"] > found["Semaphore 1"]["sections"]


def test_without_json_there_is_a_table_and_bad_arguments_are_named_with_the_choices() -> None:
    text = " ".join(lockbench("drain", asyncio=True, waiters=3, rounds=1, only="redis-py").split())
    assert "lockbench drain --asyncio (waiters 3, rounds 1)" in text
    assert "redis-py: on a BlockingConnectionPool" in text
    with pytest.raises(CommandError, match=r"'fast'.*uncontended.*contended.*idle.*drain"):
        lockbench("fast")
    with pytest.raises(CommandError, match="--waiters: must be a number from 1 to inf, not '0'"):
        lockbench("drain", "--waiters=0")
    with pytest.raises(CommandError, match=r"'fast'.* There are: redis-py, .*Lock"):
        lockbench("drain", only="fast")
    with pytest.raises(CommandError, match="unrecognized arguments: --waiters=2"):
        lockbench("contended", "--waiters=2")
