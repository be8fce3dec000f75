"""What other tools see of a decorated function is what they see of the function itself."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import asgiref.sync
import pytest
import redis
from celery import Celery  # type: ignore[import-untyped]
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator, sync_and_async_middleware
from rest_framework.decorators import action, api_view
from rest_framework.routers import SimpleRouter
from rest_framework.schemas.generators import BaseSchemaGenerator
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_redislock import locked, locked_atomic, locked_view
from tests.helpers.docs import blocks
from tests.helpers.docs import page as docs_page
from tests.helpers.processes import Worker
from tests.helpers.twins import lock_names

Decorator = Callable[[Any], Any]


def report(request: HttpRequest, year: int, /, *rest: str, kind: str = "a", **more: int) -> HttpResponse:
    """Report a year."""
    return HttpResponse(f"{year} {kind}")


async def areport(request: HttpRequest, year: int = 7, *, kind: str) -> HttpResponse:
    """Report a year."""
    return HttpResponse(f"{year} {kind}")


class Reports:
    def report(self, request: HttpRequest, year: int, kind: str = "a") -> HttpResponse:
        """Report a year."""
        return HttpResponse(f"{year} {kind}")

    async def areport(self, request: HttpRequest, year: int, *, kind: str) -> HttpResponse:
        """Report a year."""
        return HttpResponse(f"{year} {kind}")


def same(function: Any) -> Any:
    return function


FUNCTIONS = {"sync": report, "async": areport, "method": Reports.report, "amethod": Reports.areport}
DECORATORS: dict[str, tuple[Decorator, Decorator]] = {
    "locked": (locked("report:{year}"), same),
    "bare": (locked, same),
    "locked_atomic": (locked_atomic("report:{year}"), same),
    "locked_view": (locked_view("report:{year}"), same),
    "several": (lambda function: locked("a:{year}")(locked_view("b:{year}")(locked_view("c")(function))), same),
    "locked by method_decorator": (method_decorator(locked("report:{year}")), method_decorator(same)),
    "view by method_decorator": (method_decorator(locked_view("report:{year}")), method_decorator(same)),
}
DECORATED = [
    pytest.param(function, *decorators, id=f"{how}-{kind}")
    for how, decorators in DECORATORS.items()
    for kind, function in FUNCTIONS.items()
    if not (how == "locked_atomic" and kind.startswith("a"))
    and (how not in ("locked_view", "several") or "method" not in kind)
]


def celerys_check(function: Any) -> Any:
    """The arguments that ``.delay()`` refuses."""
    task = Celery("site", broker="memory://", set_as_current=False).task(function, name="report")
    refused = []
    for args, options in [
        ((), {}),
        ((1,), {}),
        ((1, 2), {}),
        ((1, 2, 3, 4), {}),
        ((1, 2), {"kind": 1}),
        ((), {"x": 1}),
    ]:
        try:
            task.delay(*args, **options)
        except TypeError as error:
            refused.append(str(error))
    return refused


def evaluated(function: Any) -> Any:
    """As tools ask that act on annotations."""
    return inspect.signature(function, eval_str=True)


def shown(signature: inspect.Signature) -> list[tuple[Any, ...]]:
    return [(each.name, each.kind, each.default) for each in signature.parameters.values()]


TOOLS: dict[str, Callable[[Any], Any]] = {
    "inspect.signature": lambda function: shown(inspect.signature(function)),
    "its annotations": evaluated,
    "getfullargspec": lambda function: inspect.getfullargspec(function)[:6],
    "getdoc": inspect.getdoc,
    "getsource": inspect.getsource,
    "get_type_hints": get_type_hints,
    "iscoroutinefunction": lambda function: (
        inspect.iscoroutinefunction(function),
        asgiref.sync.iscoroutinefunction(function),
    ),
    "celery": celerys_check,
}


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
@pytest.mark.parametrize(("function", "ours", "none"), DECORATED)
def test_a_tool_sees_the_function(function: Any, ours: Decorator, none: Decorator, tool: Callable[[Any], Any]) -> None:
    assert tool(ours(function)) == tool(none(function))


def supplied(function: Any) -> Any:
    """A decorator that supplies the first argument."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(HttpRequest(), *args, **kwargs)

    return wrapper


def test_where_a_decorator_below_supplies_arguments_a_caller_need_not_give_them() -> None:
    assert celerys_check(locked("report")(supplied(report))) == celerys_check(supplied(report)) == []


def test_a_decorator_in_between_may_change_the_arguments_of_a_view() -> None:
    @locked_view("order:{pk}")
    @supplied
    @locked("user:{request.user}")
    def view(request: HttpRequest, order: HttpRequest) -> None: ...


def test_annotations_may_name_what_is_not_there_yet() -> None:
    @locked("report:{year}")
    def early(year: Later) -> None: ...

    class Later: ...

    with pytest.raises(TypeError, match="missing 1 required"):
        Celery("site", broker="memory://", set_as_current=False).task(early, name="early").delay()


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


@pytest.mark.parametrize("decorator", [locked("x:{value}"), locked_atomic("x:{value}"), locked_view("x")])
def test_singledispatch_chooses_by_the_argument(decorator: Decorator) -> None:
    def general(value: Any) -> Any: ...
    def special(value: int) -> Any: ...

    for found in (decorator(functools.singledispatch(general)), functools.singledispatch(decorator(general))):
        ours = decorator(special)
        found.register(ours)  # by its annotation
        assert found.dispatch(bool) is ours


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse("a page")


async def apage(request: HttpRequest) -> HttpResponse:
    return HttpResponse("a page")


@sync_and_async_middleware
def middleware(get_response: Any) -> Any:
    return locked_view("site")(get_response)


@pytest.mark.parametrize("decorator", [locked("x"), locked_view("x")])
async def test_middleware_for_sync_and_async_views(decorator: Decorator) -> None:
    for made in (sync_and_async_middleware(decorator(report)), decorator(sync_and_async_middleware(report))):
        assert (made.sync_capable, made.async_capable) == (True, True)
    urls = ModuleType("urls")
    vars(urls)["urlpatterns"] = [path("async/", apage), path("sync/", page)]
    with override_settings(MIDDLEWARE=[f"{__name__}.middleware"], ROOT_URLCONF=urls):
        for at in ("/async/", "/sync/"):
            assert (await AsyncClient().get(at)).content == b"a page"
            assert (await asgiref.sync.sync_to_async(Client().get)(at)).content == b"a page"


def test_the_schema_of_rest_framework() -> None:
    def described(ours: Decorator) -> list[Any]:
        def function(request: Any, year: int) -> Any:
            """A year."""

        def method(self: Any, request: Any, year: int) -> Any:
            """A year of a class."""

        class Classic(APIView):  # type: ignore[misc]
            get = method_decorator(ours)(method)

        viewset = type("Viewset", (ViewSet,), {"method": action(detail=True)(method_decorator(ours)(method))})

        router = SimpleRouter()
        router.register("reports", viewset, basename="reports")
        urls = [
            path("above/<int:year>/", ours(api_view(["GET"])(function))),
            path("below/<int:year>/", api_view(["GET"])(ours(function))),
            path("class/<int:year>/", Classic.as_view()),
            path("whole/<int:year>/", method_decorator(ours, name="dispatch")(Classic).as_view()),
            path("around/<int:year>/", ours(Classic.as_view())),
            *router.urls,
        ]
        generator = BaseSchemaGenerator(patterns=urls)
        generator._initialise_endpoints()
        _, endpoints = generator._get_paths_and_endpoints(None)
        return [(at, how, view.schema.get_description(at, how)) for at, how, view in endpoints]

    plain = described(same)
    assert len(plain) == 6
    assert described(locked_view("x")) == plain


SOURCE = '''
from __future__ import annotations
import celery
from django_redislock import locked, locked_atomic, locked_view

@DECORATOR
def report(request: str, year: int = 7, *, kind: str) -> bool:
    """Report a year."""

@DECORATOR
async def areport(request: str, year: int, *, kind: str) -> bool:
    """Report a year."""

class Reports:
    """Reports."""

    @DECORATOR
    def method(self, request: str, year: int, *, kind: str) -> bool:
        """Report a year."""

@celery.shared_task(name="report")
@DECORATOR
def task(request: str, year: int = 7, *, kind: str) -> bool:
    """Report a year."""
'''


def test_pages_of_sphinx_and_of_its_extension_for_celery(tmp_path: Path) -> None:
    sphinx = pytest.importorskip("sphinx.application")

    def page(name: str, decorator: str) -> str:
        place = tmp_path / name
        place.mkdir()
        (place / f"{name}.py").write_text(SOURCE.replace("DECORATOR", decorator))
        (place / "index.rst").write_text(f".. automodule:: {name}\n   :members:\n")
        options = {"extensions": ["celery.contrib.sphinx"], "autodoc_use_legacy_class_based": True}
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(place)
            site = sphinx.Sphinx(place, None, place / "out", place / "trees", "text", options, status=None)
            site.build()
            del sys.modules[name]
        return (place / "out/index.txt").read_text().replace(name, "module")

    plain = page("plain", "(lambda function: function)")
    assert plain.count("year") >= 4
    assert page("ours", 'locked("x:{year}")') == page("view", 'locked_view("x:{year}")') == plain


# -- retries of Celery ----------------------------------------------------------------------------------------------

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
