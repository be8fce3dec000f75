"""Suspended locks on the command line: who has suspended them, and why."""

from __future__ import annotations

import json
import os
import re

import redis

from django_redislock import Lock
from tests.cli.conftest import hold, redislocks
from tests.inside import PREFIX

BY = rf"\S+:{os.getpid()}:MainThread"


def test_list_says_that_nobody_holds_it_and_why() -> None:
    hold("a")
    assert "NOTE" not in redislocks("list")
    Lock("order:42").suspend(3600, note="rate limited")
    head, first, second = redislocks("list").splitlines()
    assert head.split()[-1] == "NOTE"
    assert first.startswith("a ")
    assert re.match(rf"order:42  nobody \(suspended by {BY}\) .* (1 h 0|59 min 5\d s).* rate limited$", second)


def test_json_shows_the_suspension() -> None:
    Lock("order:42").suspend(3600, note="rate limited")
    hold("held")
    held, suspended = json.loads(redislocks("list", format="json"))
    assert (held["held"], held["suspension"]) == (True, None)
    assert (suspended["held"], suspended["note"], suspended["suspension"]["note"]) == (False, *["rate limited"] * 2)
    assert re.fullmatch(BY, suspended["suspension"]["owner"])
    assert 3500 < suspended["suspension"]["left"] <= 3600


def test_a_suspension_that_never_ends_is_no_number_in_json(client: redis.Redis) -> None:
    Lock("order:42").suspend(3600)
    client.persist(f"{PREFIX}lock:order:42")
    printed = redislocks("list", format="json")
    assert "Infinity" not in printed  # not valid JSON
    assert json.loads(printed)[0]["suspension"]["left"] is None


def test_show_says_so_while_somebody_holds_it() -> None:
    token = hold("order:42")
    assert "SUSPENDED" not in redislocks("show", "order:42")
    for note, shown in (("", ""), ("rate limited", ": rate limited")):
        Lock("order:42").suspend(3600, note=note)
        said = rf"SUSPENDED   as soon as nobody holds it, for another (1 h 0 min|59 min 5\d s), by {BY}{shown}\n"
        assert re.search(said, redislocks("show", "order:42"))
    Lock("order:42", token=token).release()
    text = redislocks("show", "order:42")
    assert re.search(rf"OWNER       nobody \(suspended by {BY}\)\n", text)
    assert "NOTE        rate limited\n" in text
    assert "SUSPENDED" not in text


def test_clear_ends_it() -> None:
    Lock("order:42").suspend(3600)
    assert "by nobody (suspended by" in redislocks("clear", "order:42", "--noinput")
    assert not Lock("order:42").locked()
