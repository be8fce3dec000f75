"""What ``locked``, ``locked_atomic`` and ``locked_view`` have in common, and what other tools see of a function."""
# mypy: disable-error-code="untyped-decorator, no-untyped-call"

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, get_type_hints

import pytest
import redis
from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from celery import Celery  # type: ignore[import-untyped]
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator

from django_redislock import LockLost, lock_digest, locked, locked_atomic, locked_view
from tests.helpers.actors import until
from tests.helpers.docs import blocks, page
from tests.helpers.jobs import agenerator, bare, coroutine, generator, hiding
from tests.helpers.processes import Worker
from tests.helpers.servers import lock_names
from tests.helpers.state import NAME, value

pytestmark = [pytest.mark.parametrize("account", ["sqlite"], indirect=True), pytest.mark.usefixtures("account")]


class Kind(NamedTuple):
    decorator: Any
    awaits: bool

    def __call__(self, body: Callable[..., Any], *args: Any, given: tuple[Any, ...] = (), **options: Any) -> Any:
        """Call ``body``, decorated with these options, with a request and these arguments."""

        @functools.wraps(body)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return body(*args, **kwargs)

        decorated = self.decorator(*given, **options)(coroutine if self.awaits else body)
        keywords = args[-1] if args and isinstance(args[-1], dict) else {}
        call = functools.partial(decorated, RequestFactory().get("/"), *(args[:-1] if keywords else args), **keywords)
        return async_to_sync(call)() if self.awaits else call()


KINDS = {
    "locked": Kind(locked, False),
    "locked, async": Kind(locked, True),
    "locked_atomic": Kind(locked_atomic, False),
    "locked_view": Kind(locked_view, False),
    "locked_view, async": Kind(locked_view, True),
}
DECORATORS = pytest.mark.parametrize("decorator", [locked, locked_atomic, locked_view])


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def never(request: HttpRequest, year: int = 0, *rest: int, kind: str = "a") -> None:
    raise AssertionError("not reached")


def test_a_function_runs_under_the_lock_of_its_arguments(kind: Kind, client: redis.Redis) -> None:
    def report(request: HttpRequest, year: int, *rest: int, kind: str = "a b", **more: int) -> list[str]:
        return lock_names(client)

    def name(request: HttpRequest, year: int) -> str:
        return f"{request.method}-{year}"

    template = "report:{year}:{kind}"
    assert kind(report, 2026, name=template) == ["report:2026:a%20b"]
    assert kind(report, {"year": 2026}, name=template) == ["report:2026:a%20b"]
    assert kind(report, 2026, 1, {"kind": "x:y", "other": 2}, name=template) == ["report:2026:x%3Ay"]
    for word in ("queue", "view", "self", "args", "name"):
        assert kind(lambda request, **options: lock_names(client), {word: "7"}, name=f"job:{{{word}}}") == ["job:7"]
    assert kind(lambda request, pk, /, **fields: lock_names(client), 7, {"pk": 8}, name="job:{pk}") == ["job:7"]
    assert kind(lambda request, year: lock_names(client), 7, name=name) == ["GET-7"]
    assert kind(lambda request, year: lock_names(client), 7, given=(lambda request, year: f"x{year}",)) == ["x7"]
    assert lock_names(client) == []


def test_note_and_token_are_templates_too(kind: Kind, client: redis.Redis) -> None:
    def look(request: HttpRequest, number: int, text: str) -> str:
        return " ".join(value(client))

    options: dict[str, Any] = {"name": NAME, "note": "no. {number}: {text}", "token": "{number:digest}"}
    for text, cut in [("a:b\nc %", "a:b\nc %"), ("é" * 1000 + "\ud800", "é" * 496)]:
        holder = kind(look, 7, text, **options)
        assert holder.partition("\n")[2] == f"no. 7: {cut}"
        assert lock_digest(7) in holder


@pytest.mark.parametrize("token", ["too short", "{kind}"])
def test_a_token_that_is_none_is_an_error_that_does_not_repeat_it(token: str, kind: Kind) -> None:
    with pytest.raises(ValueError, match=r"^A token must be a str of 22") as caught:
        kind(never, {"kind": "too short"}, name=NAME, token=token)
    assert "short" not in str(caught.value)


@DECORATORS
def test_wrong_arguments_are_errors_where_it_decorates(decorator: Any) -> None:
    name = decorator.__name__
    for options, trouble in [
        ({"name": "report:{yaer}"}, r"lock name 'report:\{yaer\}'"),
        ({"name": "x", "note": "of {yaer}"}, r"note 'of \{yaer\}'"),
        ({"name": "x", "token": "{yaer:digest}"}, "token .+"),
    ]:
        text = rf"^Cannot fill the {trouble}: never\(\) has no argument 'yaer'\. .*: kind, request, rest, year"
        with pytest.raises(ValueError, match=text):
            decorator(**options)(never)
    for template in ("x:{}", "x:{y", ""):
        with pytest.raises(ValueError, match=r"lock name|lock's name"):
            decorator(template)(never)
    with pytest.raises(ValueError, match="ttl must be at least"):
        decorator("x", ttl=0)
    with pytest.raises(TypeError, match=rf"^{name}\(\) takes no option 'fair'\. The options are: adopt, at"):
        decorator("x", fair=True)
    with pytest.raises(TypeError, match=rf'^{name} was given <function .*: write @{name}\("order:{{pk}}"\)'):
        decorator(never, ttl=5)
    with pytest.raises(TypeError, match="A lock's name must be a str or a callable, not 7"):
        decorator(7)(never)
    if decorator is not locked_view:  # which cannot tell that a view is sync code
        with pytest.raises(TypeError, match=rf"^{name} was given on_lost='cancel', .* of a coroutine, and <function "):
            decorator("x", on_lost="cancel")(never)


class Called:
    def __call__(self, request: HttpRequest) -> Iterator[int]:
        yield 1


@DECORATORS
def test_what_runs_after_its_call_or_has_no_signature_is_refused(decorator: Any, client: redis.Redis) -> None:
    for function in (generator, agenerator):
        with pytest.raises(TypeError, match=rf"{decorator.__name__} cannot lock .* is free again"):
            decorator("x")(function)
    with pytest.raises(TypeError, match=rf"{decorator.__name__} cannot decorate the class .*Called: "):
        decorator("x")(Called)
    if decorator is locked_view:
        return
    with pytest.raises(TypeError, match="cannot decorate a staticmethod: put it below @staticmethod"):
        locked("x")(staticmethod(print))
    with pytest.raises(TypeError, match="cannot decorate <built-in function max>: no signature found"):
        decorator("x")(max)
    managers = contextmanager(generator), asynccontextmanager(agenerator), hiding(contextmanager(generator))
    for hidden in (hiding(generator), hiding(agenerator), hiding(coroutine), bare(coroutine), Called(), *managers):
        with pytest.raises(TypeError, match=r"cannot lock .* is free again"):
            decorator("x")(hidden)(None)
    assert lock_names(client) == []
    for others in (generator(HttpRequest()), managers[0](HttpRequest())):  # which are not the function's own body
        assert decorator("x")(lambda others=others: others)() is others


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, StopIteration])
def test_an_error_propagates_and_the_lock_is_free(error: Any, kind: Kind, client: redis.Redis) -> None:
    def fail(request: HttpRequest) -> None:
        assert lock_names(client) == [NAME]
        raise error("mine")

    with pytest.raises(RuntimeError if kind.awaits and error is StopIteration else error):
        kind(fail, name=NAME)
    if kind.awaits and not issubclass(error, Exception):  # the loop has ended: in the background
        until(lambda: not lock_names(client))
    assert lock_names(client) == []


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_a_lock_that_was_lost_is_told_but_not_over_an_error(error: Any, kind: Kind, client: redis.Redis) -> None:
    def lose(request: HttpRequest) -> None:
        client.flushall()
        if error:
            raise error

    with pytest.raises(error or LockLost, match=None if error else f"'{NAME}' was lost"):
        kind(lose, name=NAME)


@pytest.mark.parametrize(
    ("decorator", "instead"),
    [
        (locked, r"Decorate a coroutine function, or call it through sync_to_async\.$"),
        (locked_view, r"Decorate an async view, or call it through sync_to_async\.$"),
        (locked_atomic, r"thread\. Call it through sync_to_async\.$"),
    ],
)
async def test_a_sync_function_in_a_coroutine_is_told_what_to_do(decorator: Any, instead: str, client: Any) -> None:
    section = decorator(NAME)(lambda request: lock_names(client))
    with pytest.raises(SynchronousOnlyOperation, match=instead):
        section(RequestFactory().get("/"))
    assert lock_names(client) == []
    if decorator is not locked_atomic:
        assert await sync_to_async(section)(RequestFactory().get("/")) == [NAME]


def report(request: HttpRequest, year: int, /, *rest: str, kind: str = "a", **more: int) -> HttpResponse:
    return HttpResponse(f"{year} {kind}")


async def areport(request: HttpRequest, year: int = 7, *, kind: str) -> HttpResponse:
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
    "iscoroutinefunction": iscoroutinefunction,
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


def test_each_annotation_that_has_a_value_has_it_though_another_is_for_type_checkers_alone() -> None:
    """django-ninja evaluates what is left where it does not belong."""

    def view(request: "Unknown", pk: "Kind", note: "str" = "") -> "Kind":  # type: ignore[name-defined]  # noqa: F821
        raise NotImplementedError

    signature = inspect.signature(locked("a")(view))
    assert [each.annotation for each in signature.parameters.values()] == ["Unknown", Kind, str]
    assert signature.return_annotation is Kind


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


def test_the_name_is_made_of_what_a_caller_gives_though_a_decorator_below_supplies_arguments(client: Any) -> None:
    def export(session: str, tenant: str, year: int = 0) -> list[str]:
        return lock_names(client)

    @functools.wraps(export)
    def spelled_out(tenant: str, year: int = 0) -> list[str]:
        return export("session", tenant, year)

    @functools.wraps(export)
    def passed_on(*args: Any, **kwargs: Any) -> list[str]:
        return export("session", *args, **kwargs)

    lock = locked("export:{tenant}")
    for function in (spelled_out, functools.update_wrapper(functools.partial(export, "session"), export)):
        assert lock(function)("acme", 2024) == lock(function)(tenant="acme") == ["export:acme"]
    assert lock(passed_on)(tenant="acme") == ["export:acme"]
    assert locked("export:{tenant}:{year}")(passed_on)(tenant="acme") == ["export:acme:0"]
    with pytest.raises(TypeError, match="missing a required argument: 'tenant'"):
        lock(passed_on)("acme")


def test_what_lru_cache_has_made_can_be_locked(client: redis.Redis) -> None:
    @locked("export:{tenant}")
    @functools.lru_cache
    def export(tenant: str) -> list[str]:
        return lock_names(client)

    assert export("acme") == ["export:acme"]


async def test_a_method_below_method_decorator_runs_under_the_lock(client: redis.Redis) -> None:
    class Build:
        @method_decorator([locked("report:{kind}"), locked("report:{year}")])
        def build(self, year: int, kind: str = "a") -> list[str]:
            return lock_names(client)

        @method_decorator(locked("report:{year}"))
        async def abuild(self, year: int, kind: str = "a") -> list[str]:
            return lock_names(client)

    assert await sync_to_async(Build().build)(7) == ["report:7", "report:a"]
    assert await Build().abuild(7) == ["report:7"]


def test_annotations_may_name_what_is_not_there_yet() -> None:
    @locked("report:{year}")
    def early(year: "Later") -> None: ...

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


@pytest.mark.complete
def test_a_retried_job_of_the_documentation_goes_on_under_its_lock(start: Callable[..., Worker]) -> None:
    (block,) = (block for block in blocks(page("functions")) if "self.retry" in block)
    assert "retry_backoff=True" in block
    worker = start(RETRIES, block=block.replace("retry_backoff=True", "default_retry_delay=0").replace("=60)", "=0)"))
    for _ in range(2):
        assert worker.expect("fences") == ["True", "False"]
