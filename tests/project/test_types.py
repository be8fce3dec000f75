"""What type checkers know of the package: mypy, which checks this file too, fails where one of these is wrong."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_redislock import (
    Lock,
    LockPool,
    PoolMember,
    alocked_get_or_set,
    locked,
    locked_atomic,
    locked_get_or_set,
    locked_view,
)

if sys.version_info >= (3, 11):
    from typing import assert_type
else:
    from typing_extensions import assert_type


def test_functions_keep_their_types() -> None:
    def report(year: int, kind: str = "a") -> float:
        return year / 2

    assert_type(locked(report)(2026), float)
    assert_type(locked()(report)(2026, kind="b"), float)
    assert_type(locked("report:{year}", ttl=5, token="{year:digest}")(report)(2026), float)
    assert_type(locked(name=lambda year: "x")(report)(year=2026), float)
    if TYPE_CHECKING:
        assert_type(locked_atomic("report:{year}", note="{year}")(report)(2026), float)
        locked(report)("2026")  # type: ignore[arg-type]
        locked("x", tll=5)  # type: ignore[call-overload]
        locked_atomic("x")(report)()  # type: ignore[call-arg]


async def test_coroutine_functions_keep_their_types() -> None:
    async def report(year: int) -> float:
        return year / 2

    assert_type(await locked(report)(2026), float)
    assert_type(await locked("report:{year}")(report)(2026), float)


def test_views_keep_their_parameters() -> None:
    @locked_view("order:{pk}")
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    assert_type(view(RequestFactory().get("/"), 7), HttpResponse)
    if TYPE_CHECKING:
        view(HttpRequest())  # type: ignore[call-arg]
        view(HttpRequest(), pk="x")  # type: ignore[arg-type]
        locked_view(view)  # type: ignore[arg-type]
        locked_view("x", fair=True)  # type: ignore[call-arg]


def test_the_fence_of_a_held_lock_is_a_number() -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    with Lock("x") as lock, pool.acquire() as member:
        assert_type(lock, Lock)
        assert_type(lock.fence, int)
        assert_type(member, PoolMember)
        assert_type(member.fence, int)
        assert lock.fence < member.fence


async def test_values_have_the_type_of_what_computes_them() -> None:
    async def acompute() -> dict[str, int]:
        return {}

    assert_type(await alocked_get_or_set("a", acompute, timeout=60), dict[str, int])
    assert_type(await alocked_get_or_set("b", lambda: 7), int)
    assert_type(await alocked_get_or_set("c", 7.5), float)


def test_values_have_the_type_of_what_computes_them_in_sync_code_too() -> None:
    def compute() -> list[str] | None:
        return ["x"]

    assert_type(locked_get_or_set("a", compute, timeout=60, using="default"), "list[str] | None")
    assert_type(locked_get_or_set("b", 7.5), float)
