"""The admin's pages as the server makes them; tests/test_admin_browser.py looks at them through a browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client, override_settings
from django.urls import reverse

from django_redislock import (
    Lock,
    LockNotAcquired,
    LockPool,
    LockStatus,
    LockUnavailable,
    force_release,
    get_lock,
    lock_force_released,
)
from django_redislock.admin import LockAdmin
from django_redislock.connection import Backend
from django_redislock.models import HeldLock

from .actors import GENEROUS, Ghost, Other, holder, put, server_time
from .processes import ROOT

pytestmark = pytest.mark.django_db

LIST = "/admin/django_redislock/heldlock/"
ODD_NAMES = [
    "order:42",
    "a/b/../c",
    ".",
    "..",
    "a_3Ab",
    "%2F",
    " ",
    " blank ",
    "?q=1&x#y",
    "add",
    "quotes\"'`",
    "back\\slash",
    "<b>&amp;</b>",
    "größe:ключ:鍵:🔒",
    "order:\u202e42",
    "x" * 512,
    "+;@=$,[]",
    "history/",
]
NOWHERE = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}


@pytest.fixture
def admin() -> Client:
    return login(User.objects.create_superuser("jo"))


@pytest.fixture
def staff() -> Callable[..., Client]:
    """A member of staff with these permissions and no others."""

    def staff(*permissions: str) -> Client:
        user = User.objects.create_user("sam", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        return login(user)

    return staff


def login(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def url(view: str, name: str, site: str = "admin") -> str:
    """The address of a page of the lock, as the admin's templates make it."""
    return reverse(f"{site}:django_redislock_heldlock_{view}", args=[quote(HeldLock.named(name).key)])


def told(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def select(admin: Client, *names: str, path: str = LIST, **data: Any) -> Any:
    keys = [HeldLock.named(name).key for name in names]
    data = {"action": "delete_selected", "_selected_action": keys, **data}
    return admin.post(path, data, follow=True)


# -- the model --------------------------------------------------------------------------------------------------------


def test_there_is_no_table_and_the_database_is_not_asked(django_assert_num_queries: Any) -> None:
    rows = HeldLock.objects.all()
    with django_assert_num_queries(0):
        assert list(rows) == []
        assert not HeldLock._base_manager.exists()


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_dumpdata_finds_nothing_to_dump(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Lock("a").acquire()
    call_command("dumpdata", "django_redislock", *options)
    assert capsys.readouterr().out.strip() == "[]"


def test_migrations_and_model_agree() -> None:
    call_command("makemigrations", "--check", "--dry-run")


def test_view_and_delete_are_the_permissions() -> None:
    found = Permission.objects.filter(content_type__app_label="django_redislock").values_list("codename", flat=True)
    assert set(found) == {"view_heldlock", "delete_heldlock"}


BARE = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_redislock"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}},
)
django.setup()
from django.core.management import call_command
call_command("check")
call_command("migrate", verbosity=0)
call_command("makemigrations", "--check", verbosity=0)
import sys
assert "django.contrib.admin" not in sys.modules
assert "django.contrib.contenttypes.models" not in sys.modules
"""


def test_the_app_works_where_neither_admin_nor_auth_nor_contenttypes_are_installed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    subprocess.run([sys.executable, "-W", "error", "-c", BARE], check=True, env=environment, cwd=ROOT, timeout=60)


# -- the list ---------------------------------------------------------------------------------------------------------


def test_a_page_that_is_gone_shows_the_last_one(admin: Client, client: redis.Redis) -> None:
    for number in range(101):
        put(client, f"order:{number:03}")
    response = admin.get(LIST, {"p": "99"})
    assert [lock.name for lock in response.context["cl"].result_list] == ["order:100"]
    assert response.context["cl"].page_num == 2
    assert admin.get(LIST, {"p": "-1"}).context["cl"].page_num == 1
    assert admin.get(LIST, {"p": "x"}).context["cl"].page_num == 1


def test_show_all_shows_all(admin: Client, client: redis.Redis) -> None:
    for number in range(101):
        put(client, f"order:{number:03}")
    assert len(admin.get(LIST, {"all": ""}).context["cl"].result_list) == 101


def test_sorting_by_several_columns(admin: Client, client: redis.Redis) -> None:
    for name, owner in {"a": "x", "b": "y", "c": "x"}.items():
        put(client, name, owner=owner)
    response = admin.get(LIST, {"o": "-2.-1"})
    assert [lock.name for lock in response.context["cl"].result_list] == ["b", "c", "a"]


@pytest.mark.parametrize("query", ["?owner=x", "?key__startswith=a", "?nonsense=1"])
def test_an_unknown_parameter_leads_to_the_plain_list(query: str, admin: Client) -> None:
    assert admin.get(f"{LIST}{query}").headers["Location"] == f"{LIST}?e=1"


@pytest.mark.parametrize("query", ["o=99", "o=x", "o=", "q=%00", "q=%22", "o=-2.5.1.-6.3.4"])
def test_odd_parameters_break_nothing(query: str, admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    assert admin.get(f"{LIST}?{query}").status_code == 200


@pytest.mark.parametrize("order", ["1", "3", "6"])
def test_ten_thousand_locks_are_listed_in_as_many_round_trips_as_ten(
    order: str, admin: Client, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[int] = []
    execute_many = Backend.execute_many
    monkeypatch.setattr(Backend, "execute", None)

    def many(self: Backend, commands: Any) -> Any:
        trips.append(len(commands))
        return execute_many(self, commands)

    monkeypatch.setattr(Backend, "execute_many", many)
    made = []
    for count in (10, 10_000):
        with client.pipeline(transaction=False) as pipeline:
            for number in range(count):
                put(pipeline, f"order:{number}", now=2_000_000_000_000_000)
            pipeline.execute()
        trips.clear()
        response = admin.get(LIST, {"o": order})
        assert response.context["cl"].result_count == count
        assert len(response.context["cl"].result_list) == min(count, 100)
        made.append(len(trips))
    assert made[0] == made[1] <= 3


# -- the page of a lock -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_whatever_its_name_a_lock_has_its_pages_and_can_be_set_free(
    name: str, admin: Client, client: redis.Redis
) -> None:
    put(client, name)
    (shown,) = admin.get(LIST).context["cl"].result_list
    assert shown.name == name
    page = admin.get(url("change", name))
    assert page.context["original"].info.name == name
    assert admin.get(url("delete", name)).context["object"].info.name == name
    assert admin.post(url("delete", name), {"post": "yes"}, follow=True).status_code == 200
    assert not holder(client, name)
    history = admin.get(url("history", name))
    assert [entry.action_flag for entry in history.context["action_list"]] == [DELETION]
    put(client, name)
    assert "1 lock was set free." in told(select(admin, name, post="yes"))
    assert not holder(client, name)


def test_no_address_of_a_lock_ends_in_dots_that_browsers_take_away() -> None:
    for name in (".", ".."):
        assert "/./" not in url("change", name)
        assert "/../" not in url("change", name)


def test_a_long_queue_is_shown_in_part(admin: Client, client: redis.Redis) -> None:
    put(client, "a", waiters=103)
    assert "and 3 more" in admin.get(url("change", "a")).content.decode()


def test_notes_are_shown_escaped(
    admin: Client, client: redis.Redis, other: Callable[[], Other], eventually: Callable[..., Any]
) -> None:
    thread = other()
    with Lock("a", note="<script>alert(1)</script>\nsecond & line\u202e"):
        waiting = thread.start(lambda: Lock("a", note="<i>of a waiter</i>").acquire(blocking_timeout=GENEROUS))
        eventually(lambda: client.zcard("redislock{0}:queue:a"))
        page = admin.get(url("change", "a")).content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;<br>" in page
    assert "second &amp; line\\u202e" in page
    assert "<td>&lt;i&gt;of a waiter&lt;/i&gt;</td>" in page
    assert "<script>alert" not in page
    assert waiting.result(GENEROUS)


def test_without_notes_there_is_no_place_for_them(admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    client.zadd("redislock{0}:queue:a", {"t" * 22: 1})
    page = admin.get(url("change", "a")).content.decode()
    assert "Nobody waits" not in page
    assert "note" not in page.lower().replace("inline", "")


def test_the_token_is_never_shown(admin: Client) -> None:
    lock = Lock("a")
    lock.acquire()
    assert lock.token
    pages = [admin.get(path) for path in (LIST, url("change", "a"), url("delete", "a"))]
    pages.append(select(admin, "a"))
    assert not any(lock.token in page.content.decode() for page in pages)


def test_what_cannot_be_a_name_has_no_page(admin: Client) -> None:
    response = admin.get(f"{LIST}{'x' * 513}/change/", follow=True)
    assert "doesn’t exist" in told(response)[0]  # noqa: RUF001


def test_nothing_can_be_added_or_changed(admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    assert admin.get(f"{LIST}add/").status_code == 403
    assert admin.post(url("change", "a"), {"owner": "x"}).status_code == 403


# -- locks that never end ---------------------------------------------------------------------------------------------


@pytest.fixture
def endless(client: redis.Redis, eventually: Callable[..., Any]) -> None:
    """Two that somebody else has spoilt: the one was ours, the other never was, and somebody wants it."""
    put(client, "persisted", owner="web-1", ttl=1)
    client.persist("redislock{0}:lock:persisted")
    client.set("redislock{0}:lock:foreign", "<b>of somebody else</b>")
    assert not Lock("foreign").acquire(blocking=False)
    put(client, "sound")
    eventually(lambda: (client.zscore("redislock{0}:index", "persisted") or 0.0) < server_time(client))


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("order", ["1", "2", "3", "4", "5", "6", "-4"])
@pytest.mark.parametrize("words", ["", "web"])
def test_locks_that_never_end_are_listed(order: str, words: str, admin: Client) -> None:
    response = admin.get(LIST, {"o": order, "q": words})
    shown = {lock.name: lock for lock in response.context["cl"].result_list}
    assert response.context["cl"].result_count == len(shown)
    assert {lock.info.status for name, lock in shown.items() if name != "sound"} == {LockStatus.ERROR}
    assert shown.keys() == ({"persisted"} if words else {"persisted", "foreign", "sound"})
    assert response.content.decode().count("without end") == len(shown.keys() - {"sound"})
    if not words:
        assert (shown["sound"].info.status, shown["foreign"].owner) == (LockStatus.UNAVAILABLE, "?")


@pytest.mark.usefixtures("endless")
def test_locks_that_never_end_come_last_by_what_is_left(admin: Client) -> None:
    names = [lock.name for lock in admin.get(LIST, {"o": "4"}).context["cl"].result_list]
    assert names[0] == "sound"


@pytest.mark.usefixtures("endless")
def test_the_page_of_a_lock_that_never_ends_says_so_and_shows_nothing_of_a_foreign_value(admin: Client) -> None:
    persisted, foreign = (admin.get(url("change", name)).content.decode() for name in ("persisted", "foreign"))
    for page in (persisted, foreign):
        assert "Not one of ours: somebody else has written it" in page
    assert "web-1" in persisted
    assert "without end" in persisted
    assert "of somebody else" not in foreign
    assert "fence" not in foreign.lower()


@pytest.mark.usefixtures("endless")
def test_locks_that_never_end_are_set_free_like_any(admin: Client, client: redis.Redis) -> None:
    admin.post(url("delete", "foreign"), {"post": "yes", "fence": "0"})
    asked = select(admin, "persisted").context
    assert (asked["total"], told(select(admin, "persisted", post="yes", fence=asked["fence"]))) == (
        1,
        ["1 lock was set free."],
    )
    assert not client.exists("redislock{0}:lock:foreign", "redislock{0}:lock:persisted")
    assert [lock.name for lock in admin.get(LIST).context["cl"].result_list] == ["sound"]


def test_a_lock_that_never_ends_stays_listed_while_others_are_taken(admin: Client, client: redis.Redis) -> None:
    put(client, "persisted", ttl=1, now=server_time(client) - 5_000_000)
    client.persist("redislock{0}:lock:persisted")
    client.zadd("redislock{0}:index", {"expired": 1})
    for number in range(200):  # every eighth acquisition, at random, tidies the index up
        Lock(f"other:{number}").acquire()
    assert client.zscore("redislock{0}:index", "expired") is None
    assert "persisted" in [lock.name for lock in admin.get(LIST, {"q": "pers"}).context["cl"].result_list]


@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken before"])
def test_a_pools_member_that_never_ends_is_listed(admin: Client, client: redis.Redis, taken: bool) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    if taken:
        pool.acquire(ttl=0.01, auto_renew=False)
    client.set("redislock{0}:lock:pool:accounts:alice", "somebody's")
    with pytest.raises(LockNotAcquired):
        pool.acquire(blocking_timeout=0.1)
    (shown,) = admin.get(LIST).context["cl"].result_list
    assert (shown.name, shown.info.status) == ("pool:accounts:alice", LockStatus.ERROR)


# -- pools ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def crowded(ghost: Callable[..., Ghost]) -> None:
    """A pool of two: both are held, two wait for the one, a hundred and three for any; and a lock like any other."""
    pool = LockPool("accounts")
    pool.extend(["alice", "bob"])
    for _ in range(2):
        pool.acquire(ttl=600)
    Lock("a").acquire()
    there = ghost()
    for number in range(105):
        name = "pool:accounts:alice" if number < 2 else "pool:accounts:"
        there.queue(f"{number:03}{'t' * 22}", mode="F", name=name, age=200 - number)


@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize("order", ["1", "6"])
def test_the_list_shows_who_waits_for_any_member_beside_those_who_wait_for_this_one(order: str, admin: Client) -> None:
    page = admin.get(LIST, {"o": order})
    assert [lock.name for lock in page.context["cl"].result_list] == {
        "1": ["a", "pool:accounts:alice", "pool:accounts:bob"],
        "6": ["a", "pool:accounts:bob", "pool:accounts:alice"],
    }[order]
    cells = re.findall(r'field-shown_waiters">(.*?)<', page.content.decode())
    assert sorted(cells) == ["0", "0, and 103 for any of the pool", "2, and 103 for any of the pool"]


@pytest.mark.usefixtures("crowded")
def test_the_page_of_a_member_shows_the_queue_of_the_pool(admin: Client) -> None:
    alice, bob, other = (
        admin.get(url("change", name)).content.decode() for name in ("pool:accounts:alice", "pool:accounts:bob", "a")
    )
    for page, own in ((alice, 2), (bob, 0)):
        assert "Queue for any member of the pool" in page
        assert page.count("<td>ghost</td>") == own + 100
        assert "and 3 more" in page
    assert "any member" not in other


@pytest.mark.usefixtures("crowded")
def test_who_sets_a_member_free_is_told_of_all_who_wait_for_it(admin: Client) -> None:
    assert "105 waiting" in admin.get(url("delete", "pool:accounts:alice")).content.decode()


def test_the_queues_of_many_pools_cost_no_round_trip(
    admin: Client, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[int] = []
    execute_many = Backend.execute_many

    def many(self: Backend, commands: Any) -> Any:
        trips.append(len(commands))
        return execute_many(self, commands)

    monkeypatch.setattr(Backend, "execute_many", many)
    for number in range(50):
        put(client, f"pool:{number}:alice")
        put(client, f"pool:{number}:bob")
        client.zadd(f"redislock{{0}}:queue:pool:{number}:", {"t" * 22: 1})
    client.persist("redislock{0}:lock:pool:7:bob")
    client.zadd("redislock{0}:index", {"pool:7:bob": 1})
    client.set("redislock{0}:queue:pool:8:", "no queue")
    for order, most in (("1", 3), ("6", 3)):
        trips.clear()
        rows = admin.get(LIST, {"o": order, "all": ""}).context["cl"].result_list
        assert {lock.info.pool_waiters for lock in rows} == {0, 1}
        assert len(trips) <= most


# -- setting free -----------------------------------------------------------------------------------------------------


def test_looking_at_the_confirmation_sets_nothing_free(admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    admin.get(url("delete", "a"))
    select(admin, "a")
    assert holder(client, "a")


def test_no_page_speaks_of_deleting(admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    for page, title in [(admin.get(url("delete", "a")), "Set the lock free"), (select(admin, "a"), "Set locks free")]:
        text = page.content.decode()
        assert f'<li aria-current="page">{title}</li>' in text
        assert re.findall(r">[^<]*delete[^<]*<", text, re.I) == []


def test_a_confirmation_page_of_a_sites_own_is_used(
    admin: Client, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "a")
    assert "admin/django_redislock/heldlock/delete_selected_confirmation.html" in _templates(select(admin, "a"))
    monkeypatch.setattr(LockAdmin, "delete_selected_confirmation_template", "admin/base_site.html")
    assert _templates(select(admin, "a"))[0] == "admin/base_site.html"


def _templates(response: Any) -> list[str]:
    return [template.name for template in response.templates]


def test_setting_free_tells_the_holder_and_the_site_who_did_it(admin: Client, eventually: Callable[..., Any]) -> None:
    heard: list[str] = []

    def receiver(*, by: str, **facts: Any) -> None:
        heard.append(by)

    lock = Lock("a", ttl=600)
    lock.acquire()
    lock_force_released.connect(receiver)
    try:
        admin.post(url("delete", "a"), {"post": "yes"})
    finally:
        lock_force_released.disconnect(receiver)
    assert heard == ["jo in the admin"]
    assert get_lock("a") is None


def test_the_history_tells_who_set_free_whose_lock(admin: Client, client: redis.Redis) -> None:
    put(client, "a", owner="web-1", since=90)
    select(admin, "a", post="yes")
    (entry,) = LogEntry.objects.all()
    assert (entry.user.get_username(), entry.object_id, entry.object_repr, entry.action_flag) == (
        "jo",
        "a",
        "a",
        DELETION,
    )
    assert entry.change_message.startswith("Set free by force. It was held by web-1 for 1 min 3")
    assert entry.content_type.model_class() is HeldLock


def test_who_got_the_lock_after_the_confirmation_is_spared(admin: Client, client: redis.Redis) -> None:
    put(client, "a", since=60)
    put(client, "b", since=60)
    seen = admin.get(url("delete", "a")).context["object"].fence
    put(client, "a")
    response = admin.post(url("delete", "a"), {"post": "yes", "fence": seen}, follow=True)
    assert told(response) == ["1 lock was left alone: its holder had changed or gone."]
    response = select(admin, "a", "b", "c", post="yes", fence=seen + 1_000_000)
    assert told(response) == ["1 lock was set free.", "2 locks were left alone: their holders had changed or gone."]
    assert holder(client, "a")
    assert [entry.object_id for entry in LogEntry.objects.all()] == ["b"]


@pytest.mark.parametrize("fence", ["", "x", "-1", "²", "9" * 30])
def test_a_fence_that_is_none_means_what_is_held_now(fence: str, admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    assert told(select(admin, "a", post="yes", fence=fence)) == ["1 lock was set free."]


def test_the_page_of_a_lock_that_nobody_holds_says_so(admin: Client) -> None:
    page = admin.get(url("change", "pool:accounts:alice")).content.decode()
    assert "Nobody holds this lock now." in page
    assert "Queue" not in page


def test_a_lock_that_nobody_holds_is_not_offered_to_be_set_free(admin: Client) -> None:
    page = admin.get(url("delete", "a")).content.decode()
    assert "Nobody holds this lock now." in page
    assert 'name="post"' not in page
    assert told(admin.post(url("delete", "a"), {"post": "yes"}, follow=True)) == [
        "1 lock was left alone: its holder had changed or gone."
    ]
    assert told(select(admin, "a")) == ["Nobody holds these locks any more."]
    assert not LogEntry.objects.exists()


def test_all_across_the_pages_means_what_the_search_found(admin: Client, client: redis.Redis) -> None:
    for number in range(120):
        put(client, f"order:{number}")
    put(client, "seat:1")
    asked = select(admin, "order:1", path=f"{LIST}?q=order", select_across="1", index="0")
    assert asked.context["total"] == 120
    assert asked.context["more"] == "and 20 more"
    response = select(
        admin, "order:1", path=f"{LIST}?q=order", select_across="1", post="yes", fence=asked.context["fence"]
    )
    assert told(response) == ["120 locks were set free."]
    assert holder(client, "seat:1")
    assert LogEntry.objects.count() == 120


# -- permissions ------------------------------------------------------------------------------------------------------


def test_without_permissions_every_page_is_forbidden_and_redis_is_not_asked(
    staff: Callable[..., Client], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "a")
    user = staff()
    monkeypatch.setattr(Backend, "execute", None)
    monkeypatch.setattr(Backend, "execute_many", None)
    for path in (LIST, f"{LIST}add/", *(url(view, "a") for view in ("change", "history", "delete"))):
        assert user.get(path).status_code == 403
        assert user.post(path, {"post": "yes"}).status_code == 403
    assert user.post(LIST, {"action": "delete_selected", "_selected_action": ["a"], "post": "yes"}).status_code == 403
    assert "Redis locks" not in user.get("/admin/").content.decode()
    assert user.get("/admin/django_redislock/").status_code == 404


def test_who_may_only_view_sets_nothing_free(staff: Callable[..., Client], client: redis.Redis) -> None:
    put(client, "a")
    user = staff("view_heldlock")
    assert user.get(LIST).context["action_form"] is None
    assert user.get(url("delete", "a")).status_code == 403
    assert user.post(url("delete", "a"), {"post": "yes"}).status_code == 403
    user.post(LIST, {"action": "delete_selected", "_selected_action": ["a"], "post": "yes"})
    assert holder(client, "a")


def test_the_permission_for_each_lock_counts_for_many_at_once(
    admin: Client, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allowed(self: LockAdmin, request: Any, obj: HeldLock | None = None) -> bool:
        return obj is None or obj.name.startswith("mine:")

    monkeypatch.setattr(LockAdmin, "has_delete_permission", allowed)
    for name in ("mine:1", "theirs:1"):
        put(client, name)
    for data in ({}, {"post": "yes"}, {"select_across": "1"}, {"select_across": "1", "post": "yes"}):
        assert select(admin, "mine:1", "theirs:1", **data).status_code == 403
        assert holder(client, "mine:1")
        assert holder(client, "theirs:1")
    assert told(select(admin, "mine:1", post="yes")) == ["1 lock was set free."]


def test_who_may_only_delete_ends_on_the_index(staff: Callable[..., Client], client: redis.Redis) -> None:
    put(client, "a")
    user = staff("delete_heldlock")
    assert user.get(LIST).status_code == 403
    assert user.post(url("delete", "a"), {"post": "yes"}).headers["Location"] == "/admin/"
    assert not holder(client, "a")
    with override_settings(CACHES=NOWHERE):
        response = user.get(url("delete", "a"), follow=True)
    assert told(response)[-1].startswith("Redis does not serve the locks now")


def test_anonymous_users_are_sent_to_the_login() -> None:
    assert "/admin/login/" in Client().get(LIST).headers["Location"]


def test_posts_need_a_csrf_token(client: redis.Redis) -> None:
    put(client, "a")
    careful = Client(enforce_csrf_checks=True)
    careful.force_login(User.objects.create_superuser("jo"))
    assert careful.post(url("delete", "a"), {"post": "yes"}).status_code == 403
    assert (
        careful.post(LIST, {"action": "delete_selected", "_selected_action": ["a"], "post": "yes"}).status_code == 403
    )
    assert holder(client, "a")


# -- other sites, languages, and no Redis -----------------------------------------------------------------------------


def test_an_admin_site_of_ones_own_links_to_its_own_pages(admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    own = LIST.replace("/admin/", "/own/", 1)
    pages = [admin.get(path).content.decode() for path in (own, url("change", "a", "own"), url("delete", "a", "own"))]
    pages.append(select(admin, "a", path=own).content.decode())
    for page in pages:
        assert "/own/django_redislock/" in page
        assert "/admin/django_redislock/" not in page
    assert admin.post(url("delete", "a", "own"), {"post": "yes"}).headers["Location"] == own


@override_settings(CACHES=NOWHERE)
@pytest.mark.parametrize("view", ["change", "history", "delete"])
def test_without_redis_each_page_of_a_lock_leads_to_the_list_which_says_so(view: str, admin: Client) -> None:
    response = admin.get(url(view, "a"), follow=True)
    assert response.redirect_chain == [(LIST, 302)]
    assert len(told(response)) == 1
    assert told(response)[0].startswith("Redis does not serve the locks now")
    assert response.status_code == 200


@override_settings(CACHES=NOWHERE)
def test_without_redis_nothing_is_set_free_and_the_list_says_so(admin: Client) -> None:
    for data in ({}, {"post": "yes"}):
        response = select(admin, "a", **data)
        assert len(told(response)) == 1
        assert told(response)[0].startswith("Redis does not serve the locks now")
    assert not LogEntry.objects.exists()


def test_what_was_set_free_before_redis_went_is_in_the_history(
    admin: Client, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        put(client, name)

    def failing(name: str, **options: Any) -> Any:
        if name == "b":
            raise LockUnavailable("gone", name)
        return force_release(name, **options)

    monkeypatch.setattr("django_redislock.admin.force_release", failing)
    assert told(select(admin, *"abc", post="yes")) == [
        "Redis stopped answering, 2 locks were not set free: gone",
        "1 lock was set free.",
    ]
    assert [entry.object_id for entry in LogEntry.objects.all()] == ["a"]


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("de", ["Redis-Sperren", "gehalten seit", "Freigeben …", "2 h 5 min", "Warteschlange"]),
        ("zh-hans", ["Redis 锁", "剩余租期", "释放…", "2 小时 5 分", "队列"]),
    ],
)
def test_the_pages_speak_the_users_language(
    language: str, words: list[str], admin: Client, client: redis.Redis, settings: Any
) -> None:
    settings.LANGUAGE_CODE = language
    put(client, "a", since=7500)
    page = "".join(admin.get(path).content.decode() for path in (LIST, url("change", "a")))
    assert [word for word in words if word.lower() not in page.lower()] == []
