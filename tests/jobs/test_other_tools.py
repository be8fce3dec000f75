"""What other tools see of a decorated function is what they see of the function itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import asgiref.sync
import pytest
import redis
from celery import Celery  # type: ignore[import-untyped]
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator

from django_redislock import locked, locked_atomic, locked_view
from tests.helpers.docs import blocks
from tests.helpers.docs import page as docs_page
from tests.helpers.processes import Worker
from tests.helpers.servers import lock_names


def report(request: HttpRequest, year: int, /, *rest: str, kind: str = "a", **more: int) -> HttpResponse:
    """Report a year."""
    return HttpResponse(f"{year} {kind}")


async def areport(request: HttpRequest, year: int = 7, *, kind: str) -> HttpResponse:
    """Report a year."""
    return HttpResponse(f"{year} {kind}")


def celerys_check(function: Any) -> Any:
    """The arguments that ``.delay()`` refuses."""
    task = Celery("site", broker="memory://", set_as_current=False).task(function, name="report")
    refused = []
    for args in ((), (1,), (1, 2), (1, 2, 3, 4)):
        try:
            task.delay(*args)
        except TypeError as error:
            refused.append(str(error))
    return refused


def shown(signature: inspect.Signature) -> list[tuple[Any, ...]]:
    return [(each.name, each.kind, each.default) for each in signature.parameters.values()]


TOOLS: dict[str, Callable[[Any], Any]] = {
    "inspect.signature": lambda function: shown(inspect.signature(function)),
    "its annotations": lambda function: inspect.signature(function, eval_str=True),
    "get_type_hints": get_type_hints,
    "iscoroutinefunction": asgiref.sync.iscoroutinefunction,
    "celery": celerys_check,
}


def three(function: Any) -> Any:
    return locked("a:{year}")(locked_view("b:{year}")(locked_view("c")(function)))


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
@pytest.mark.parametrize(
    ("function", "decorator"),
    [
        *[(report, decorator("report:{year}")) for decorator in (locked, locked_atomic, locked_view)],
        *[(areport, decorator("report:{year}")) for decorator in (locked, locked_view)],
        (report, three),
    ],
)
def test_a_tool_sees_the_function(function: Any, decorator: Any, tool: Callable[[Any], Any]) -> None:
    assert tool(decorator(function)) == tool(function)


def test_where_a_decorator_below_supplies_arguments_a_caller_need_not_give_them() -> None:
    def supplied(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(HttpRequest(), *args, **kwargs)

        return wrapper

    assert celerys_check(locked("report")(supplied(report))) == celerys_check(supplied(report)) == []

    @locked_view("order:{pk}")
    @supplied
    @locked("user:{request.user}")
    def view(request: HttpRequest, order: HttpRequest) -> None: ...


async def test_a_method_below_method_decorator_runs_under_the_lock(client: redis.Redis) -> None:
    class Build:
        @method_decorator([locked("report:{kind}"), locked("report:{year}")])
        def build(self, year: int, kind: str = "a") -> list[str]:
            return lock_names(client)

        @method_decorator(locked("report:{year}"))
        async def abuild(self, year: int, kind: str = "a") -> list[str]:
            return lock_names(client)

    assert await asgiref.sync.sync_to_async(Build().build)(7) == ["report:7", "report:a"]
    assert await Build().abuild(7) == ["report:7"]


def test_annotations_may_name_what_is_not_there_yet() -> None:
    @locked("report:{year}")
    def early(year: Later) -> None: ...

    class Later: ...

    with pytest.raises(TypeError, match="missing 1 required"):
        Celery("site", broker="memory://", set_as_current=False).task(early, name="early").delay()


RETRIES = """
from celery import Celery, shared_task
from celery.contrib.testing.worker import start_worker

app = Celery("site", broker="memory://", backend="cache+memory://")
fences = []

def build_export(pk):
    fences.append(get_lock(lock_name("export", pk)).fence)
    if len(fences) < 3:
        raise ConnectionError

mail_export = build_export
exec(block)
with start_worker(app, perform_ping_check=False, pool="solo", loglevel="CRITICAL"):
    for task in (export, mail):
        fences.clear()
        lock = Lock("export:7")
        lock.acquire()
        fence = lock.fence
        task.delay(7, token=lock.detach(ttl=600)).get(timeout=30)
        say("fences", fences == [fence] * 3, lock.locked())
"""


def test_a_retried_job_of_the_documentation_goes_on_under_its_lock(start: Callable[..., Worker]) -> None:
    (block,) = (block for block in blocks(docs_page("functions")) if "self.retry" in block)
    assert "retry_backoff=True" in block
    worker = start(RETRIES, block=block.replace("retry_backoff=True", "default_retry_delay=0").replace("=60)", "=0)"))
    for _ in range(2):
        assert worker.expect("fences") == ["True", "False"]
