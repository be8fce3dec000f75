"""Locks on several cache aliases: the list has all of them, and each has pages of its own."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.cache import cache
from django.test import Client

from django_redislock import Lock, force_release
from django_redislock.models import HeldLock
from tests.admin.pages import LIST, listed, names, told
from tests.admin.pages import url as plain_url

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("two_aliases", "_both")]


@pytest.fixture
def _both(two_aliases: None) -> None:
    """Hold ``a`` twice, with a lock of each kind, and ``b`` only with cache.lock()."""
    assert Lock("a", ttl=600).acquire()
    for name in ("a", "b"):
        assert cache.lock(name, timeout=600).acquire()  # type: ignore[attr-defined]


def url(view: str, name: str, using: str) -> str:
    return plain_url(view, HeldLock.named(name, using).key)


def post(admin: Client, keys: list[str], path: str = LIST, **data: Any) -> Any:
    return admin.post(path, {"action": "delete_selected", "_selected_action": keys, **data}, follow=True)


def held() -> list[str]:
    locks = [("a", "locks"), ("a", "default"), ("b", "default")]
    return [f"{name} {using}" for name, using in locks if Lock(name, using=using).locked()]


def test_the_list_has_all_of_them_a_column_and_a_filter(admin: Client, settings: Any) -> None:
    page = admin.get(LIST)
    assert sorted(map(str, listed(page))) == ["a", "a (default)", "b (default)"]
    assert sorted(re.findall(r'field-shown_alias">(.*?)<', page.content.decode())) == ["default", "default", "locks"]
    assert "?using=default" in page.content.decode()
    assert [lock.using for lock in listed(admin.get(LIST, {"using": "default"}))] == ["default", "default"]
    assert [lock.using for lock in listed(admin.get(LIST, {"using": "locks"}))] == [None]
    assert admin.get(f"{LIST}?using=nowhere").headers["Location"] == f"{LIST}?e=1"
    path = f"{LIST}?using=default"
    asked = post(admin, ["a"], path=path, select_across="1", index="0")  # all that the filter found
    assert asked.context["total"] == 2
    post(admin, ["a"], path=path, select_across="1", post="yes", **asked.context["fences"])
    assert held() == ["a locks"]
    settings.REDISLOCK = {"CACHE": "default"}
    assert not re.search("shown_alias|using=", admin.get(LIST).content.decode())


def test_each_has_a_page_and_a_history_and_is_force_released_there(admin: Client) -> None:
    assert admin.get(url("change", "a", "default")).context["original"].info.alias == "default"
    asked = admin.get(url("delete", "a", "default")).content.decode()
    fence = re.findall(r'name="fence" value="(\d+)"', asked)[0]
    admin.post(url("delete", "a", "default"), {"post": "yes", "fence": fence})
    assert held() == ["a locks", "b default"]
    assert len(admin.get(url("history", "a", "default")).context["action_list"]) == 1
    assert not admin.get(plain_url("history", "a")).context["action_list"]
    assert LogEntry.objects.get().object_repr == "a (default)"
    assert "Nobody holds this lock now." in admin.get(url("change", "a", "default")).content.decode()


def test_the_selected_ones_are_force_released_and_no_others(admin: Client) -> None:
    keys = [lock.key for lock in listed(admin.get(LIST)) if lock.name == "a"]
    asked = post(admin, keys)
    assert sorted(asked.context["fences"]) == ["fence:default:0", "fence:locks:0"]
    assert told(post(admin, keys, post="yes", **asked.context["fences"])) == ["2 locks were force-released."]
    assert held() == ["b default"]


@pytest.mark.parametrize("across", [False, True])
def test_a_later_holder_is_spared_whatever_the_fences_of_other_aliases(across: bool, admin: Client) -> None:
    force_release("a")
    asked = post(admin, ["a"], select_across="1", index="0").context["fences"]
    assert list(asked) == ["fence:default:0"]  # on the other alias, there was nothing to see
    assert Lock("a", ttl=600).acquire()
    keys = [lock.key for lock in listed(admin.get(LIST))]
    seen: Any = {"select_across": "1", **asked} if across else {"fence:locks:0": 0, "fence:default:0": 9 * 10**15}
    assert told(post(admin, keys, post="yes", **seen))[0] == "2 locks were force-released."
    assert held() == ["a locks"]


def test_a_lock_on_an_unlisted_alias_has_no_page_and_is_not_released(admin: Client) -> None:
    assert names(admin.get(LIST)) == ["a", "a", "b"]
    assert "doesn’t exist" in told(admin.get(url("change", "a", "nowhere"), follow=True))[0]  # noqa: RUF001
    assert told(post(admin, [HeldLock.named("a", "nowhere").key])) == ["Nobody holds these locks any more."]
