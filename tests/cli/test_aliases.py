"""Locks on several cache aliases: every one of them is listed and cleared."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.cache import cache

from django_redislock import Lock, LockPool
from tests.cli.conftest import NOWHERE, fails, hold, redislocks

pytestmark = pytest.mark.usefixtures("two_aliases")
SEVERAL = r"several cache aliases \(locks, default\): give --using"


def test_the_locks_of_all_aliases_are_listed_shown_and_cleared() -> None:
    hold("x", "order:1")
    for name in ("x", "order:2"):
        assert cache.lock(name, timeout=60).acquire()  # type: ignore[attr-defined]
    head, *rows = [line.split() for line in redislocks("list").splitlines()]
    assert head[:3] == ["NAME", "ALIAS", "OWNER"]
    held = [["order:1", "locks"], ["order:2", "default"], ["x", "locks"], ["x", "default"]]
    assert [row[:2] for row in rows] == held
    assert [lock["alias"] for lock in json.loads(redislocks("list", "x", "--format=json"))] == ["locks", "default"]
    head, *rows = [line.split() for line in redislocks("list", "--using=default").splitlines()]
    assert ("ALIAS" not in head, [row[0] for row in rows]) == (True, ["order:2", "x"])

    assert redislocks("show", "order:2").startswith("NAME        order:2\n")
    fails(2, SEVERAL, "show", "x")
    assert redislocks("show", "x", "--using=default").startswith("NAME        x\n")
    fails(1, r"^Not held: y$", "show", "y")

    assert "locks" in redislocks("clear", "--match=order:*", "--dry-run")
    assert redislocks("clear", "x", "--using=default", "--noinput").startswith("Force-released x, held for")
    assert [Lock("x", using=alias).locked() for alias in ("locks", "default")] == [True, False]
    hold("x", using="default")
    printed = redislocks("clear", "x", "order:2", "--noinput").splitlines()
    told = ["Force-released x (locks)", "Force-released x (default)", "Force-released order:2 (default)"]
    assert [line.split(",")[0] for line in printed] == told
    assert redislocks("clear", "--all", "--noinput").startswith("Force-released order:1 (locks)")
    assert redislocks("list") == "No locks are held.\n"


def test_pools_of_all_aliases_are_listed_and_found() -> None:
    for pool, alias in (("a", "locks"), ("b", "default"), ("a", "default")):
        LockPool(pool, using=alias).extend(["x"])
    head, *rows = [line.split() for line in redislocks("pool").splitlines()]
    assert head[:2] == ["POOL", "ALIAS"]
    assert [row[:2] for row in rows] == [["a", "locks"], ["a", "default"], ["b", "default"]]
    assert redislocks("pool", "b").startswith("POOL     b\n")
    assert redislocks("pool", "a", "--using=default").startswith("POOL     a\n")
    fails(2, SEVERAL, "pool", "a")


@pytest.mark.parametrize("arguments", [["list"], ["show", "x"], ["pool", "x"], ["clear", "x", "--noinput"]])
def test_one_alias_that_cannot_be_reached_leads_to_using(arguments: list[str], settings: Any) -> None:
    hold("x", using="default")
    settings.CACHES = {**settings.CACHES, "locks": {**NOWHERE["default"]}}
    settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 0.1}
    fails(69, r"cache alias 'locks'.* \(With --using, only one alias is asked\.\)$", *arguments)
    assert redislocks("list", "--using=default").startswith("NAME")
