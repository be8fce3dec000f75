"""A site that books on accounts, with ``locked_view`` in every place where it can be used."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.cache import caches
from django.db import transaction
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

from django_redislock import alist_locks, force_release, list_locks, lock_lost, locked_view
from tests.helpers.actors import GENEROUS
from tests.helpers.databases import Account


class Gate:
    """A place where a view waits until the test lets it continue."""

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
    """The names of the held locks."""
    return ",".join(lock.name for lock in list_locks())


async def anames() -> str:
    """See names()."""
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


def respond(request: Any) -> HttpResponseBase:
    return HttpResponse(work(request))


lock = locked_view("account:{pk}", blocking_timeout=GENEROUS, methods=["GET", "POST"])


@lock
def function(request: HttpRequest, pk: int) -> HttpResponseBase:
    return respond(request)


@method_decorator(lock, name="dispatch")
class OnDispatch(View):
    def get(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        return respond(request)

    put = get


class MarkLost(OnDispatch):
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        return super().dispatch(request, *args, **kwargs)


class OneMethod(View):
    @method_decorator(lock)
    def get(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        return respond(request)


@method_decorator(lock, name="dispatch")
class RestOnDispatch(APIView):
    def get(self, request: Any, pk: int) -> Response:
        held = work(request)
        if "invalid" in request.GET:
            raise ValidationError("no")
        return Response(held)


class RestOneMethod(APIView):
    @method_decorator(lock)
    def get(self, request: Any, pk: int) -> Response:
        held = work(request)
        if "invalid" in request.GET:
            raise ValidationError("no")
        return Response(held)


@method_decorator(lock, name="dispatch")
class SetOnDispatch(ViewSet):
    def retrieve(self, request: Any, pk: int) -> Response:
        return Response(work(request))


class SetAction(ViewSet):
    @action(detail=True)
    @method_decorator(lock)
    def book(self, request: Any, pk: int) -> Response:
        return Response(work(request))


@lock
@api_view(["GET"])
def above_api_view(request: Any, pk: int) -> Response:
    return Response(work(request))


@api_view(["GET"])
@lock
def below_api_view(request: Any, pk: int) -> Response:
    return Response(work(request))


@transaction.atomic
@lock
def in_a_block(request: HttpRequest, pk: int) -> HttpResponseBase:
    return respond(request)


@locked_view("outer:{pk}")
@lock
def two_locks(request: HttpRequest, pk: int) -> HttpResponseBase:
    return respond(request)


@transaction.non_atomic_requests
@lock
def excluded_above(request: HttpRequest, pk: int) -> HttpResponseBase:
    return respond(request)


@lock
@transaction.non_atomic_requests
def excluded_below(request: HttpRequest, pk: int) -> HttpResponseBase:
    return respond(request)


@transaction.non_atomic_requests
@locked_view("outer:{pk}")
@lock
def excluded_above_two(request: HttpRequest, pk: int) -> HttpResponseBase:
    return respond(request)


@method_decorator([transaction.non_atomic_requests, lock], name="dispatch")
class ExcludedAboveClass(View):
    def get(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        return respond(request)


@method_decorator(transaction.non_atomic_requests, name="dispatch")
class ExcludedMethod(View):
    @method_decorator(lock)
    def get(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        return respond(request)


class AlsoOnDispatch(OnDispatch):
    pass


@locked_view("account:{pk}", blocking_timeout=2 * GENEROUS)
def twice(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Responds with the balance that it has written."""
    return HttpResponse(str(Account("default").book()))


class TwiceLate(View):
    get = method_decorator(locked_view("account:{pk}", blocking_timeout=2 * GENEROUS))(
        lambda self, request, pk: HttpResponse(str(Account("default").book()))
    )


def read_with_cache_lock(request: HttpRequest, pk: int) -> HttpResponseBase:
    with caches["cache-lock"].lock(f"account:{pk}", timeout=GENEROUS):  # type: ignore[attr-defined]
        return HttpResponse(str(Account("default").balance))


def with_cache_lock(request: HttpRequest, pk: int) -> HttpResponseBase:
    """What sites do without this package."""
    with caches["cache-lock"].lock(f"account:{pk}", timeout=GENEROUS):  # type: ignore[attr-defined]
        balance = Account("default").book()
    return HttpResponse(str(balance))


# -- streams --------------------------------------------------------------------------------------------------------


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


ends: list[str] = []  # which locks were held when a stream ended


def unlocked_stream(request: HttpRequest, pk: int) -> HttpResponseBase:
    wait_at("gate-before", request)
    return StreamingHttpResponse(parts(request))


plainly = locked_view("account:{pk}")
stream = plainly(unlocked_stream)
short_stream = locked_view("account:{pk}", ttl=2)(unlocked_stream)


@plainly
def stream_of_a_list(request: HttpRequest, pk: int) -> HttpResponseBase:
    return StreamingHttpResponse([b"a", b"b"])


@plainly
def file(request: HttpRequest, pk: int) -> HttpResponseBase:
    return FileResponse(open(__file__, "rb"))


@plainly
def stream_of_coroutine(request: HttpRequest, pk: int) -> HttpResponseBase:
    return StreamingHttpResponse(aparts(request))


@plainly
async def async_stream(request: HttpRequest, pk: int) -> HttpResponseBase:
    await sync_to_async(wait_at)("gate-before", request)
    return StreamingHttpResponse(aparts(request))


@api_view(["GET"])
@plainly
def stream_below_api_view(request: Any, pk: int) -> HttpResponseBase:
    Account("default").book()
    return StreamingHttpResponse(parts(request))


def lose(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Force-release the lock while the view runs."""
    Account("default").book()
    told = threading.Event()

    def tell(**facts: Any) -> None:
        told.set()

    lock_lost.connect(tell)
    force_release(f"account:{pk}")
    assert told.wait(GENEROUS)
    return HttpResponse("not seen")


lost = lock(lose)
lost_late = transaction.atomic(lost)


# -- coroutines -----------------------------------------------------------------------------------------------------


@lock
async def coroutine(request: HttpRequest, pk: int) -> HttpResponseBase:
    return HttpResponse(await anames())


class AsyncMethod(View):
    @method_decorator(lock)
    async def get(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        return HttpResponse(await anames())


@method_decorator(lock, name="dispatch")
class AsyncOnDispatch(View):
    async def get(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        return HttpResponse(await anames())

    async def put(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        return HttpResponse(await anames())


def plain(view: Callable[..., Any]) -> Callable[..., Any]:
    return wraps(view)(lambda *args, **kwargs: view(*args, **kwargs))


@method_decorator([lock, plain], name="dispatch")
class AsyncBelowAnother(AsyncOnDispatch):
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return View.dispatch(self, request, *args, **kwargs)


# -- sync views that coroutines run ---------------------------------------------------------------------------------


@lock
def held_names(request: HttpRequest, pk: int) -> HttpResponseBase:
    return HttpResponse(names())


async def by_sync_to_async(request: HttpRequest, pk: int) -> HttpResponseBase:
    return await sync_to_async(held_names)(request, pk=pk)


async def by_to_thread(request: HttpRequest, pk: int) -> HttpResponseBase:
    return await asyncio.to_thread(held_names, request, pk=pk)


class OperationsOfOnePath(View):
    """Sync and async operations of one path, as django-ninja has them."""

    operations: dict[str, Callable[..., Any]] = {"GET": held_names, "POST": coroutine}

    async def get(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        operation = self.operations[str(request.method)]
        if iscoroutinefunction(operation):
            return await operation(request, pk=pk)  # type: ignore[no-any-return]
        return await sync_to_async(operation)(request, pk=pk)  # type: ignore[no-any-return]

    post = get


class SyncMethodOfAsync(View):
    async def get(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        return await sync_to_async(self.book)(request, pk=pk)

    @method_decorator(lock)
    def book(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        return HttpResponse(names())


# -- the site -------------------------------------------------------------------------------------------------------


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
    "rest-dispatch": RestOnDispatch.as_view(),
    "set-dispatch": SetOnDispatch.as_view({"get": "retrieve"}),
    "above-api-view": above_api_view,
}
LOCKED_LATE = {  # Django began the transaction before the lock
    "mark-lost": MarkLost.as_view(),
    "one-method": OneMethod.as_view(),
    "rest-one-method": RestOneMethod.as_view(),
    "set-action": SetAction.as_view({"get": "book"}),
    "below-api-view": below_api_view,
    "in-a-block": in_a_block,
}
EXCLUDED = {
    "excluded-above": excluded_above,
    "excluded-below": excluded_below,
    "excluded-above-two": excluded_above_two,
    "excluded-above-class": ExcludedAboveClass.as_view(),
    "excluded-method": ExcludedMethod.as_view(),
    "excluded-as-view": transaction.non_atomic_requests(AlsoOnDispatch.as_view()),
}
STREAMS = {
    "stream": stream,
    "stream-of-coroutine": stream_of_coroutine,
    "async-stream": async_stream,
    "stream-below-api-view": stream_below_api_view,
}
ASYNC = {
    "coroutine": coroutine,
    "async-method": AsyncMethod.as_view(),
    "async-dispatch": AsyncOnDispatch.as_view(),
    "async-below-another": AsyncBelowAnother.as_view(),
}
SYNC_IN_ASYNC = {
    "by-sync-to-async": by_sync_to_async,
    "by-to-thread": by_to_thread,
    "operations": OperationsOfOnePath.as_view(),
    "sync-method-of-async": SyncMethodOfAsync.as_view(),
}
OTHERS = {
    "short-stream": short_stream,
    "two-locks": two_locks,
    "cached": cache_page(60)(OneMethod.as_view()),
    "cached-rest": cache_page(60)(RestOneMethod.as_view()),
    "twice": twice,
    "twice-late": TwiceLate.as_view(),
    "cache-lock": with_cache_lock,
    "cache-lock-read": read_with_cache_lock,
    "file": file,
    "list": stream_of_a_list,
    "lost": lost,
    "lost-late": lost_late,
}

urlpatterns = [
    path(f"{name}/<int:pk>/", view)  # type: ignore[arg-type]
    for group in (LOCKED_INSIDE, LOCKED_LATE, EXCLUDED, STREAMS, ASYNC, SYNC_IN_ASYNC, OTHERS)
    for name, view in group.items()
]
