"""Malicious names, notes, patterns and values: none of them can control the terminal."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest
import redis
from django.core.management import CommandError

from django_redislock import Lock, LockPool, get_lock, lock_name
from django_redislock.cli.watch import on_screen
from tests.cli.conftest import Eventually, redislocks
from tests.helpers.actors import GENEROUS, Other

PREFIX = "redislock{0}:"
NASTY = [
    "a\nb event=lost name=x",
    "a\r\nSet-Cookie: x=y",
    "a\0b",
    "\u202egpj.exe",
    "\u200f\u2066",
    "\x1b[2J\x1b]0;owned\x07",
    "\u2028\u2029\x85",
    "<script>alert(1)</script>",
    "\U0001d56c\U0010ffff",
]
each_nasty = pytest.mark.parametrize("text", NASTY, ids=ascii)


def harmless(printed: str) -> bool:
    return all(line.isprintable() for line in printed.split("\n"))


@each_nasty
def test_a_note_is_shown_harmlessly_and_as_it_is_to_programs(
    text: str, other: Callable[[], Other], eventually: Eventually
) -> None:
    def wait() -> None:
        with Lock("a", note=text):
            pass

    with Lock("a", note=text):
        waiting = other().start(wait)
        eventually(lambda: (info := get_lock("a")) and info.waiters == 1)
        assert harmless(redislocks("show", "a"))
        told = json.loads(redislocks("show", "a", "--format", "json"))
        assert told["note"] == told["queue"][0]["note"] == text
    waiting.result(GENEROUS)


@each_nasty
def test_a_purpose_is_shown_harmlessly_on_one_line(text: str) -> None:
    with Lock("a", purpose=text):
        printed = redislocks("list")
    assert harmless(printed)
    assert len(printed.splitlines()) == 2


@each_nasty
def test_a_member_of_a_pool_is_shown_harmlessly(text: str) -> None:
    pool = LockPool("accounts")
    pool.assign([text])
    with pool.acquire(blocking_timeout=0):
        printed = redislocks("pool", "accounts")
    assert harmless(printed)
    assert lock_name("pool", "accounts", text)[:13] in printed


def test_foreign_values_cannot_control_the_terminal(client: redis.Redis) -> None:
    names = ["a\u202eb", "\u2066x", "soft\u00adhyphen", "\u2028next"]
    for name in names:
        value = f"\x1b[2J{'x' * 22} c c 1 1 - \x1b[2Jowner\u202e\r\n\x07note"
        client.set(f"{PREFIX}lock:{name}", value, px=60_000)
        client.zadd(f"{PREFIX}index", {name: 9e15})
    listed = redislocks("list")
    assert len(listed.splitlines()) == 1 + len(names)
    assert harmless(listed + "".join(redislocks("show", name) for name in names))
    assert "\x1b" not in re.sub(r"\x1b\[(H|J|K|\?7[lh])", "", on_screen(listed))
    text = redislocks("list", "--format", "json")
    assert text.isascii()
    assert sorted(lock["name"] for lock in json.loads(text)) == sorted(names)


@pytest.mark.parametrize("command", [["show"], ["clear", "--noinput"], ["run"], ["pool"]], ids=" ".join)
@pytest.mark.parametrize("name", ["a\x1b[2J", "x" * 600, "", "\ud800", "a\nb"], ids=lambda name: ascii(name)[:20])
def test_an_invalid_name_is_refused_with_a_short_error(command: list[str], name: str) -> None:
    with pytest.raises(CommandError) as caught:
        redislocks(*command, name, *(["--", "true"] if command == ["run"] else []))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


SLOW = ["a*" * 250 + "b", "*a" * 250 + "b", "?*" * 250 + "b", "*" * 500 + "b", "[a" * 250, "*" + "[a-z]*" * 80 + "!"]


@pytest.mark.parametrize("pattern", SLOW, ids=lambda pattern: pattern[:12])
def test_a_pattern_that_would_try_every_way_is_matched_at_once(pattern: str, client: redis.Redis) -> None:
    names = [lock_name("a" * 500, number) for number in range(50)]
    client.zadd(f"{PREFIX}index", dict.fromkeys(names, 9e15))
    start = time.process_time()
    assert redislocks("list", pattern) == f"No held lock matches {pattern}.\n"
    redislocks("clear", "--match", pattern, "--noinput")
    assert time.process_time() - start < 5
