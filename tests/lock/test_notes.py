"""The ``note`` that is kept with a lock and with a place in its queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.test import Client

from django_redislock import Lock, get_lock, list_locks
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import LOCK, NAME, queued

from .texts import ENCODABLE


@pytest.mark.parametrize("note", ["order 42", "\n", " ", "x" * 1000, "\u00fc" * 500, *ENCODABLE], ids=ascii)
def test_the_notes_of_holder_and_waiters_are_kept_as_they_are(
    note: str, crowd: Crowd, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, note=note)
    me(lock, "acquire")
    me(lock, "extend", 5)
    me(lock, "reacquire")
    waiting = you.start(Lock(NAME, note=note), "acquire")
    eventually(lambda: queued(client))
    info = me(lock, "info")
    assert (info.note, info.queue[0].note) == (note, note)
    assert "\n" not in info.owner + info.queue[0].owner
    assert [one.note for one in list_locks()] == [note]
    me(lock, "release")
    assert waiting.result(GENEROUS)
    assert (handed := get_lock(NAME)) is not None
    assert handed.note == note


def test_without_a_note_nothing_is_kept(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    assert b"\n" not in (client.get(LOCK) or b"\n")
    assert me(lock, "info").note == ""


@pytest.mark.django_db
def test_a_search_does_not_take_the_note_for_the_owner(admin_client: Client) -> None:
    with Lock(NAME, note="unheard-of"):
        pages = [
            admin_client.get("/admin/django_redislock/heldlock/", {"q": words}).content.decode()
            for words in (NAME, "unheard-of")
        ]
    assert [NAME in page.split("<tbody")[-1] for page in pages] == [True, False]
