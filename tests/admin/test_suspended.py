"""Suspended locks in the admin."""

from __future__ import annotations

import pytest
from django.test import Client

from django_redislock import Lock

from .pages import LIST, url

pytestmark = pytest.mark.django_db


def test_list_and_page_say_who_has_suspended_it_and_why(admin: Client) -> None:
    Lock("a").suspend(3600, note="rate limited")
    assert "nobody (suspended by " in admin.get(LIST).content.decode()
    assert "nobody (suspended by " in admin.get(f"{LIST}?q=suspended").content.decode()
    page = admin.get(url("change", "a")).content.decode()
    assert "nobody acquires it until then" in page
    assert page.count("rate limited") == 1


def test_the_page_of_a_held_lock_says_that_it_will_be(admin: Client) -> None:
    lock = Lock("a", note="of the holder")
    lock.acquire()
    for note in ("", "rate limited"):
        lock.suspend(3600, note=note)
        page = admin.get(url("change", "a")).content.decode()
        assert "As soon as nobody holds it: suspended by " in page
        assert "of the holder" in page
        assert ("rate limited" in page) == bool(note)


def test_a_force_release_ends_it(admin: Client) -> None:
    Lock("a").suspend(3600)
    admin.post(url("delete", "a"), {"post": "yes"})
    assert not Lock("a").locked()
