"""A function or view in a sync and an async version, so that one test body covers both."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from time import sleep
from typing import Any

import redis
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import URLPattern, path
from django.views import View

from django_redislock import locked_view
from tests.inside import PREFIX


def lock_names(client: redis.Redis) -> list[str]:
    prefix = f"{PREFIX}lock:"
    return sorted(key.decode().removeprefix(prefix) for key in client.scan_iter(f"{prefix}*"))


class Twins:
    """``person(twins, "call", ...)`` calls the function, or awaits the coroutine function; both are decorated.

    ``body`` is a plain function, or a generator function that lets others run where it yields. ``finish`` is called
    with what it returns.
    """

    def __init__(
        self,
        decorator: Callable[[Callable[..., Any]], Callable[..., Any]],
        body: Callable[..., Any],
        finish: Callable[[Any], Any] = lambda x: x,
    ) -> None:
        def play(*args: Any, **kwargs: Any) -> Generator[Any, None, Any]:
            result = body(*args, **kwargs)
            return finish((yield from result) if isinstance(result, Generator) else result)

        @wraps(body)
        def call(*args: Any, **kwargs: Any) -> Any:
            steps = play(*args, **kwargs)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    return end.value
                sleep(0.001)

        @wraps(body)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            steps = play(*args, **kwargs)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    return end.value
                await asyncio.sleep(0.001)

        self.call, self.acall = decorator(call), decorator(acall)


class Pages:
    """A site of sync or async views: ``person(pages, "get", "/order/1/")`` sends a request through Django's own
    handler."""

    def __init__(self, *, awaits: bool) -> None:
        self.awaits = awaits
        self.urlpatterns: list[URLPattern] = []

    def add(self, route: str, name: Any, body: Callable[..., Any], **options: Any) -> None:
        """Add a view with ``locked_view(name, **options)`` that responds with what ``body(request, ...)`` returns."""
        twins = Twins(locked_view(name=name, **options), body, HttpResponse)
        self.add_view(route, twins.acall if self.awaits else twins.call)

    def add_view(self, route: str, view: Any) -> None:
        self.urlpatterns.append(path(route, view))

    def get(self, path: str, method: str = "GET", **headers: str) -> Any:
        return Client().generic(method, path, headers=headers)

    async def aget(self, path: str, method: str = "GET", **headers: str) -> Any:
        return await AsyncClient().generic(method, path, headers=headers)


@types.coroutine
def abandon(coroutine: Coroutine[Any, Any, Any], when: Callable[[], Any]) -> Generator[Any, None, None]:
    """Run a coroutine until ``when``, then close it, as the end of its loop or a garbage collection would."""
    future = coroutine.send(None)
    while not when():
        try:
            yield future
        except BaseException as error:  # a time limit inside the coroutine cancels the task, and must see this
            future = coroutine.throw(error)
        else:
            future = coroutine.send(None)
    coroutine.close()


def respond(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


async def arespond(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Page(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()
