"""The list of locks, on one alias and on several; who may see them; other sites, other languages, and no Redis."""

import ast
import re
from collections.abc import Callable
from gettext import translation
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client, override_settings
from django.utils.html import strip_tags

import django_redislock
from django_redislock import Lock, Semaphore, force_release, get_lock
from django_redislock.admin import LockAdmin
from django_redislock.models import HeldLock
from tests.admin.pages import LIST, NOWHERE, listed, names, select, told, url
from tests.helpers.state import holder, put, put_member
from tests.inside import PREFIX

pytestmark = pytest.mark.django_db
DOWN = "Could not read the locks from Redis"
GETTEXT = {"_", "gettext", "ngettext"}
YES = {"post": "yes"}
SET_A_FREE = {"action": "delete_selected", "_selected_action": ["a"], **YES}
Staff = Callable[..., Client]
on_two = pytest.mark.usefixtures("both")
each_order = pytest.mark.parametrize("order", ["1", "6"])


def test_without_permissions_every_page_is_forbidden_and_redis_is_not_asked(staff: Staff, client: redis.Redis) -> None:
    user = staff()
    with override_settings(CACHES=NOWHERE):
        for path in (LIST, f"{LIST}add/", *(url(view, "a") for view in ("change", "history", "delete"))):
            assert {user.get(path).status_code, user.post(path, YES).status_code} == {403}
        assert "Redis locks" not in user.get("/admin/").content.decode()
        assert "/admin/login/" in Client().get(LIST).headers["Location"]
    put(client, "a")
    assert user.post(LIST, SET_A_FREE).status_code == 403
    careful = Client(enforce_csrf_checks=True)
    careful.force_login(User.objects.create_superuser("jo"))
    assert careful.post(url("delete", "a"), YES).status_code == 403
    assert careful.post(LIST, SET_A_FREE).status_code == 403
    assert holder(client, "a")


def test_staff_who_may_only_view_cannot_force_release_and_see_no_way_to(staff: Staff, client: redis.Redis) -> None:
    put(client, "a")
    user = staff("view_heldlock")
    page = user.get(LIST)
    assert page.context["action_form"] is None
    for shown in (page, user.get(url("change", "a"))):
        assert "orce-release" not in shown.content.decode()
    assert url("history", "a") in user.get(url("change", "a")).content.decode()
    assert user.post(url("delete", "a"), YES).status_code == 403
    user.post(LIST, SET_A_FREE)
    assert holder(client, "a")


def test_a_permit_of_a_semaphore_takes_the_permission_as_well(staff: Staff, admin: Client, monkeypatch: Any) -> None:
    permit = Semaphore("export", limit=2)
    assert permit.acquire()
    path = f"{url('delete', 'semaphore:export')}?permit={permit.fence}"
    viewer = staff("view_heldlock")
    assert "permit=" not in viewer.get(url("change", "semaphore:export")).content.decode()
    assert {viewer.get(path).status_code, viewer.post(path, YES).status_code} == {403}
    careful = Client(enforce_csrf_checks=True)
    careful.force_login(User.objects.get(username="jo"))
    assert careful.post(path, YES).status_code == 403
    own = admin.get(url("change", "semaphore:export", "own")).content.decode()
    assert f"{url('delete', 'semaphore:export', 'own')}?permit=" in own
    # of this very semaphore, too
    monkeypatch.setattr(LockAdmin, "has_delete_permission", lambda self, request, obj=None: obj is None)
    assert "permit=" not in admin.get(url("change", "semaphore:export")).content.decode()
    assert {admin.get(path).status_code, admin.post(path, YES).status_code} == {403}
    assert permit.owned()


def test_the_permission_for_each_lock_counts_for_many(admin: Client, client: redis.Redis, monkeypatch: Any) -> None:
    def allowed(self: LockAdmin, request: Any, obj: HeldLock | None = None) -> bool:
        return obj is None or obj.name.startswith("mine:")

    monkeypatch.setattr(LockAdmin, "has_delete_permission", allowed)
    for name in ("mine:1", "theirs:1"):
        put(client, name)
    for data in ({}, YES, {"select_across": "1"}, {"select_across": "1", "post": "yes"}):
        assert select(admin, "mine:1", "theirs:1", **data).status_code == 403
        assert holder(client, "mine:1")
    assert told(select(admin, "mine:1", post="yes")) == ["1 lock was force-released."]


def test_staff_who_may_only_delete_end_on_the_index(staff: Staff, client: redis.Redis) -> None:
    put(client, "a")
    user = staff("delete_heldlock")
    assert user.get(LIST).status_code == 403
    assert user.post(url("delete", "a"), YES).headers["Location"] == "/admin/"
    assert not holder(client, "a")
    with override_settings(CACHES=NOWHERE):
        response = user.get(url("delete", "a"), follow=True)
    assert told(response)[-1].startswith(DOWN)


def test_a_custom_admin_site_links_to_its_own_pages(admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    own = LIST.replace("/admin/", "/own/", 1)
    pages = [admin.get(path).content.decode() for path in (own, url("change", "a", "own"), url("delete", "a", "own"))]
    pages.append(select(admin, "a", path=own).content.decode())
    for page in pages:
        assert "/own/django_redislock/" in page
        assert "/admin/django_redislock/" not in page
    assert admin.post(url("delete", "a", "own"), YES).headers["Location"] == own


def test_without_redis_the_pages_say_so_and_nothing_is_force_released(admin: Client, retry_for: Any) -> None:
    def count() -> str:
        found = re.search(r'<(p|nav) class="paginator".*?</\1>', admin.get(LIST).content.decode(), re.S)
        assert found is not None
        return strip_tags(found[0]).strip().split("\n")[-1].strip()

    retry_for(0.1)
    assert count() == "0 locks"
    with override_settings(CACHES=NOWHERE):
        for view in ("change", "history", "delete"):
            response = admin.get(url(view, "a"), follow=True)
            assert (response.redirect_chain, response.status_code) == ([(LIST, 302)], 200)
            assert [text[: len(DOWN)] for text in told(response)] == [DOWN]
        assert count() == "unknown"
        assert "total" not in strip_tags(admin.get(LIST, {"q": "a"}).content.decode())
        for data in ({}, YES):
            assert [text[: len(DOWN)] for text in told(select(admin, "a", **data))] == [DOWN]
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("de", ["Redis-Sperren", "gehalten seit", "Freigabe erzwingen …", "2 h 5 min", "Warteschlange"]),
        ("zh-hans", ["Redis 锁", "剩余租期", "强制释放…", "2 小时 5 分", "队列"]),
    ],
)
def test_pages_are_in_the_users_language(language: str, words: Any, admin: Client, client: Any, settings: Any) -> None:
    settings.LANGUAGE_CODE, settings.USE_THOUSAND_SEPARATOR = language, True
    put(client, "a", since=7500)
    fence = get_lock("a").fence  # type: ignore[union-attr]
    pages = [admin.get(path).content.decode() for path in (LIST, url("change", "a"))]
    assert [word for word in words if word.lower() not in "".join(pages).lower()] == []
    assert [page.count(f">{fence}<") for page in pages] == [1, 1]  # for people to copy


def test_pages_and_columns_to_sort_by_and_odd_parameters_break_nothing(admin: Client, client: redis.Redis) -> None:
    for name, owner in {"a": "x", "b": "y", "c": "x"}.items():
        put(client, name, owner=owner)
    assert names(admin.get(LIST, {"o": "-2.-1"})) == ["b", "c", "a"]
    for query in ("o=99", "o=x", "o=", "q=%00", "q=%22", "o=-2.5.1.-6.3.4"):
        assert admin.get(f"{LIST}?{query}").status_code == 200
    assert admin.get(f"{LIST}?owner=x").headers["Location"] == f"{LIST}?e=1"
    for number in range(98):
        put(client, f"order:{number:03}")
    page = admin.get(LIST, {"p": "99"})
    assert (page.context["cl"].page_num, names(page)) == (2, ["order:097"])
    assert admin.get(LIST, {"p": "x"}).context["cl"].page_num == 1
    assert len(listed(admin.get(LIST, {"all": ""}))) == 101


@pytest.mark.usefixtures("crowded")
@each_order
def test_the_list_shows_who_waits_for_any_member_beside_those_who_wait_for_this_one(order: str, admin: Client) -> None:
    page, members = admin.get(LIST, {"o": order}), ["pool:accounts:alice", "pool:accounts:bob"]
    assert names(page) == ["a", *(members if order == "1" else reversed(members))]
    cells = re.findall(r'field-shown_waiters">(.*?)<', page.content.decode())
    assert sorted(cells) == ["0", "0, and 103 for any member of the pool", "2, and 103 for any member of the pool"]


@each_order
def test_the_queues_of_many_pools_cost_no_round_trip(order: str, admin: Client, client: Any, trips: list[int]) -> None:
    for number in range(50):
        put_member(client, str(number), "alice", ttl=None if number == 7 else 60)
        client.zadd(f"{PREFIX}queue:pool:{number}:", {"t" * 22: 1})
    trips.clear()
    rows = listed(admin.get(LIST, {"o": order, "all": ""}))
    assert (len(rows), {lock.info.pool_waiters for lock in rows}) == (50, {1})
    assert len(trips) <= 3


@pytest.fixture
def both(two_aliases: None) -> None:
    """Hold ``a`` twice, with a lock of each kind, and ``b`` only with cache.lock()."""
    assert Lock("a", ttl=600).acquire()
    for name in ("a", "b"):
        assert cache.lock(name, timeout=600).acquire()  # type: ignore[attr-defined]


def held() -> list[str]:
    locks = [("a", "locks"), ("a", "default"), ("b", "default")]
    return [f"{name} {using}" for name, using in locks if Lock(name, using=using).locked()]


@on_two
def test_the_list_has_the_locks_of_all_aliases_a_column_and_a_filter(admin: Client, settings: Any) -> None:
    page = admin.get(LIST)
    assert sorted(map(str, listed(page))) == ["a", "a (default)", "b (default)"]
    assert sorted(re.findall(r'field-shown_alias">(.*?)<', page.content.decode())) == ["default", "default", "locks"]
    assert "?using=default" in page.content.decode()
    assert [lock.using for lock in listed(admin.get(LIST, {"using": "default"}))] == ["default", "default"]
    assert [lock.using for lock in listed(admin.get(LIST, {"using": "locks"}))] == [None]
    assert admin.get(f"{LIST}?using=nowhere").headers["Location"] == f"{LIST}?e=1"
    path = f"{LIST}?using=default"
    asked = select(admin, "a", path=path, select_across="1", index="0")  # all that the filter found
    assert asked.context["total"] == 2
    select(admin, "a", path=path, select_across="1", post="yes", **asked.context["fences"])
    assert held() == ["a locks"]
    settings.REDISLOCK = {"CACHE": "default"}
    assert not re.search("shown_alias|using=", admin.get(LIST).content.decode())


@on_two
def test_while_the_cluster_of_one_alias_is_away_the_locks_of_the_other_can_be_listed(admin: Any, settings: Any) -> None:
    away = {"LOCATION": "redis://127.0.0.1:1/0", "OPTIONS": {"CLIENT_CLASS": "tests.helpers.ways.ClusterClient"}}
    settings.CACHES = {"default": {**settings.CACHES["default"], **away}, "locks": settings.CACHES["locks"]}
    page = admin.get(LIST).content.decode()
    assert "Could not read the locks from Redis" in page
    assert "?using=locks" in page
    assert names(admin.get(LIST, {"using": "locks"})) == ["a"]


@on_two
def test_each_of_two_locks_of_a_name_has_a_page_and_a_history_and_is_force_released_there(admin: Client) -> None:
    assert admin.get(url("change", "a", using="default")).context["original"].info.alias == "default"
    asked = admin.get(url("delete", "a", using="default")).context["fences"]
    assert list(asked) == ["fence:default:0"]
    admin.post(url("delete", "a", using="default"), {"post": "yes", "select_across": "1", **asked})
    assert held() == ["a locks", "b default"]
    assert len(admin.get(url("history", "a", using="default")).context["action_list"]) == 1
    assert not admin.get(url("history", "a")).context["action_list"]
    assert LogEntry.objects.get().object_repr == "a (default)"
    assert "Nobody holds this lock now." in admin.get(url("change", "a", using="default")).content.decode()


@on_two
def test_the_selected_ones_are_force_released_and_none_on_an_unlisted_alias(admin: Client) -> None:
    keys = [lock.key for lock in listed(admin.get(LIST)) if lock.name == "a"]
    asked = select(admin, *keys)
    assert sorted(asked.context["fences"]) == ["fence:default:0", "fence:locks:0"]
    assert told(select(admin, *keys, post="yes", **asked.context["fences"])) == ["2 locks were force-released."]
    assert held() == ["b default"]
    assert "doesn’t exist" in told(admin.get(url("change", "a", using="nowhere"), follow=True))[0]  # noqa: RUF001
    assert told(select(admin, HeldLock.named("a", "nowhere").key)) == ["Nobody holds these locks any more."]


@on_two
@pytest.mark.parametrize("across", [False, True])
def test_a_later_holder_is_spared_whatever_the_fences_of_other_aliases(across: bool, admin: Client) -> None:
    force_release("a")
    asked = select(admin, "a", select_across="1", index="0").context["fences"]
    assert list(asked) == ["fence:default:0"]  # on the other alias, there was nothing to see
    assert Lock("a", ttl=600).acquire()
    keys = [lock.key for lock in listed(admin.get(LIST))]
    seen: Any = {"select_across": "1", **asked} if across else {"fence:locks:0": 0, "fence:default:0": 9 * 10**15}
    assert told(select(admin, *keys, post="yes", **seen))[0] == "2 locks were force-released."
    assert held() == ["a locks"]


PACKAGE = Path(django_redislock.__file__).parent


def messages() -> set[str]:
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in GETTEXT:
                found |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()  # type: ignore[arg-type]
    for path in (PACKAGE / "templates").rglob("*.html"):
        text = path.read_text("utf-8")
        found.update(re.findall(r'{% translate "(.*?)" %}', text))
        for block in re.findall(r"{% blocktranslate.*?%}(.*?){% (?:plural|endblocktranslate) %}", text):
            found.add(re.sub(r"{{ (\w+) }}", r"%(\1)s", block))
    return found


@pytest.mark.parametrize("language", ["de", "zh_Hans"])
def test_every_message_is_translated(language: str) -> None:
    catalogue: Any = translation("django", PACKAGE / "locale", [language])
    known = {key[0] if isinstance(key, tuple) else key for key, text in catalogue._catalog.items() if text}
    assert len(messages()) > 50
    assert messages() - known == set()
