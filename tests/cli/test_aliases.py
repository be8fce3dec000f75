"""Locks on several cache aliases: every one of them is listed and cleared."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.cache import cache

from django_redislock import Lock, LockPool
from tests.cli.conftest import NOWHERE, fails, hold, redislocks

pytestmark = pytest.mark.usefixtures("two_aliases")


@pytest.fixture
def _both(two_aliases: None) -> None:
    """Hold ``x`` twice, with a lock of each kind, and ``order:1`` and ``order:2`` once each."""
    hold("x")
    hold("order:1")
    for name in ("x", "order:2"):
        assert cache.lock(name, timeout=60).acquire()  # type: ignore[attr-defined]


def shown(*arguments: str) -> list[list[str]]:
    """The columns for name and alias of a table."""
    head, *rows = redislocks("list", *arguments).splitlines()
    assert head.split()[:3] == ["NAME", "ALIAS", "OWNER"]
    return [row.split()[:2] for row in rows]


@pytest.mark.usefixtures("_both")
def test_the_list_has_the_locks_of_all_aliases_and_says_which() -> None:
    assert shown() == [["order:1", "locks"], ["order:2", "default"], ["x", "locks"], ["x", "default"]]
    assert shown("x") == [["x", "locks"], ["x", "default"]]
    locks = json.loads(redislocks("list", "x", "--format=json"))
    assert [lock["alias"] for lock in locks] == ["locks", "default"]
    head, *rows = redislocks("list", "--using=default").splitlines()
    assert [row.split()[0] for row in rows] == ["order:2", "x"]
    assert "ALIAS" not in head


SEVERAL = r"several cache aliases \(locks, default\): give --using"


@pytest.mark.usefixtures("_both")
def test_show_finds_a_lock_on_any_alias_and_asks_which_where_there_are_two() -> None:
    assert redislocks("show", "order:2").startswith("NAME        order:2\n")
    fails(2, SEVERAL, "show", "x")
    assert redislocks("show", "x", "--using=default").startswith("NAME        x\n")
    fails(1, r"^Not held: y$", "show", "y")


def test_pools_of_all_aliases_are_listed_and_found() -> None:
    for pool, alias in (("a", "locks"), ("b", "default"), ("a", "default")):
        LockPool(pool, using=alias).extend(["x"])
    head, *rows = [line.split() for line in redislocks("pool").splitlines()]
    assert head[:2] == ["POOL", "ALIAS"]
    assert [row[:2] for row in rows] == [["a", "locks"], ["a", "default"], ["b", "default"]]
    assert redislocks("pool", "b").startswith("POOL     b\n")
    assert redislocks("pool", "a", "--using=default").startswith("POOL     a\n")
    fails(2, SEVERAL, "pool", "a")


@pytest.mark.usefixtures("_both")
def test_clear_releases_the_locks_of_all_aliases_or_of_one_and_says_which() -> None:
    assert "locks" in redislocks("clear", "--match=order:*", "--dry-run")
    assert redislocks("clear", "x", "--using=default", "--noinput").startswith("Force-released x, held for")
    assert [Lock("x", using=alias).locked() for alias in ("locks", "default")] == [True, False]
    hold("x", using="default")
    printed = redislocks("clear", "x", "order:2", "--noinput").splitlines()
    told = ["Force-released x (locks)", "Force-released x (default)", "Force-released order:2 (default)"]
    assert [line.split(",")[0] for line in printed] == told
    assert redislocks("clear", "--all", "--noinput").startswith("Force-released order:1 (locks)")
    assert redislocks("list") == "No locks are held.\n"


@pytest.mark.parametrize("arguments", [["list"], ["show", "x"], ["pool", "x"], ["clear", "x", "--noinput"]])
def test_one_alias_that_cannot_be_reached_leads_to_using(arguments: list[str], settings: Any) -> None:
    hold("x", using="default")
    settings.CACHES = {**settings.CACHES, "locks": {**NOWHERE["default"]}}
    settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 0.1}
    fails(69, r"cache alias 'locks'.* \(With --using, only one alias is asked\.\)$", *arguments)
    assert Lock("x", using="default").locked()
    fails(69, r"^((?!--using)[^\n])*$", "list", "--using=locks")
    assert redislocks("list", "--using=default").startswith("NAME")


def test_every_alias_in_memory_mode_is_reported(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "memory"}
    settings.CACHES = {**settings.CACHES, "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    errors = io.StringIO()
    redislocks("list", stderr=errors)
    assert errors.getvalue().count("is not Redis") == 1
