"""``locked``: one call of a function or coroutine function at a time."""

import functools
import runpy
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockError, LockLost, LockNotAcquired, locked, locked_atomic
from tests.helpers.actors import GENEROUS, Crowd, never
from tests.helpers.servers import Twins, lock_names
from tests.helpers.state import LOCK, NAME, TOKEN, value


@pytest.mark.parametrize("decorator", [locked, locked()])
def test_without_a_name_a_function_is_locked_by_its_place(decorator: Any, crowd: Crowd, client: redis.Redis) -> None:
    def here(number: int) -> tuple[int, list[str]]:
        return number, lock_names(client)

    name = f"{__name__}.test_without_a_name_a_function_is_locked_by_its_place.locals.here"
    assert crowd()(Twins(decorator, here), "call", 7) == (7, [name])


@pytest.mark.parametrize("alter_sys", [True, False])  # the latter: as a profiler runs it
@pytest.mark.parametrize("run_name", ["__main__", "__mp_main__"])  # the latter: a child of multiprocessing
def test_a_module_that_is_run_names_its_function_like_one_that_is_imported(
    run_name: str, alter_sys: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: redis.Redis
) -> None:
    code = "@locked\ndef main():\n    return list_locks()[0].name\n\nname = main()\n"
    (tmp_path / "nightly.py").write_text(f"from django_redislock import list_locks, locked\n\n{code}")
    monkeypatch.syspath_prepend(tmp_path)
    assert runpy.run_module("nightly", run_name=run_name, alter_sys=alter_sys)["name"] == "nightly.main"
    assert runpy.run_module("nightly")["name"] == "nightly.main"
    with pytest.raises(TypeError, match=rf"whose module is a script: all are called {run_name}\. Write locked"):
        runpy.run_path(str(tmp_path / "nightly.py"), run_name=run_name)


GIVEN = r'^locked was given <function .*: write @locked\("order:{pk}"\)'
unchecked: Any = locked  # by mypy


@pytest.mark.parametrize(
    ("error", "message", "wrong"),
    [
        (TypeError, "make a name of functools.partial.*, which has none", lambda: locked()(functools.partial(never))),
        (TypeError, GIVEN, lambda: unchecked(never, token="t" * 22)),
        (TypeError, GIVEN, lambda: unchecked(never, at_least=5)),
        (TypeError, r"^locked takes one name, not both 'x' and name='y'\.$", lambda: locked("x", name="y")),
        (ValueError, r"^at_least must be 0 or more seconds and finite, not -1\.$", lambda: locked("x", at_least=-1)),
        (TypeError, r"<lambda>\(\) missing a required argument: 'x'$", locked("report:{x}")(lambda x: never())),
    ],
)
def test_wrong_arguments_are_errors(error: Any, message: str, wrong: Any, client: redis.Redis) -> None:
    with pytest.raises(error, match=message):
        wrong()
    assert lock_names(client) == []


@pytest.mark.parametrize("bears_token", [False, True])
def test_a_function_whose_lock_is_busy_is_not_called(bears_token: bool, me: Any, you: Any) -> None:
    """Nor is one that bears the same token: two such calls run one after the other."""
    assert you(Lock(NAME, token=TOKEN), "acquire")
    token = "{token}" if bears_token else None
    twins = Twins(locked(NAME, blocking_timeout=0, token=token), lambda token: never())
    with pytest.raises(LockNotAcquired, match=r"^Could not acquire the lock 'order:42' at once: held by ") as caught:
        me(twins, "call", TOKEN)
    assert caught.value.name == NAME


def test_a_call_adopts_what_its_token_has_detached(crowd: Crowd, client: redis.Redis) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME)
    assert me(lock, "acquire")
    fence, token = me.read(lambda: lock.fence), me(lock, "detach")
    assert you(Twins(locked(NAME, token="{token}"), lambda token: value(client)[3]), "call", token) == str(fence)


def test_a_method_runs_under_the_lock_of_its_object_as_its_options_say(crowd: Crowd, client: redis.Redis) -> None:
    lock = locked("order:{self.pk}", ttl=500, note="the books", purpose="nightly run")
    methods = Twins(lock, lambda self: (client.pttl(LOCK), client.get(LOCK)))
    kind = type("Report", (), {"pk": 42, "call": methods.call, "acall": methods.acall})
    left, text = crowd()(kind(), "call")
    assert 300_000 < left <= 500_000
    assert text.endswith(b" nightly run\nthe books")


@pytest.mark.parametrize("decorator", [locked, locked("x"), locked_atomic("x")], ids=["bare", "named", "atomic"])
def test_a_task_is_refused_since_workers_would_call_it_unlocked(decorator: Any) -> None:
    def export() -> None: ...

    # an object, or the function itself (RQ), that can be called and queued; Django's cannot be called
    for task in (functools.partial(export), export, SimpleNamespace()):
        vars(task)["delay"] = print
        with pytest.raises(TypeError, match=r"^(locked\w*) cannot decorate the task .* Put @\1 below the task's d"):
            decorator(task)


class Recursive:
    def __init__(self, **options: Any) -> None:
        @locked(NAME, **options)
        def call(again: int) -> bool:
            return call(again - 1) if again else Lock(NAME).locked()

        @locked(NAME, **options)
        async def acall(again: int) -> bool:
            return await acall(again - 1) if again else await Lock(NAME).alocked()

        self.call, self.acall = call, acall


def test_a_function_may_call_itself_if_it_is_reentrant_and_is_told_so_if_not(me: Any, client: redis.Redis) -> None:
    assert me(Recursive(reentrant=True), "call", 3) is True
    with pytest.raises(LockError, match=r"^Cannot wait for the lock 'order:42': .* would wait for itself without end"):
        me(Recursive(), "call", 1)
    with pytest.raises(LockNotAcquired, match=r": this thread or task holds it already\. Pass reentr") as caught:
        me(Recursive(blocking=False), "call", 1)
    assert caught.value.outcome == "own"
    assert lock_names(client) == []


def test_the_lock_stays_for_what_is_left_whatever_its_ttl(me: Any, you: Any) -> None:
    twins = Twins(locked(NAME, at_least=500, ttl=5, blocking_timeout=0), lambda: "done")
    assert me(twins, "call") == "done"
    info: Any = Lock(NAME).info()
    assert 400 < info.lease_left <= 500
    for person in (me, you):
        with pytest.raises(LockNotAcquired) as caught:
            person(twins, "call")
        assert 400 < (caught.value.busy_for or 0) <= 500


def test_inside_another_section_the_outer_one_decides(crowd: Crowd, client: redis.Redis) -> None:
    me, outer = crowd(), Lock(NAME, reentrant=True)
    me(outer, "acquire")
    me(Twins(locked(NAME, at_least=500, reentrant=True), lambda: None), "call")
    assert me(outer, "owned")
    me(outer, "release")
    assert lock_names(client) == []


def test_a_call_that_fails_releases_at_once_and_one_that_has_lost_its_lock_is_told(client: redis.Redis) -> None:
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error):
            locked(NAME, at_least=500)(lambda error: (_ for _ in ()).throw(error).__next__())(error)
        assert lock_names(client) == []
    with pytest.raises(LockLost):
        locked(NAME, at_least=500)(lambda: client.flushall())()
    told = threading.Event()
    with pytest.raises(LockLost):  # and may hear of it meanwhile
        locked(NAME, ttl=1, on_lost=lambda error: told.set())(lambda: client.flushall() and told.wait(GENEROUS))()
    assert told.is_set()
