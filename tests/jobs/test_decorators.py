"""What ``locked``, ``locked_atomic`` and ``locked_view`` have in common: names, options, ends and refusals."""
# mypy: disable-error-code="untyped-decorator, no-untyped-call"

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest
from django.test import RequestFactory

from django_redislock import LockLost, lock_digest, locked, locked_atomic, locked_view
from tests.helpers.actors import GENEROUS
from tests.helpers.databases import Account
from tests.helpers.servers import abandon, lock_names
from tests.helpers.state import NAME, value

pytestmark = [
    pytest.mark.parametrize("account", ["sqlite"], indirect=True),
    pytest.mark.usefixtures("account"),
]


class Kind(NamedTuple):
    """A decorator, on functions or on coroutine functions."""

    decorator: Any
    awaits: bool

    def __call__(self, body: Callable[..., Any], *args: Any, given: tuple[Any, ...] = (), **options: Any) -> Any:
        """Call ``body``, decorated with these options, with a request and these arguments."""
        function = body
        if self.awaits:

            @functools.wraps(body)
            async def function(*args: Any, **kwargs: Any) -> Any:
                await asyncio.sleep(0)
                return body(*args, **kwargs)

        decorated = self.decorator(*given, **options)(function)
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
    ways: list[dict[str, Any]] = [{"name": name}, {"given": (lambda request, year: name(request, year),)}]
    for way in ways:
        assert kind(lambda request, year: lock_names(client), 7, **way) == ["GET-7"]
    assert lock_names(client) == []


def test_note_and_token_are_templates_too(kind: Kind, client: redis.Redis) -> None:
    def look(request: HttpRequest, number: int, text: str) -> str:
        return " ".join(value(client))

    options: dict[str, Any] = {"name": NAME, "note": "no. {number}: {text}", "token": "{number:digest}"}
    for text, cut in [("a:b\nc %", "a:b\nc %"), ("é" * 1000 + "\ud800", "é" * 496)]:
        holder = kind(look, 7, text, **options)
        assert holder.partition("\n")[2] == f"no. 7: {cut}"
        assert lock_digest(7) in holder


def test_a_token_that_is_none_is_an_error_that_does_not_repeat_it(kind: Kind) -> None:
    def late(request: HttpRequest, text: str) -> None:
        raise AssertionError("not reached")

    for call in (
        lambda: kind(never, name=NAME, token="too short"),
        lambda: kind(late, "too short", name=NAME, token="{text}"),
    ):
        with pytest.raises(ValueError, match=r"^A token must be a str of 22") as caught:
            call()
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


def generator(request: HttpRequest) -> Iterator[int]:
    yield 1


async def agenerator(request: HttpRequest) -> AsyncIterator[int]:
    yield 1


async def coroutine(request: HttpRequest) -> None: ...


class Called:
    def __call__(self, request: HttpRequest) -> Iterator[int]:
        yield 1


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that hides what the function is."""
    return functools.wraps(function)(lambda *args: function(*args))


@DECORATORS
def test_what_runs_after_its_call_or_has_no_signature_is_refused(decorator: Any, client: redis.Redis) -> None:
    for function in (generator, agenerator):
        with pytest.raises(TypeError, match=rf"{decorator.__name__} cannot decorate .* is free again"):
            decorator("x")(function)
    with pytest.raises(TypeError, match=rf"{decorator.__name__} cannot decorate the class .*Called: "):
        decorator("x")(Called)
    if decorator is locked_view:
        return
    with pytest.raises(TypeError, match="cannot decorate <built-in function max>: no signature found"):
        decorator("x")(max)
    for hidden in (plain(generator), plain(agenerator), plain(coroutine), Called()):
        with pytest.raises(TypeError, match=r"cannot decorate .* is free again"):
            decorator("x")(hidden)(None)
    assert lock_names(client) == []
    others: Any = generator(HttpRequest())  # which are not the function's own body
    assert decorator("x")(lambda: others)() is others


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, StopIteration])
def test_an_error_of_the_function_propagates_and_the_lock_is_free(
    error: type[BaseException], kind: Kind, client: redis.Redis, eventually: Any
) -> None:
    def fail(request: HttpRequest) -> None:
        assert lock_names(client) == [NAME]
        raise error("mine")

    with pytest.raises(RuntimeError if kind.awaits and error is StopIteration else error):
        kind(fail, name=NAME)
    if kind.awaits and not issubclass(error, Exception):  # the loop has ended: in the background
        eventually(lambda: not lock_names(client))
    assert lock_names(client) == []


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_a_lock_that_was_lost_is_told_but_not_over_an_error(error: Any, kind: Kind, client: redis.Redis) -> None:
    def lose(request: HttpRequest) -> None:
        client.flushall()
        if error:
            raise error

    with pytest.raises(error or LockLost, match=None if error else f"'{NAME}' was lost"):
        kind(lose, name=NAME)


@pytest.mark.parametrize("decorator", [locked, locked_view])
@pytest.mark.parametrize("closed", [False, True], ids=["is cancelled", "is closed"])
async def test_a_coroutine_that_is_interrupted_releases(
    closed: bool, decorator: Any, client: Any, aeventually: Any
) -> None:
    inside = asyncio.Event()

    @decorator(NAME)
    async def section(request: HttpRequest) -> None:
        inside.set()
        await asyncio.sleep(GENEROUS)

    call = section(RequestFactory().get("/"))
    if closed:
        await abandon(call, inside.is_set)
    else:
        task = asyncio.ensure_future(call)
        await asyncio.wait_for(inside.wait(), GENEROUS)
        assert lock_names(client) == [NAME]
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    await aeventually(lambda: not lock_names(client))


@pytest.mark.parametrize(
    ("decorator", "instead"),
    [
        (locked, r"Decorate a coroutine function, or call it through sync_to_async\.$"),
        (locked_view, r"Decorate an async view, or call it through sync_to_async\.$"),
        (locked_atomic, r"thread\. Call it through sync_to_async\.$"),
    ],
)
async def test_a_sync_function_called_in_a_coroutine_is_told_what_to_do(
    decorator: Any, instead: str, account: Account, client: redis.Redis
) -> None:
    section = decorator(NAME)(lambda request: lock_names(client))
    with pytest.raises(SynchronousOnlyOperation, match=instead):
        section(RequestFactory().get("/"))
    assert lock_names(client) == []
    if decorator is not locked_atomic:
        assert await sync_to_async(section)(RequestFactory().get("/")) == [NAME]
