"""What type checkers know of the package: mypy, which checks this file too, fails where one of these is wrong."""

import sys
from inspect import getmembers, isclass, isfunction
from typing import TYPE_CHECKING, get_type_hints

from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

import django_redislock
from django_redislock import (
    Lock,
    LockPool,
    LockSet,
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
    assert_type(locked(["report:{year}", "{kind}"])(report)(2026), float)
    if TYPE_CHECKING:
        assert_type(locked_atomic("report:{year}", note="{year}")(report)(2026), float)
        assert_type(locked_atomic(["report:{year}", "{kind}"])(report)(2026), float)
        with locked_atomic("a") as lock, locked_atomic(["a", "b"]) as locks:
            assert_type(lock, Lock)
            assert_type(locks, LockSet)
        locked(report)("2026")  # type: ignore[arg-type]
        locked("x", tll=5)  # type: ignore[call-overload]
        locked_atomic("x")(report)()  # type: ignore[call-arg]


async def test_a_block_knows_its_lock() -> None:
    async with Lock("a") as lock, LockSet("b", "c") as locks:
        assert_type(lock, Lock)
        assert_type(locks, LockSet)


def test_views_keep_their_parameters() -> None:
    @locked_view("order:{pk}")
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    assert_type(view(RequestFactory().get("/"), 7), HttpResponse)
    if TYPE_CHECKING:
        view(HttpRequest(), pk="x")  # type: ignore[arg-type]
        locked_view(view)  # type: ignore[arg-type]


def test_the_fence_of_a_held_lock_is_a_number() -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    with Lock("x") as lock, pool.acquire() as member:
        assert_type(lock, Lock)
        assert_type(lock.fence, int)
        assert_type(member, PoolMember)
        assert_type(member.fence, int)
    assert_type(locked_get_or_set("b", 7.5), float)


async def test_coroutine_functions_and_values_have_the_type_of_what_computes_them() -> None:
    @locked("report:{year}")
    async def report(year: int) -> dict[str, int]:
        return {}

    assert_type(await report(2026), dict[str, int])
    assert_type(await alocked_get_or_set("b", lambda: 7), int)
    assert_type(await alocked_get_or_set("c", 7.5), float)


def test_tools_can_evaluate_the_annotations_while_the_site_runs() -> None:
    public = [getattr(django_redislock, name) for name in django_redislock.__all__]
    methods = [method for kind in filter(isclass, public) for _, method in getmembers(kind, isfunction)]
    for each in (*filter(isclass, public), *filter(isfunction, public), *methods):
        assert get_type_hints(each) is not None, each
