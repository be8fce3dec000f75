"""A site that books on accounts, with ``locked_view`` in every place where it can be used."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from asgiref.sync import sync_to_async
from django.db.transaction import atomic, non_atomic_requests
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import cache_page
from rest_framework.decorators import action, api_view
from rest_framework.exceptions import ValidationError
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_redislock import alist_locks, force_release, list_locks, locked_view
from tests.helpers.actors import GENEROUS
from tests.helpers.databases import Account


class Gate:
    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.go_on.wait(GENEROUS)


gates: dict[str, Callable[[], object]] = {}  # by the value of ?gate= and ?gate-before=


def wait_at(gate: str, request: Any) -> None:
    if gate in request.GET:
        gates[request.GET[gate]]()


def names() -> str:
    return ",".join(lock.name for lock in list_locks())


async def anames() -> str:
    return ",".join([lock.name for lock in await alist_locks()])


def work(request: Any) -> str:
    """Book one, then do what the query string asks for. Return the names of the held locks."""
    wait_at("gate-before", request)
    Account("default").book()
    held = names()
    wait_at("gate", request)
    if "raise" in request.GET:
        raise ZeroDivisionError
    return held


lock = locked_view("account:{pk}", blocking_timeout=GENEROUS, methods=["GET", "POST"])
outer = locked_view("outer:{pk}")
new_class: Any = type


def respond(request: HttpRequest, pk: int) -> HttpResponseBase:
    return HttpResponse(work(request))


def rest_respond(request: Any, pk: int) -> Response:
    return Response(work(request))


class Page(View):
    def get(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        return respond(request, pk)

    put = get


class RestPage(APIView):
    def get(self, request: Any, pk: int) -> Response:
        held = work(request)
        if "invalid" in request.GET:
            raise ValidationError("no")
        return Response(held)


class Actions(ViewSet):
    @lock
    @action(detail=True)
    def above(self, request: Any, pk: int) -> Response:
        return Response(work(request))

    @action(detail=True)
    @method_decorator(lock)
    def below(self, request: Any, pk: int) -> Response:
        return Response(work(request))


def decorated(page: Any, *decorators: Any, name: str = "dispatch") -> Any:
    """A subclass of which one method is decorated."""
    return method_decorator(decorators, name=name)(type("Decorated", (page,), {}))


function: Any = lock(respond)
OnDispatch: Any = decorated(Page, lock)
one_method = decorated(Page, lock, name="get").as_view()
rest_one_method = decorated(RestPage, lock, name="get").as_view()


class MarkLost(OnDispatch):
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)


told = threading.Event()
told_lock = locked_view("account:{pk}", on_lost=lambda loss: told.set())


def lose(request: HttpRequest, pk: int) -> HttpResponseBase:
    Account("default").book()
    told.clear()
    force_release(f"account:{pk}")
    assert told.wait(GENEROUS)
    return HttpResponse("not seen")


ends: list[str] = []  # which locks were held when a stream ended


def parts(request: Any) -> Iterator[str]:
    try:
        yield f"{names()};"
        wait_at("gate", request)
        if "raise" in request.GET:
            raise ZeroDivisionError
        yield f"{names()};"
    finally:
        ends.append(names())


async def aparts(request: Any) -> AsyncIterator[str]:
    try:
        yield f"{await anames()};"
        while "endless" in request.GET:
            yield "x" * 65536
            await asyncio.sleep(0)  # uvicorn does not wait for clients that have disconnected
        if "raise" in request.GET:
            raise ZeroDivisionError
        yield f"{await anames()};"
    finally:
        ends.append(await anames())


def unlocked_stream(request: HttpRequest, pk: int) -> HttpResponseBase:
    wait_at("gate-before", request)
    return StreamingHttpResponse(parts(request))


plainly = locked_view("account:{pk}")
stream = plainly(unlocked_stream)
short_stream = locked_view("account:{pk}", ttl=3)(unlocked_stream)


@plainly
def file(request: HttpRequest, pk: int) -> HttpResponseBase:
    return FileResponse(open(__file__, "rb"))


@plainly
async def async_stream(request: HttpRequest, pk: int) -> HttpResponseBase:
    await sync_to_async(wait_at)("gate-before", request)
    return StreamingHttpResponse(aparts(request))


async def arespond(request: HttpRequest, pk: int) -> HttpResponseBase:
    return HttpResponse(await anames())


class AsyncPage(View):
    async def get(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        return HttpResponse(await anames())

    put = get


class SyncMethod(View):
    async def get(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        return await sync_to_async(self.look)(request, pk=pk)

    @method_decorator(lock)
    def look(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        return HttpResponse(names())


async def sync_view(request: HttpRequest, pk: int) -> HttpResponseBase:
    return await sync_to_async(lock(lambda request, pk: HttpResponse(names())))(request, pk=pk)


def middleware(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware that changes responses as some real ones do."""

    def handle(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if "replace" in request.GET:
            return HttpResponse("replaced", status=503)
        if "break" in request.GET:
            raise LookupError
        return response

    return handle


LOCKED_INSIDE = {  # the lock begins before the transaction
    "function": function,
    "dispatch": OnDispatch.as_view(),
    "whole-class": lock(Page.as_view()),
    "rest-dispatch": decorated(RestPage, lock).as_view(),
    "above-api-view": lock(api_view(["GET"])(rest_respond)),
}
LOCKED_LATE = {  # Django began the transaction before the lock
    "mark-lost": MarkLost.as_view(),
    "one-method": one_method,
    "rest-one-method": rest_one_method,
    "above-action": Actions.as_view({"get": "above"}),
    "below-action": Actions.as_view({"get": "below"}),
    "self": new_class("Self", (View,), {"get": lock(Page.get)}).as_view(),  # as by method_decorator
    "below-api-view": api_view(["GET"])(lock(rest_respond)),
    "in-a-block": atomic(function),
}
EXCLUDED = {
    "excluded-below": lock(non_atomic_requests(lambda request, pk: respond(request, pk))),
    "excluded-below-two": outer(lock(non_atomic_requests(lambda request, pk: respond(request, pk)))),
    "excluded-below-class": decorated(Page, lock, non_atomic_requests).as_view(),
    "excluded-method": decorated(decorated(Page, lock, name="get"), non_atomic_requests).as_view(),
}
STREAMS = {"stream": stream, "async-stream": async_stream}
ASYNC = {
    "coroutine": lock(arespond),
    "async-dispatch": decorated(AsyncPage, lock).as_view(),
    "async-self": new_class("AsyncSelf", (View,), {"get": lock(AsyncPage.get)}).as_view(),
}
SYNC_IN_ASYNC = {"sync-view": sync_view, "sync-method": SyncMethod.as_view()}
OTHERS = {
    "short-stream": short_stream,
    "two-locks": outer(lock(respond)),
    "cached": cache_page(60)(one_method),
    "file": file,
    "list": plainly(lambda request, pk: StreamingHttpResponse([b"a", b"b"])),
    "lost": told_lock(lose),
    "lost-late": atomic(told_lock(lose)),
}

urlpatterns = [
    path(f"{name}/<int:pk>/", view)  # type: ignore[arg-type]
    for group in (LOCKED_INSIDE, LOCKED_LATE, EXCLUDED, STREAMS, ASYNC, SYNC_IN_ASYNC, OTHERS)
    for name, view in group.items()
]
