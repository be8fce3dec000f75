"""Each mode of ``manage.py lockbench`` once, with tiny settings: what it reports, and that our lock did not fail."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import parse as parse_xml

import pytest
from django.core.management import CommandError, call_command

from bench.awake import cpus_awake
from bench.figures import (
    Section,
    by_name,
    handovers,
    jain,
    kept,
    order,
    overtaken,
    overtaking,
    percentile,
    violations,
)
from bench.run import MODES
from bench.serverstats import Command, Statistics
from shop.management.commands.lockbench import Command as Lockbench
from tests.helpers.requirements import MissingError, require, wheel_folder

pytestmark = pytest.mark.complete

Eventually = Callable[..., Any]


def lockbench(*args: str, **options: Any) -> str:
    out = StringIO()
    call_command(Lockbench(stdout=out), *args, **options)
    return out.getvalue()


def figures(*args: str, **options: Any) -> dict[str, Any]:
    """The contenders' figures; the frame around them is checked here."""
    result = json.loads(lockbench(*args, json=True, **options))
    assert set(result) == {"mode", "asyncio", "cluster", "options", "machine", "contenders", "notes"}
    assert (result["mode"], result["asyncio"]) == (args[0], options.get("asyncio", False))
    masters = {"masters"} if options.get("cluster") else set()
    assert set(result["options"]) == set(MODES[args[0]].options) | masters
    assert {"CPUs", "Python", "redis", "hiredis", "server"} <= set(result["machine"])
    for contender in result["contenders"].values():
        assert {row.key for row in MODES[args[0]].rows} <= set(contender)
    return result["contenders"]  # type: ignore[no-any-return]


def find_matplotlib() -> None:
    if wheel_folder("matplotlib") is None:
        raise MissingError("matplotlib", 'python -m pip install -e ".[charts]"')


BOTH = pytest.mark.parametrize("coroutines", [False, True], ids=["threads", "coroutines"])


CLUSTER = pytest.mark.parametrize("cluster", [False, True], ids=["server", "cluster"])


@CLUSTER
@BOTH
def test_uncontended_pairs_take_two_round_trips(coroutines: bool, cluster: bool) -> None:
    masters = {"cluster": True, "masters": 2} if cluster else {}
    found = figures("uncontended", asyncio=coroutines, seconds=0.1, **masters)
    in_threads = {"python-redis-lock"} if not (coroutines or cluster) else set()
    assert set(found) == {"redis-py", "Lock"} | in_threads | (set() if cluster else {"floor"})
    assert {key: contender["round_trips"] for key, contender in found.items()} == {
        key: 3 if key in in_threads else 2 for key in found
    }
    assert found["redis-py"]["x_redis_py"] == 1 or cluster
    assert all(contender["server_us"] > 0 for contender in found.values())


def test_cpus_are_kept_awake_at_the_lowest_priority_and_may_sleep_afterwards(eventually: Eventually) -> None:
    before = set(multiprocessing.active_children())
    with cpus_awake():
        spinners = [child.pid for child in set(multiprocessing.active_children()) - before]
        assert len(spinners) == os.cpu_count()
        eventually(lambda: {os.sched_getscheduler(pid or 0) for pid in spinners} == {os.SCHED_IDLE})
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize(
    ("mode", "options", "awake"),
    [("uncontended", {}, True), ("uncontended", {"let_cpus_sleep": True}, False), ("drain", {"waiters": 2}, False)],
)
def test_the_description_says_whether_the_cpus_were_kept_awake(mode: str, options: dict[str, Any], awake: bool) -> None:
    result = json.loads(lockbench(mode, json=True, seconds=0.1, only="Lock", **options))
    assert result["machine"]["CPUs"].endswith(", kept awake") is awake


@BOTH
@CLUSTER
def test_a_contended_lock_excludes_keeps_the_order_and_is_on_one_node(cluster: bool, coroutines: bool) -> None:
    masters = {"cluster": True, "masters": 2} if cluster else {}
    found = figures("contended", asyncio=coroutines, procs=3, seconds=1, rounds=1, **masters)
    ours = found["Lock"]
    assert (ours["violations"], ours["inversions_in_server_order"], ours["troubles"]) == (0, 0, {})
    assert ours["numbered"] == ours["sections"] == sum(ours["sections_per_process"]) > 0
    assert 1.8 < ours["round_trips"] < 2.4  # those that wait in the end, or a look
    assert ours["busiest_percent"] == pytest.approx(100, abs=1)
    assert cluster or found["floor"]["inversions_in_server_order"] is None


@CLUSTER
def test_each_of_several_names_excludes_and_keeps_the_order(cluster: bool) -> None:
    found = figures("contended", cluster=cluster, procs=4, names=6, seconds=0.5, rounds=1)
    assert all(contender["violations"] == 0 for contender in found.values())
    ours = found["Lock"]
    assert (ours["inversions_in_server_order"], ours["troubles"]) == (0, {})
    assert ours["numbered"] == ours["sections"] > 0
    assert (ours["busiest_percent"] < 90) is cluster  # the six are not on one of the three


def test_charts_are_drawn_of_what_was_measured(tmp_path: Path) -> None:
    require(find_matplotlib)
    from bench.charts import CHARTS

    found = figures("contended", procs=2, seconds=0.3, rounds=1, charts=tmp_path)
    texts = {path.name: " ".join(parse_xml(path).getroot().itertext()).split() for path in tmp_path.iterdir()}
    themes = ("light", "dark")
    assert set(texts) == {f"{chart.file}-{theme}.svg" for chart in CHARTS for theme in themes}
    for theme in themes:
        words = texts[f"throughput-{theme}.svg"]
        assert set(found) <= set(words)
        figure = found["Lock"]["sections_per_second"]  # with a decimal where a busy machine makes it small
        assert {f"{figure:,.0f}", f"{figure:.1f}"} & set(words)


def test_what_cannot_be_drawn_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandError, match="--charts is for contended, not for drain"):
        lockbench("drain", charts=tmp_path)
    with pytest.raises(CommandError, match="no-folder' is not a folder"):
        lockbench("contended", charts=tmp_path / "no-folder")
    monkeypatch.setitem(sys.modules, "bench.charts", None)
    with pytest.raises(CommandError, match=r'--charts needs matplotlib: .*\[charts\]"'):
        lockbench("contended", charts=tmp_path)


@CLUSTER
def test_many_locks_and_waiters_are_counted_and_listed(cluster: bool) -> None:
    [found] = figures("load", cluster=cluster, locks=2000, waiters=4000, names=20, seconds=0.1).values()
    assert found["listed"] == 2000
    # what a node keeps for all weighs on each, and so does what its clients free meanwhile
    assert 100 < found["lock_bytes"] < 5_000
    assert 0 < found["waiter_bytes"] < 10_000
    assert all(found[f"{what}_us"] > 0 for what in ("queue", "look", "renew", "handover", "leave"))
    nodes = 3 if cluster else 1
    # those of threads; at each node one to listen and one to renew
    assert 1 <= found["quiet_connections"] <= found["busy_connections"] <= 16 + 2 * nodes


OTHER = """
from django.core.cache import cache

class Lock:
    fence = token = None

    def __init__(self, name, *, ttl):
        self.lock = cache.lock(name, timeout=ttl, sleep=0.001)

    def acquire(self):
        return self.lock.acquire()

    async def aacquire(self):
        return self.lock.acquire()

    def release(self):
        self.lock.release()

    async def arelease(self):
        self.lock.release()

class FairLock(Lock):
    def release(self):
        raise RuntimeError("the fair one")
"""


@BOTH
def test_the_lock_of_another_checkout_stands_beside_ours(tmp_path: Path, coroutines: bool) -> None:
    """A package of the same name, with other insides."""
    (tmp_path / "django_redislock").mkdir()
    (tmp_path / "django_redislock" / "__init__.py").write_text(OTHER)
    options: dict[str, Any] = {"asyncio": coroutines, "procs": 2, "seconds": 0.3, "rounds": 1, "only": "Lock"}
    found = figures("contended", **options, other=tmp_path)
    assert list(found) == ["Lock", "other Lock"]
    assert all((contender["violations"], contender["troubles"]) == (0, {}) for contender in found.values())
    assert found["Lock"]["numbered"] == found["Lock"]["sections"]
    assert (found["other Lock"]["numbered"], found["other Lock"]["inversions_in_server_order"]) == (0, None)
    assert found["other Lock"]["sections"] > 0
    with pytest.raises(CommandError, match="RuntimeError: the fair one"):
        lockbench("contended", procs=1, seconds=0.1, rounds=1, only="Lock", other=tmp_path, other_fair=True)


@BOTH
def test_idle_waiters_all_wait(coroutines: bool) -> None:
    waiters = 120 if coroutines else 3
    found = figures("idle", asyncio=coroutines, procs=1, waiters=waiters, seconds=0.2, only="redis-py,Lock")
    assert list(found) == ["redis-py", "Lock"]
    assert all((contender["waiting"], contender["troubles"]) == (waiters, {}) for contender in found.values())
    # one for each that waits would be more than a hundred
    assert all(0 < contender["connections"] < 60 for contender in found.values())


@BOTH
def test_drain_serves_all_in_order(coroutines: bool) -> None:
    waiters = 100 if coroutines else 20
    found = figures("drain", asyncio=coroutines, waiters=waiters, seconds=0.1, rounds=1)
    assert set(found) == {"redis-py", "Lock"} | (set() if coroutines else {"python-redis-lock"})
    ours = found["Lock"]
    assert (ours["got"], ours["release_failed"], ours["violations"]) == (waiters, 0, 0)
    assert (ours["numbered"], ours["inversions_in_server_order"], ours["troubles"]) == (waiters, 0, {})


@BOTH
def test_a_dogpile_computes_its_value_once(coroutines: bool) -> None:
    waiters = 20 if coroutines else 5
    found = figures("dogpile", asyncio=coroutines, procs=2, waiters=waiters, hold_ms=20, rounds=1)
    assert set(found) == {"get_or_set", "locked_get_or_set"} | (set() if coroutines else {"python-redis-lock"})
    for key in set(found) - {"get_or_set"}:
        assert (found[key]["asked"], found[key]["got"], found[key]["computed"]) == (2 * waiters, 2 * waiters, 1)
    assert all(contender["commands"]["get"] > 0 and contender["round_trips"] > 1 for contender in found.values())


@BOTH
def test_members_of_a_pool_are_held_once_and_used_evenly(coroutines: bool) -> None:
    [pool] = figures("pool", asyncio=coroutines, procs=3, members=20, seconds=0.5).values()
    assert (pool["held_twice"], pool["troubles"]) == (0, {})
    assert pool["round_trips"] < 2.2  # a renewal, or the last call's answer
    # a process that the machine lets stand still keeps its member from being used
    assert 0 < pool["uses_min"] <= pool["uses_max"] <= pool["uses_median"] * 1.2 + 2
    assert pool["check_outs"] > 20


def test_without_json_there_is_a_table_with_what_is_unusual_about_a_contender() -> None:
    text = " ".join(lockbench("drain", asyncio=True, waiters=3, seconds=0.1, rounds=1, only="redis-py").split())
    assert "lockbench drain --asyncio (waiters 3, seconds 0.1, rounds 1)" in text
    assert "redis-py: on a BlockingConnectionPool" in text
    assert "CPUs" in text


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (["fast"], {}, "'fast'.*uncontended.*contended.*idle.*drain"),
        (["idle"], {"procs": 0}, "--procs must be from 1 to 256, not 0"),
        (["uncontended"], {"waiters": 5}, "--waiters 5 means nothing to 'uncontended'. It has: --seconds"),
        (["drain"], {"waiters": 5001}, "--waiters must be from 1 to 5000, not 5001"),
        (["drain"], {"only": "Lock,floor"}, "no contender 'floor' for 'drain'. There are: redis-py"),
        (["drain"], {"asyncio": True, "waiters": 50_001}, "--waiters must be from 1 to 50000, not 50001"),
        (["idle"], {"other": Path("/")}, "--other means nothing to 'idle'"),
        (["contended"], {"other": Path("/"), "cluster": True}, "--other means nothing to a cluster"),
        (["drain"], {"cluster": True}, "--cluster means nothing to 'drain'"),
        (["contended"], {"masters": 2}, "--masters 2 means nothing to 'contended'"),
        (["contended"], {"masters": 0, "cluster": True}, "--masters must be from 1 to 16, not 0"),
        (["contended"], {"only": "floor", "cluster": True}, "no contender 'floor' for 'contended --cluster'"),
        (["load"], {"asyncio": True}, "There is nothing to measure for 'load --asyncio'"),
        (["contended"], {"other": Path("/no")}, "--other must be a folder with a django_redislock in it, not /no"),
        (["contended"], {"other_fair": True}, "--other must be a folder with a django_redislock in it, not None"),
        (
            ["uncontended"],
            {"asyncio": True, "only": "python-redis-lock"},
            "no contender 'python-redis-lock' for 'uncontended --asyncio'. There are: floor, redis-py, Lock\\.$",
        ),
    ],
)
def test_bad_arguments_are_named_with_the_choices(args: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        lockbench(*args, **options)


def test_overtaken_and_overtaking_count_sections_not_pairs() -> None:
    assert (overtaken([1, 2, 3]), overtaking([1, 2, 3])) == (0, 0)
    assert (overtaken([2, 3, 1]), overtaking([2, 3, 1])) == (1, 2)
    assert (overtaken([2, 3, 1], tolerance=1), overtaking([2, 3, 1], tolerance=1)) == (1, 1)


def test_sections_that_overlap_are_violations() -> None:
    apart = [Section(0, 0, 1, 2, False), Section(1, 0, 3, 4, False)]
    assert violations(apart) == 0
    assert violations([*apart, Section(0, 0, 3.5, 5, False)]) == 1
    assert violations([*apart, Section(0, 0, 5, 6, True)]) == 1


def test_a_handover_goes_to_another_one_who_waited() -> None:
    sections = [Section(0, 0, 1, 2, False), Section(1, 0, 2.5, 3, False), Section(1, 3.5, 4, 5, False)]
    assert handovers(sections) == [0.5]
    assert kept(sections) == 0.5
    assert jain([4, 0]) == 0.5
    assert percentile(range(101), 99) == 99


def test_each_lock_has_an_order_of_its_own() -> None:
    sections = [Section(0, 0, 1, 5, False, 7, 8), Section(1, 0, 2, 3, False, 5, 9, name=1)]
    assert [violations(one) for one in by_name(sections)] == [0, 0]
    assert order(sections, 0)["inversions_in_server_order"] == 0
    together = [section._replace(name=0) for section in sections]
    assert [violations(one) for one in by_name(together)] == [1]
    assert order(together, 0)["inversions_in_server_order"] == 1


def test_a_command_counts_where_it_ran() -> None:
    from bench.contenders import OurLock

    nodes = tuple(Statistics(0, {"evalsha": Command(1, us)}) for us in (30, 10))
    both = Statistics(0, {"evalsha": Command(2, 40)}, nodes=nodes)
    assert (both.server_us(OurLock), both.busiest(OurLock), nodes[1].busiest(OurLock)) == (40, 30, 10)


def test_commands_inside_scripts_are_not_counted_twice() -> None:
    from bench.contenders import PythonRedisLock

    commands = {"evalsha": Command(10, 100), "get": Command(20, 40), "set": Command(10, 50), "del": Command(10, 9)}
    assert Statistics(0, commands).server_us(PythonRedisLock) == 100 + 20 + 50
