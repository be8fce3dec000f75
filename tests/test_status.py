"""``status()``, and the ``note`` that is kept with a lock."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.management import call_command

from django_redislock import FairLock, Lock, LockStatus, get_lock, list_locks, locked
from django_redislock.listing import read_page

from .actors import GENEROUS, KEYS, NAME, Actor, Other, queued
from .processes import Worker

Eventually = Callable[..., Any]
Start = Callable[..., Worker]
NASTY = "<b>&\"'\\ \x00\x1b[31m\u202e line\nbreak\r\n\ttab  end \u00fc\U0001f512 "


def test_a_status_says_who_has_the_lock(kind: type[Lock], other: Callable[[], Other], client: redis.Redis) -> None:
    lock, thread = kind(NAME), other()
    assert lock.status() is LockStatus.FREE
    lock.acquire()
    assert lock.status() is LockStatus.LOCKED
    assert kind(NAME).status() is LockStatus.UNAVAILABLE  # another object holds nothing
    assert kind(NAME, token=lock.token).status() is LockStatus.LOCKED
    assert thread(lock.status) is LockStatus.UNAVAILABLE
    client.persist(KEYS.lock)
    assert lock.status() is LockStatus.ERROR
    client.pexpire(KEYS.lock, 30_000)
    lock.release()
    assert lock.status() is LockStatus.FREE


async def test_a_status_for_coroutines(kind: type[Lock], actor: Callable[[], Actor]) -> None:
    lock, task = kind(NAME), actor()
    assert await lock.astatus() is LockStatus.FREE
    await lock.aacquire()
    assert await lock.astatus() is LockStatus.LOCKED
    assert await task(lock.astatus) is LockStatus.UNAVAILABLE
    await lock.arelease()


def test_a_status_is_one_round_trip(client: redis.Redis) -> None:
    lock = Lock(NAME)
    lock.status()
    client.config_resetstat()
    lock.status()
    stats: Any = client.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 1
    assert "cmdstat_eval" not in stats


def test_a_lock_that_was_lost_is_not_locked_here(client: redis.Redis, other: Callable[[], Other]) -> None:
    lock = Lock(NAME)
    lock.acquire()
    client.delete(KEYS.lock)
    assert lock.status() is LockStatus.FREE
    other()(Lock(NAME).acquire)
    assert lock.status() is LockStatus.UNAVAILABLE


def test_what_others_wrote_without_an_expiry_is_an_error(client: redis.Redis) -> None:
    client.set(KEYS.lock, "of somebody else")
    assert Lock(NAME).status() is LockStatus.ERROR
    client.set(KEYS.lock, "of somebody else", px=30_000)
    assert Lock(NAME).status() is LockStatus.UNAVAILABLE


# -- notes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("note", ["order 42", NASTY, "\n", " ", "x" * 1000, "\u00fc" * 500], ids=repr)
def test_a_note_is_kept_as_it_is(kind: type[Lock], note: str) -> None:
    with kind(NAME, note=note) as lock:
        info, plain = lock.info(), get_lock(NAME)
        assert info is not None
        assert plain is not None
        assert info.note == plain.note == note
        assert "\n" not in info.owner
        assert [one.note for one in list_locks()] == [note]


def test_without_a_note_nothing_is_kept(client: redis.Redis) -> None:
    with Lock(NAME) as lock:
        value = client.get(KEYS.lock)
        assert isinstance(value, bytes)
        assert b"\n" not in value
        info = lock.info()
        assert info is not None
        assert info.note == ""


WRONG: list[tuple[Any, type[Exception], str]] = [
    (None, TypeError, "note must be a str, not None"),
    (b"note", TypeError, "note must be a str, not b'note'"),
    (7, TypeError, "not 7"),
    ("x" * 1001, ValueError, "note has 1001 bytes; at most 1000"),
    ("\u00fc" * 501, ValueError, "note has 1002 bytes"),
    ("\ud800", ValueError, "cannot be encoded"),
]


@pytest.mark.parametrize(("note", "error", "text"), WRONG)
def test_what_cannot_be_a_note_is_refused(note: Any, error: type[Exception], text: str) -> None:
    for make in (Lock, FairLock, locked):
        with pytest.raises(error, match=text):
            make(NAME, note=note)


def test_the_notes_of_waiters_go_with_them(
    kind: type[Lock], other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    thread, waiter = other(), kind(NAME, note=NASTY)
    with kind(NAME) as lock:
        waiting = thread.start(lambda: waiter.acquire(blocking_timeout=GENEROUS))
        eventually(lambda: queued(client))
        info = lock.info()
        assert info is not None
        ((note, owner),) = [(one.note, one.owner) for one in info.queue]
        assert note == NASTY
        assert "\n" not in owner
    assert waiting.result(GENEROUS)
    handed = get_lock(NAME)
    assert handed is not None
    assert handed.note == NASTY


def test_a_renewed_and_an_extended_lock_keeps_its_note() -> None:
    with Lock(NAME, note=NASTY) as lock:
        lock.extend(5)
        lock.reacquire()
        info = lock.info()
        assert info is not None
        assert info.note == NASTY


def test_a_search_does_not_take_the_note_for_the_owner() -> None:
    with Lock(NAME, note="unheard-of"):
        assert read_page(words=["unheard-of"]).matching == 0
        (row,) = read_page(order=["owner"]).locks
        assert row.note == "unheard-of"


def command(*arguments: str) -> str:
    out = io.StringIO()
    call_command("redislocks", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_shows_notes(other: Callable[[], Other], client: redis.Redis, eventually: Eventually) -> None:
    thread = other()
    with Lock(NAME, note=NASTY):
        waiting = thread.start(lambda: Lock(NAME, note="of a waiter").acquire(blocking_timeout=GENEROUS))
        eventually(lambda: queued(client))
        (listed,) = json.loads(command("list", "--format", "json"))
        shown = json.loads(command("show", NAME, "--format", "json"))
        text = command("show", NAME)
    assert listed["note"] == shown["note"] == NASTY
    assert [one["note"] for one in shown["queue"]] == ["of a waiter"]
    assert f"NOTE        {NASTY!r}" in text
    assert "of a waiter" in text
    assert "\x1b" not in text
    assert waiting.result(GENEROUS)


def test_the_command_has_no_place_for_notes_that_there_are_not(
    other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    with Lock(NAME):
        waiting = other().start(lambda: Lock(NAME).acquire(blocking_timeout=GENEROUS))
        eventually(lambda: queued(client))
        assert "NOTE" not in command("show", NAME)
    assert waiting.result(GENEROUS)
