"""The pages of a lock and of fences; force-releases: after a confirmation, and logged; the models behind it all."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
import redis
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_redislock import Lock, Semaphore, get_lock, lock_force_released, locked_atomic
from django_redislock.admin import LockAdmin
from django_redislock.fencing import prune
from django_redislock.models import Fence, HeldLock
from redisserver import RedisServer
from tests.admin.pages import LIST, names, select, told, url
from tests.helpers.actors import GENEROUS, until
from tests.helpers.processes import ROOT
from tests.helpers.state import holder, put
from tests.inside import limit
from tests.lock.conftest import receiving

pytestmark = pytest.mark.django_db

# each has a character or a word that means something in a URL, in HTML or to the admin
ODD = ["a/b", ".", "..", "a_3Ab", "%2F", "?q=1&x#y", "add", "\"'\\", "<b>&amp;</b>", " blank ", "鍵:🔒", "x" * 512]
SPARED = ["1 lock was left alone: its holder had changed or was gone."]
FENCE = "fence:default:0"
YES = {"post": "yes"}
FENCES = "/admin/django_redislock/fence/"


def content(admin: Client, name: str) -> str:
    return str(admin.get(url("change", name)).content.decode())


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_whatever_its_name_a_lock_has_its_pages(name: str, admin: Client, client: redis.Redis) -> None:
    put(client, name)
    (shown,) = admin.get(LIST).context["cl"].result_list
    assert shown.name == name
    assert not url("change", name).endswith(("/./change/", "/../change/"))  # which browsers take away
    page = admin.get(url("change", name))
    assert page.context["original"].info.name == name
    assert "Held for:" in page.content.decode()
    asked = admin.get(url("delete", name))
    assert asked.context["object"].info.name == name
    assert admin.post(url("delete", name), YES, follow=True).status_code == 200
    assert not holder(client, name)
    history = admin.get(url("history", name))
    assert [entry.action_flag for entry in history.context["action_list"]] == [DELETION]
    assert not any("<b>&amp;</b>" in each.content.decode() for each in (page, asked, history))
    put(client, name)
    assert "1 lock was force-released." in told(select(admin, HeldLock.named(name).key, **YES))
    assert not holder(client, name)


def test_notes_are_shown_escaped_and_tokens_never(admin: Client, queue: Any) -> None:
    with Lock("a", note="<script>alert(1)</script>\nsecond & line\u202e") as lock:
        waiting = queue(Lock("a", note="<i>of a waiter</i>"), blocking_timeout=GENEROUS)
        page = content(admin, "a")
        pages = [admin.get(path) for path in (LIST, url("delete", "a"))]
        pages.append(select(admin, "a"))
        assert not any(str(lock.token) in text for text in (page, *(each.content.decode() for each in pages)))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;<br>" in page
    assert "second &amp; line\\u202e" in page
    assert "<td>&lt;i&gt;of a waiter&lt;/i&gt;</td>" in page
    assert "<script>alert" not in page
    assert waiting.result(GENEROUS)


def test_killed_waiters_are_marked_and_of_a_long_queue_the_first_shown(admin: Any, client: Any, ghost: Any) -> None:
    with Lock("a"):
        ghost().queue("1" * 22, name="a")
        assert "Process" not in content(admin, "a")
        ghost(alive=False).queue("2" * 22, name="a")
        page = content(admin, "a")
    assert '<th scope="col">Process</th>' in page
    assert page.count("<td>gone</td>") == 1
    put(client, "b", waiters=103)
    assert "and 3 more" in content(admin, "b")


def test_what_nobody_holds_is_not_offered_for_release_and_nothing_is_added_or_changed(admin: Any, client: Any) -> None:
    assert "doesn’t exist" in told(admin.get(f"{LIST}{'x' * 513}/change/", follow=True))[0]  # noqa: RUF001
    assert "Nobody holds this lock now." in content(admin, "a")
    assert told(admin.get(url("delete", "a"), follow=True)) == ["Nobody holds these locks any more."]
    assert told(admin.post(url("delete", "a"), YES, follow=True)) == SPARED
    assert told(select(admin, "a")) == ["Nobody holds these locks any more."]
    assert logged() == []
    put(client, "a")
    assert admin.get(f"{LIST}add/").status_code == 403
    assert admin.post(url("change", "a"), {"owner": "x"}).status_code == 403


@pytest.mark.usefixtures("endless")
def test_a_lock_that_never_ends_says_so_and_is_force_released_like_any(admin: Client) -> None:
    persisted, foreign = content(admin, "persisted"), content(admin, "foreign")
    for page in (persisted, foreign):
        assert "Somebody else has written it, or removed its expiry." in page
        assert "without end" in page
    assert "web-1" in persisted
    assert "of somebody else" not in foreign
    assert "fence" not in foreign.lower().partition('id="content"')[2]
    assert names(admin.get(LIST, {"o": "4"}))[0] == names(admin.get(LIST, {"o": "-4"}))[-1] == "sound"
    admin.post(url("delete", "foreign"), {**YES, FENCE: "0"})
    asked = select(admin, "persisted").context
    assert asked["total"] == 1
    assert told(select(admin, "persisted", **YES, **asked["fences"])) == ["1 lock was force-released."]
    assert names(admin.get(LIST)) == ["sound"]


def test_the_page_says_who_has_suspended_a_lock_and_why_though_somebody_still_holds_it(admin: Client) -> None:
    Lock("a").suspend(3600, note="rate limited")
    for query in ("", "?q=suspended"):
        assert "nobody (suspended by " in admin.get(f"{LIST}{query}").content.decode()
    page = content(admin, "a")
    assert "nobody acquires it until then" in page
    assert page.count("rate limited") == 1
    assert "unless it is renewed" not in page
    admin.post(url("delete", "a"), YES)
    assert not Lock("a").locked()
    lock = Lock("b", note="of the holder")
    lock.acquire()
    for note in ("", "rate limited"):
        lock.suspend(3600, note=note)
        page = content(admin, "b")
        assert "As soon as nobody holds it: suspended by " in page
        assert "of the holder" in page
        assert "unless it is renewed" in page
        assert ("rate limited" in page) == bool(note)


@pytest.mark.usefixtures("crowded")
def test_the_page_of_a_member_shows_the_queue_of_the_pool(admin: Client) -> None:
    for member, own in (("alice", 2), ("bob", 0)):
        page = content(admin, f"pool:accounts:{member}")
        assert "Queue for any member of the pool" in page
        assert page.count("<td>ghost</td>") == own + 100
        assert "and 3 more" in page
    assert "any member" not in content(admin, "a")
    asked = admin.get(url("delete", "pool:accounts:alice"))
    assert "105 waiting" in asked.content.decode()
    assert told(admin.post(asked.request["PATH_INFO"], YES, follow=True)) == ["1 lock was force-released."]


def test_a_semaphore_shows_how_many_hold_it_and_who_and_all_are_force_released(admin: Client) -> None:
    permits = [Semaphore("export", limit=3, note=note) for note in ("books", "taxes")]
    for permit in permits:
        assert permit.acquire()
    assert "semaphore:export 2/3" in admin.get(LIST).content.decode()
    page = content(admin, "semaphore:export")
    assert "Holders" in page
    assert page.index("books") < page.index("taxes")
    assert str(permits[0].fence) in page
    assert "Nobody is waiting." in page
    asked = admin.get(url("delete", "semaphore:export"))
    assert "semaphore:export 2/3, held for" in asked.content.decode()
    assert told(admin.post(asked.request["PATH_INFO"], YES, follow=True)) == ["1 lock was force-released."]
    assert get_lock("semaphore:export") is None


ONE_PERMIT = ["The permit was force-released."]
NOBODY = ["Nobody shown there holds this permit any more."]


def permit_links(page: str) -> list[str]:
    """The links to force-release one permit, as a browser follows them."""
    return [unescape(link) for link in re.findall(r'<a href="([^"]*[?;]permit=[^"]*)"', page)]


@pytest.fixture
def exports() -> list[Semaphore]:
    """Three that hold a permit each, the oldest first."""
    permits = [Semaphore("export", limit=3, note=f"of {number}") for number in range(3)]
    for permit in permits:
        assert permit.acquire()
    return permits


def test_each_holder_of_a_semaphore_has_a_link_that_force_releases_its_permit_alone(
    exports: list[Semaphore], admin: Client, heard: Any
) -> None:
    links = permit_links(content(admin, "semaphore:export"))
    assert [int(link.partition("=")[2]) for link in links] == [permit.fence for permit in exports]
    fence = exports[1].fence
    asked = admin.get(links[1])
    page = asked.content.decode()
    assert "Do you want to force-release this permit?" in page
    assert '<li aria-current="page">Force-release the permit</li>' in page
    assert "of 0" not in page
    assert exports[1].owned()  # a GET asks
    assert told(admin.post(links[1], {**YES, **asked.context["fences"]}, follow=True)) == ONE_PERMIT
    until(lambda: exports[1].lost)
    assert [permit.owned() for permit in exports] == [True, False, True]
    assert [facts["by"] for which, facts in heard if which == "force"] == ["jo in the admin"]
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.action_flag) == ("semaphore:export", DELETION)
    assert entry.change_message.endswith(f", fence {fence}.")
    assert len(permit_links(content(admin, "semaphore:export"))) == 2


def test_whoever_has_a_permit_by_the_time_of_the_confirmation_is_spared(exports: Any, admin: Client) -> None:
    link = permit_links(content(admin, "semaphore:export"))[0]
    exports[0].release()
    assert Semaphore("export", limit=3).acquire()
    assert told(admin.get(link, follow=True)) == NOBODY
    assert told(admin.post(link, YES, follow=True)) == SPARED
    assert get_lock("semaphore:export").permits_held == 3  # type: ignore[union-attr]
    assert logged() == []


@pytest.mark.parametrize("permit", ["", "x", "-1", "²", "0", "9" * 30])
def test_what_is_no_permit_force_releases_nothing(permit: str, exports: list[Semaphore], admin: Client) -> None:
    Lock("a").acquire()
    for name in ("semaphore:export", "a"):
        path = f"{url('delete', name)}?permit={permit}"
        assert told(admin.get(path, follow=True)) == NOBODY
        assert told(admin.post(path, YES, follow=True)) == SPARED
    assert all(permit.owned() for permit in exports)
    assert get_lock("a")


def logged() -> list[str]:
    return [entry.object_id for entry in LogEntry.objects.order_by("pk")]


def test_the_confirmation_releases_nothing_nor_speaks_of_deleting(admin: Any, client: Any, monkeypatch: Any) -> None:
    put(client, "a")
    selected = select(admin, "a")
    for page, title in [(admin.get(url("delete", "a")), "Force-release the lock"), (selected, "Force-release locks")]:
        text = page.content.decode()
        assert f'<li aria-current="page">{title}</li>' in text
        assert re.findall(r">[^<]*delete[^<]*<", text, re.I) == []
    assert holder(client, "a")
    # a site's own
    monkeypatch.setattr(LockAdmin, "delete_selected_confirmation_template", "admin/base_site.html")
    assert select(admin, "a").templates[0].name == "admin/base_site.html"


def test_the_list_is_as_it_was_filtered_before(admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    put(client, "b")
    there = re.findall(r'href="([^"]*heldlock/a/[^"]*)"', admin.get(f"{LIST}?q=a&o=2").content.decode())[0]
    link = re.findall(r'href="([^"]*/delete/[^"]*)"', admin.get(unescape(there)).content.decode())[0]
    assert admin.post(unescape(link), YES)["Location"] == f"{LIST}?q=a&o=2"
    assert Semaphore("export", limit=3).acquire()
    filtered = f"{url('change', 'semaphore:export')}?_changelist_filters=q%3De"
    (link,) = permit_links(admin.get(filtered).content.decode())
    response = admin.post(link, YES, follow=True)
    assert (response.redirect_chain, told(response)) == ([(f"{LIST}?q=e", 302)], ONE_PERMIT)


def test_holder_site_and_history_learn_who_did_it(admin: Any, heard: Any, client: Any) -> None:
    lock = Lock("a", ttl=600)
    lock.acquire()
    admin.post(url("delete", "a"), YES)
    assert [facts["by"] for which, facts in heard if which == "force"] == ["jo in the admin"]
    assert get_lock("a") is None
    until(lambda: lock.lost)
    put(client, "b", owner="web-1", since=90)
    select(admin, "b", **YES)
    entry = LogEntry.objects.latest("pk")
    assert (entry.user.get_username(), entry.object_id, entry.action_flag) == ("jo", "b", DELETION)
    assert entry.change_message.startswith("Force-released. It was held by web-1 for 1 min 3")
    assert entry.content_type.model_class() is HeldLock


def test_a_holder_that_came_after_the_confirmation_page_is_spared(admin: Client, client: redis.Redis) -> None:
    put(client, "a", since=60)
    put(client, "b", since=60)
    seen = admin.get(url("delete", "a")).context["object"].fence
    put(client, "a")
    assert told(admin.post(url("delete", "a"), {**YES, FENCE: seen}, follow=True)) == SPARED
    assert told(select(admin, "a", "b", "c", **YES, **{FENCE: seen + 1_000_000})) == [
        "1 lock was force-released.",
        "2 locks were left alone: their holders had changed or were gone.",
    ]
    assert holder(client, "a")
    assert logged() == ["b"]
    for fence in ("x", "²", "9" * 30):  # what is no fence means what is held now
        put(client, "a")
        assert told(select(admin, "a", **YES, **{FENCE: fence})) == ["1 lock was force-released."]


def test_selecting_all_pages_means_the_locks_that_the_search_found(admin: Client, client: redis.Redis) -> None:
    for number in range(120):
        put(client, f"order:{number}")
    put(client, "seat:1")
    across: dict[str, Any] = {"path": f"{LIST}?q=order", "select_across": "1"}
    asked = select(admin, "order:1", index="0", **across)
    assert (asked.context["total"], asked.context["more"]) == (120, "and 20 more")
    response = select(admin, "order:1", **across, **YES, **asked.context["fences"])
    assert told(response) == ["120 locks were force-released."]
    assert holder(client, "seat:1")
    assert len(logged()) == 120


def test_the_locks_that_were_selected_are_read_together(admin: Client, client: redis.Redis, trips: list[int]) -> None:
    for number in range(20):
        put(client, f"order:{number}")
    trips.clear()
    asked = select(admin, "order:x", *(f"order:{number}" for number in range(20)))
    assert (asked.context["total"], len(trips)) == (20, 2 + 2)  # Django reads the list as well


def test_the_history_is_written_while_more_locks_are_released(admin: Any, client: Any, monkeypatch: Any) -> None:
    limit(monkeypatch, list_batch=2)
    for name in "abcde":
        put(client, name)
    counts: list[int] = []
    with receiving(lambda **facts: counts.append(len(logged())), lock_force_released):
        select(admin, *"abcde", **YES)
    assert (counts, len(logged())) == ([0, 0, 2, 2, 4], 5)


def test_what_was_force_released_before_redis_went_is_logged(admin: Any, own: RedisServer, retry_for: Any) -> None:
    retry_for(0.1)
    with own.client() as client:
        for name in "abc":
            put(client, name)
    with receiving(lambda **facts: own.stop(), lock_force_released):
        failed, released, *_ = told(select(admin, *"abc", **YES))
    assert failed.startswith("Redis stopped responding, 2 locks were not force-released: Redis cannot be reached")
    assert released == "1 lock was force-released."
    assert logged() == ["a"]


@pytest.fixture
def read_only(admin: Client) -> Iterator[None]:
    """From the log-in on, the database takes no writes, as a standby does."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA query_only=ON")
        yield
        cursor.execute("PRAGMA query_only=OFF")


def test_a_history_that_cannot_be_written_stops_no_force_release(
    exports: list[Semaphore], admin: Client, client: redis.Redis, read_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, list_batch=2)
    link = permit_links(content(admin, "semaphore:export"))[0]
    warning = "Not recorded in the history: attempt to write a readonly database"
    assert told(admin.post(link, YES, follow=True)) == [warning, *ONE_PERMIT]
    for name in "abc":
        put(client, name)
    assert told(select(admin, *"abc", **YES)) == [warning, warning, "3 locks were force-released."]
    put(client, "a")
    nobody: dict[str, Any] = {FENCE: 1}
    assert told(select(admin, "a", **YES, **nobody)) == SPARED  # there is nothing to record
    assert logged() == []


BARE = """
import sys
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
assert not {"django.contrib.admin", "django.contrib.contenttypes.models"} & {*sys.modules}
"""


def test_there_is_no_table_and_nothing_to_dump_or_migrate(django_assert_num_queries: Any, capsys: Any) -> None:
    Lock("a").acquire()
    with django_assert_num_queries(0):
        assert list(HeldLock.objects.all()) == []
        assert not HeldLock._base_manager.exists()
    call_command("dumpdata", "django_redislock.heldlock", "--all")
    assert capsys.readouterr().out.strip() == "[]"
    call_command("makemigrations", "--check", "--dry-run")
    found = Permission.objects.filter(content_type__app_label="django_redislock").values_list("codename", "name")
    assert dict(found) == {
        "view_heldlock": "Can view lock",
        "delete_heldlock": "Can force-release lock",
        "view_fence": "Can view fence",
    }


def test_the_app_works_where_neither_admin_nor_auth_nor_contenttypes_are_installed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    subprocess.run([sys.executable, "-W", "error", "-c", BARE], check=True, env=environment, cwd=ROOT, timeout=60)


def test_the_page_of_fences_shows_which_names_were_claimed_and_when_last_and_is_read_only(admin: Client) -> None:
    for name in ("order:1", "order:2", "ünal"):
        with locked_atomic(name, fenced=True):
            pass
    Fence.objects.filter(name="order:1").update(claimed=timezone.now() - timedelta(days=2))
    page = admin.get(FENCES)
    assert [str(row) for row in page.context["cl"].result_list] == ["ünal", "order:2", "order:1"]
    prune(timedelta(days=1))
    page = admin.get(FENCES, {"q": "order"})
    assert [row.name for row in page.context["cl"].result_list] == ["order:2"]
    row = Fence.objects.get(name="order:2")
    change = reverse("admin:django_redislock_fence_change", args=[row.pk])
    assert f"{row.fence}" in admin.get(change).content.decode()
    assert admin.post(change, {"fence": 0}).status_code == 403
    for view, args in (("add", []), ("delete", [row.pk])):
        assert admin.get(reverse(f"admin:django_redislock_fence_{view}", args=args)).status_code == 403


@pytest.mark.parametrize(("permission", "status"), [("view_fence", 200), ("view_heldlock", 403)])
def test_fences_take_a_permission_of_their_own(staff: Callable[..., Client], permission: str, status: int) -> None:
    assert staff(permission).get(FENCES).status_code == status
