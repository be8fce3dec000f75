from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command, load_command_class
from django.test import override_settings

from django_redislock import FairLock, Lock, LockLost, LockPool, force_release, get_lock, lock_force_released
from django_redislock.cli import watch as watching
from django_redislock.cli.text import portrait, table
from django_redislock.registry import LockInfo, LockStatus, WaiterInfo
from redisserver import RedisServer

ROOT = Path(__file__).parent.parent
PREFIX = "redislock{0}:"


def redislocks(*arguments: str, **options: Any) -> str:
    """What the command prints."""
    out = io.StringIO()
    call_command("redislocks", *arguments, stdout=out, **options)
    return out.getvalue()


def hold(name: str, **options: Any) -> str:
    """Leave the lock held by nobody in particular; answers the token."""
    lock = Lock(name, **options)
    assert lock.acquire(blocking=False)
    return lock.detach()


@pytest.fixture
def wait_for(eventually: Callable[..., Any]) -> Iterator[Callable[[str], threading.Event]]:
    """Queue a thread for a lock; the event tells that it had it."""
    threads: list[threading.Thread] = []

    def wait_for(name: str) -> threading.Event:
        got = threading.Event()

        def wait() -> None:
            with FairLock(name, blocking_timeout=30):
                got.set()

        before = (get_lock(name) or pytest.fail(f"{name} is not held")).waiters
        thread = threading.Thread(target=wait)
        thread.start()
        threads.append(thread)
        eventually(lambda: (info := get_lock(name)) and info.waiters == before + 1)
        return got

    yield wait_for
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """What somebody types when asked; None: nobody is there."""

    def answer(text: str | None) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("" if text is None else f"{text}\n"))

    return answer


def info(name: str = "a", **changes: Any) -> LockInfo:
    now = datetime.now(timezone.utc)
    values = {"owner": "host:1:Main", "fence": 7, "since": now, "held_for": 1.0, "lease_left": 2.0, "waiters": 0}
    return LockInfo(name=name, token_hint="abcd…", **{**values, **changes})


def test_a_lock_that_never_ends_says_so_to_people_and_has_no_end_for_programs(client: redis.Redis) -> None:
    hold("order:42", ttl=100)
    client.persist("redislock{0}:lock:order:42")
    lock = get_lock("order:42")
    assert lock is not None
    assert (lock.status, lock.lease_left, lock.expires.year) == (LockStatus.ERROR, math.inf, 9999)
    assert re.search(r"LEASE LEFT +without end$", redislocks("show", "order:42"), re.M)
    told = json.loads(redislocks("show", "order:42", format="json"))
    assert (told["lease_left"], told["expires"]) == (None, None)


# -- list -------------------------------------------------------------------------------------------------------------


def test_list_says_so_when_no_locks_are_held() -> None:
    assert redislocks("list") == "No locks are held.\n"


def test_list_says_so_when_no_held_lock_matches() -> None:
    hold("order:1")
    assert redislocks("list", "seat:*") == "No lock is held that matches seat:*.\n"


def test_list_shows_name_owner_durations_fence_and_waiters(wait_for: Callable[[str], threading.Event]) -> None:
    with Lock("order:42", ttl=600) as lock:
        wait_for("order:42")
        fence, (head, row) = lock.fence, redislocks("list").splitlines()
    assert head.split("  ")[0] == "NAME"
    assert re.split(r" {2,}", head) == ["NAME", "OWNER", "HELD FOR", "LEASE LEFT", "FENCE", "WAITERS"]
    name, owner, held_for, left, shown_fence, waiters = re.split(r" {2,}", row)
    assert name == "order:42"
    assert f":{os.getpid()}:" in owner
    assert re.fullmatch(r"\d+(\.\d)? s", held_for)
    assert re.fullmatch(r"(9 min \d+ s|10 min 0 s)", left)
    assert (shown_fence, waiters) == (str(fence), "1")


def test_list_shows_only_what_matches_sorted_by_name() -> None:
    for name in ("order:2", "order:1", "seat:1"):
        hold(name)
    assert [line.split()[0] for line in redislocks("list", "order:*").splitlines()] == ["NAME", "order:1", "order:2"]


def test_json_is_for_programs() -> None:
    token = hold("order:42", ttl=100)
    text = redislocks("list", format="json")
    (lock,) = json.loads(text)
    keys = ["name", "owner", "since", "held_for", "lease_left", "expires", "fence", "waiters", "note"]
    assert list(lock) == keys
    since, expires = datetime.fromisoformat(lock["since"]), datetime.fromisoformat(lock["expires"])
    assert since.utcoffset() == timedelta()
    assert expires - since == pytest.approx(timedelta(seconds=100), abs=timedelta(seconds=0.01))
    assert isinstance(lock["held_for"], float)
    assert 0 < lock["lease_left"] <= 100
    assert (lock["name"], lock["waiters"]) == ("order:42", 0)
    assert token[:8] not in text


def test_json_of_no_locks_is_an_empty_list() -> None:
    assert json.loads(redislocks("list", "--format", "json")) == []


def test_tokens_are_never_printed(answer: Callable[[str | None], None]) -> None:
    token = hold("order:42")
    answer("yes")
    printed = redislocks("list") + redislocks("list", "--format=json") + redislocks("clear", "order:42")
    assert token[:8] not in printed


def test_what_would_steer_the_terminal_is_escaped(client: redis.Redis) -> None:
    hold("order:\u202e42")
    value = f"{'t' * 22} channel c 5 1700000000000000 \x1b]0;owned\x07host"
    client.set(f"{PREFIX}lock:order:43", value, px=60_000)
    client.zadd(f"{PREFIX}index", {"order:43": 4e15})
    for arguments in (["list"], ["list", "--format=json"], ["clear", "--all", "--dry-run"], ["clear", "--all"]):
        printed = redislocks(*arguments, interactive=False) if arguments[0] == "clear" else redislocks(*arguments)
        assert printed.replace("\n", "").isprintable()
        assert "\\u202e42" in printed
        assert "]0;owned" in printed


def test_columns_stay_aligned_with_wide_and_combining_characters() -> None:
    lines = table([info("鍵"), info("e\u0301e"), info("plain")]).splitlines()
    assert lines[0].startswith("NAME   OWNER")
    assert lines[1].startswith("鍵     host")
    assert lines[2].startswith("e\u0301e     host")
    assert lines[3].startswith("plain  host")


def test_a_terminal_of_another_encoding_gets_escapes() -> None:
    hold("größe:鍵")
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="latin-1", write_through=True) as out:
        call_command("redislocks", "list", stdout=out)
        assert "größe:\\u9375  ".encode("latin-1") in raw.getvalue()


# -- clear ------------------------------------------------------------------------------------------------------------


def test_clear_sets_the_named_locks_free_and_says_whose_they_were() -> None:
    for name in ("a", "b", "c"):
        hold(name)
    printed = redislocks("clear", "a", "b", "--noinput")
    assert [line.split(",")[0] for line in printed.splitlines()] == ["Cleared a", "Cleared b"]
    assert f":{os.getpid()}:" in printed
    assert not Lock("a").locked()
    assert not Lock("b").locked()
    assert Lock("c").locked()


def test_clear_wakes_the_next_waiter(wait_for: Callable[[str], threading.Event]) -> None:
    hold("a", ttl=600)
    got = wait_for("a")
    redislocks("clear", "a", "--noinput")
    assert got.wait(20)


def test_clear_tells_the_old_holder(eventually: Callable[..., Any]) -> None:
    told: list[LockLost] = []
    lock = Lock("a", ttl=600, on_lost=told.append)
    lock.acquire()
    redislocks("clear", "a", "--noinput")
    eventually(lambda: told)
    assert "force" in told[0].reason
    assert lock.lost
    with pytest.raises(LockLost):
        lock.release()


def test_clear_tells_the_site_who_did_it() -> None:
    heard: list[tuple[str, str]] = []

    def receiver(*, name: str, by: str, **facts: Any) -> None:
        heard.append((name, by))

    hold("a")
    lock_force_released.connect(receiver)
    try:
        redislocks("clear", "a", "--noinput")
    finally:
        lock_force_released.disconnect(receiver)
    assert heard == [("a", "manage.py redislocks clear")]


@pytest.mark.parametrize("yes", ["y", "yes", "Y", " YES "])
def test_clear_asks_first_and_shows_what_it_would_clear(yes: str, answer: Callable[[str | None], None]) -> None:
    hold("a")
    hold("b")
    answer(yes)
    printed = redislocks("clear", "a", "b")
    question = printed.index("Clear 2 locks? [y/N] ")
    assert f":{os.getpid()}:" in printed[:question]
    assert "Cleared" not in printed[:question]
    assert printed.count("Cleared ") == 2


@pytest.mark.parametrize("no", ["", "n", "no", "yeah", "a"])
def test_clear_leaves_everything_alone_when_the_answer_is_not_yes(
    no: str, answer: Callable[[str | None], None]
) -> None:
    hold("a")
    answer(no)
    with pytest.raises(CommandError, match=r"^Nothing was cleared\.$"):
        redislocks("clear", "a")
    assert Lock("a").locked()


def test_clear_does_nothing_when_nobody_can_be_asked(answer: Callable[[str | None], None]) -> None:
    hold("a")
    answer(None)
    with pytest.raises(CommandError, match="--noinput"):
        redislocks("clear", "a")
    assert Lock("a").locked()


def test_clear_by_pattern_leaves_the_others() -> None:
    for name in ("order:1", "order:2", "seat:1"):
        hold(name)
    assert redislocks("clear", "--match", "order:*", "--noinput").count("Cleared order:") == 2
    assert re.findall(r"^\S+:\d", redislocks("list"), re.M) == ["seat:1"]


def test_clear_all_clears_everything() -> None:
    hold("order:1")
    hold("seat:1")
    assert redislocks("clear", "--all", "--noinput").count("Cleared ") == 2
    assert redislocks("list") == "No locks are held.\n"


def test_dry_run_only_says_what_would_be_cleared() -> None:
    hold("order:1")
    hold("seat:1")
    printed = redislocks("clear", "--match", "order:*", "--dry-run")
    assert printed.startswith("Would be cleared:\n")
    assert "order:1" in printed
    assert "seat:1" not in printed
    assert Lock("order:1").locked()


def test_clear_fails_when_a_named_lock_is_not_held_and_clears_the_others() -> None:
    hold("a")
    with pytest.raises(CommandError, match=r"^Not held: b, c$") as caught:
        redislocks("clear", "b", "a", "c", "--noinput")
    assert caught.value.returncode == 1
    assert not Lock("a").locked()


def test_dry_run_fails_too_when_a_named_lock_is_not_held() -> None:
    with pytest.raises(CommandError, match=r"^Not held: b$"):
        redislocks("clear", "b", "--dry-run")


def test_a_lock_that_came_free_before_the_answer_counts_as_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    token = hold("a")

    def type_yes_late() -> str:
        Lock("a", token=token).release()
        return "yes"

    monkeypatch.setattr("builtins.input", type_yes_late)
    with pytest.raises(CommandError, match=r"^Not held: a$"):
        redislocks("clear", "a")


def test_who_came_after_the_question_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["a"], ["--all"]):
        token = hold("a")

        def type_yes_late(token: str = token) -> str:
            Lock("a", token=token).release()
            hold("a")
            return "yes"

        monkeypatch.setattr("builtins.input", type_yes_late)
        out = io.StringIO()
        with pytest.raises(CommandError, match=r"^Left alone, as the holder has changed: a$") as caught:
            call_command("redislocks", "clear", *arguments, stdout=out)
        assert caught.value.returncode == 1
        assert "Cleared" not in out.getvalue()
        force_release("a")


def test_what_came_free_before_the_answer_is_no_failure_of_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {name: hold(name) for name in "ab"}

    def type_yes_late() -> str:
        Lock("a", token=tokens["a"]).release()
        return "yes"

    monkeypatch.setattr("builtins.input", type_yes_late)
    printed = redislocks("clear", "--all")
    assert "Cleared b" in printed
    assert "Cleared a" not in printed


def test_ctrl_c_at_the_question_clears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    hold("a")
    monkeypatch.setattr("builtins.input", interrupt)
    with pytest.raises(CommandError, match=r"^Nothing was cleared\.$"):
        redislocks("clear", "a")
    assert Lock("a").locked()


def test_a_name_given_twice_is_cleared_once() -> None:
    hold("a")
    assert redislocks("clear", "a", "a", "--noinput").count("Cleared a") == 1


def test_nothing_to_clear_by_pattern_is_no_failure() -> None:
    assert redislocks("clear", "--all", "--noinput") == "No locks are held.\n"
    assert redislocks("clear", "--match=x*", "--noinput") == "No lock is held that matches x*.\n"


@pytest.mark.parametrize("arguments", [[], ["a", "--all"], ["a", "--match=a"], ["--all", "--match=a"]])
def test_clear_wants_exactly_one_way_to_say_what(arguments: list[str]) -> None:
    hold("a")
    with pytest.raises(CommandError, match="either names, or --match PATTERN, or --all"):
        redislocks("clear", *arguments, "--noinput")
    assert Lock("a").locked()


def test_clear_refuses_a_name_that_cannot_be_one() -> None:
    with pytest.raises(CommandError, match=r"contains '\\x1b'"):
        redislocks("clear", "a\x1b[2J", "--noinput")


# -- both -------------------------------------------------------------------------------------------------------------


def test_using_names_the_alias(server: RedisServer) -> None:
    backend = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
    with override_settings(CACHES={"default": backend, "other": {**backend, "KEY_PREFIX": "other"}}):
        hold("here")
        hold("there", using="other")
        assert "there" not in redislocks("list")
        assert "here" not in redislocks("list", "--using", "other").replace("there", "")
        assert redislocks("clear", "there", "--using=other", "--noinput").startswith("Cleared there")
        assert Lock("here").locked()


def test_an_unknown_alias_is_a_clear_error() -> None:
    with pytest.raises(CommandError, match=r"no cache alias 'nowhere'.*There are: default, memory"):
        redislocks("list", "--using", "nowhere")


@pytest.mark.parametrize(
    "arguments", [["list"], ["show", "a"], ["clear", "a", "--noinput"], ["clear", "--all", "--noinput"]]
)
def test_redis_out_of_reach_is_a_clear_error(arguments: list[str]) -> None:
    nowhere = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    problem = r"Redis cannot be reached for .*cache alias 'default'"
    with override_settings(CACHES={"default": nowhere}), pytest.raises(CommandError, match=problem) as caught:
        redislocks(*arguments)
    assert caught.value.returncode == 69  # 1 would say that nobody holds the lock


@pytest.mark.parametrize("arguments", [["list"], ["run", "a", "--", "true"]])
def test_the_memory_mode_says_that_it_guards_one_process_only(arguments: list[str]) -> None:
    errors = io.StringIO()
    call_command("redislocks", *arguments[:1], "--using=memory", *arguments[1:], stdout=io.StringIO(), stderr=errors)
    assert errors.getvalue().startswith("The cache alias 'memory' is no Redis: ")


def test_a_subcommand_must_be_given() -> None:
    with pytest.raises(CommandError, match="SUBCOMMAND"):
        redislocks()


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a site would, in a process of its own, without DJANGO_SETTINGS_MODULE."""
    known = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    return subprocess.run(
        [sys.executable, "-m", "django", "redislocks", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        env={**known, "PYTHONPATH": str(ROOT), **environment},
        timeout=60,
        check=False,
    )


def test_djangos_own_options_stand_behind_the_subcommand_too() -> None:
    hold("order:42")
    shown = manage("list", "--settings=tests.settings", "--no-color")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "order:42" in shown.stdout
    cleared = manage("clear", "order:42", "order:43", "--noinput", "-v0", "--settings", "tests.settings")
    assert cleared.returncode == 1
    assert cleared.stdout.startswith("Cleared order:42")
    assert cleared.stderr.endswith("CommandError: Not held: order:43\n")
    assert "Traceback" not in cleared.stderr


def test_redis_out_of_reach_prints_no_traceback() -> None:
    shown = manage("--settings=tests.settings", "list", REDISLOCK_TEST_URL="redis://127.0.0.1:1/0")
    assert (shown.returncode, shown.stdout) == (69, "")
    assert shown.stderr.startswith("CommandError: Redis cannot be reached")
    assert "Traceback" not in shown.stderr


def test_options_before_the_subcommand_survive_it() -> None:
    options = (
        load_command_class("django_redislock", "redislocks")
        .create_parser("manage.py", "redislocks")
        .parse_args(["--traceback", "-v2", "list"])
    )
    assert options.traceback
    assert options.verbosity == 2


# -- show -------------------------------------------------------------------------------------------------------------


def test_show_tells_all_about_a_lock_and_its_queue(wait_for: Callable[[str], threading.Event]) -> None:
    with Lock("order:42", ttl=600) as lock:
        for _ in range(2):
            wait_for("order:42")
        fence, text = lock.fence, redislocks("show", "order:42")
    top, queue = text.split("\n\n")
    facts = dict(re.split(r" {2,}", line, maxsplit=1) for line in top.splitlines())
    assert list(facts) == ["NAME", "OWNER", "SINCE", "HELD FOR", "LEASE LEFT", "FENCE", "TOKEN", "WAITERS"]
    assert (facts["NAME"], facts["FENCE"], facts["WAITERS"]) == ("order:42", str(fence), "2")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+", facts["SINCE"])
    head, *rows = [re.split(r" {2,}", line) for line in queue.splitlines()]
    assert head == ["#", "WAITER", "WAITED", "LOCK"]
    assert [(row[0], row[3]) for row in rows] == [("1", "FairLock"), ("2", "FairLock")]
    assert all(f":{os.getpid()}:" in row[1] for row in rows)


def test_show_of_a_lock_without_waiters_ends_with_the_lock() -> None:
    token = hold("order:42")
    text = redislocks("show", "order:42")
    assert text.endswith("WAITERS     0\n")
    assert token[:8] not in text


def test_show_says_how_many_more_wait_than_it_lists() -> None:
    queue = (WaiterInfo(owner="host:2:Main \x1b[2J", waited=3.0, fair=False),)
    lines = portrait(info(waiters=1234, queue=queue)).splitlines()
    assert lines[-1] == "... and 1233 more"
    assert re.split(r" {2,}", lines[-2])[-2:] == ["3.0 s", "Lock"]
    assert "\\x1b[2J" in lines[-2]


def test_show_of_a_free_lock_fails() -> None:
    with pytest.raises(CommandError, match=r"^Not held: order:42$") as caught:
        redislocks("show", "order:42")
    assert caught.value.returncode == 1


def test_show_as_json_has_the_queue_too(wait_for: Callable[[str], threading.Event]) -> None:
    with Lock("order:42"):
        wait_for("order:42")
        lock = json.loads(redislocks("show", "order:42", "--format=json"))
    assert (lock["name"], lock["waiters"]) == ("order:42", 1)
    ((waiter),) = lock["queue"]
    assert set(waiter) == {"owner", "waited", "fair", "note"}
    assert waiter["fair"] is True


def test_show_refuses_a_name_that_cannot_be_one() -> None:
    with pytest.raises(CommandError, match="control characters"):
        redislocks("show", "a\x1b")


# -- pool -------------------------------------------------------------------------------------------------------------


def test_pool_tells_how_many_are_free_and_who_holds_the_others() -> None:
    pool = LockPool("proxies")
    pool.extend(["a", "b:c", "d"])
    with pool.acquire() as first, pool.acquire() as second:
        text = redislocks("pool", "proxies")
    facts, held = text.split("\n\n")
    assert dict(re.split(r" {2,}", line) for line in facts.splitlines()) == {
        "POOL": "proxies",
        "MEMBERS": "3",
        "FREE": "1",
        "WAITERS": "0",
    }
    assert [line.split()[0] for line in held.splitlines()] == ["NAME", first.name, second.name]


def test_pool_shows_its_queue(eventually: Callable[..., Any]) -> None:
    pool = LockPool("proxies")
    pool.extend(["a"])
    with pool.acquire():
        thread = threading.Thread(target=lambda: pool.acquire(fair=True, blocking_timeout=30).release())
        thread.start()
        eventually(lambda: pool.info().waiters == 1)
        text = redislocks("pool", "proxies")
        found = json.loads(redislocks("pool", "proxies", "--format=json"))
    thread.join()
    assert re.search(r"\n\n#  WAITER +WAITED +LOCK\n1  .*FairLock$", text.rstrip())
    assert (found["name"], found["members"], found["free"], found["waiters"]) == ("proxies", 1, 0, 1)
    assert [lock["name"] for lock in found["locks"]] == ["pool:proxies:a"]
    assert [waiter["fair"] for waiter in found["queue"]] == [True]


def test_a_pool_without_members_fails() -> None:
    with pytest.raises(CommandError, match=r"^No members: proxies$") as caught:
        redislocks("pool", "proxies")
    assert caught.value.returncode == 1


def test_pool_refuses_a_name_that_cannot_be_one() -> None:
    with pytest.raises(CommandError, match="has 607 bytes"):
        redislocks("pool", " " * 200)


# -- list --watch -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Do these things between the looks, then interrupt."""

    def pauses(*deeds: Callable[[], Any]) -> list[float]:
        rest, taken = list(deeds), []

        def pause(seconds: float) -> None:
            taken.append(seconds)
            if not rest:
                raise KeyboardInterrupt
            rest.pop(0)()

        monkeypatch.setattr(watching, "pause", pause)
        return taken

    return pauses


def test_watch_lists_again_and_again_until_interrupted(pauses: Callable[..., list[float]]) -> None:
    taken = pauses(lambda: hold("order:42"))
    first, second = re.split(
        r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, every 2 s\n", redislocks("list", "--watch"), flags=re.M
    )[1:]
    assert first == "No locks are held.\n\n"
    assert "order:42" in second
    assert taken == [2.0, 2.0]


def test_watch_looks_as_often_as_told(pauses: Callable[..., list[float]]) -> None:
    taken = pauses()
    assert "every 0.5 s" in redislocks("list", "order:*", "--watch", "0.5")
    assert taken == [0.5]


def test_watch_as_json_is_a_line_each_time(pauses: Callable[..., list[float]]) -> None:
    pauses(lambda: hold("order:42"))
    lines = redislocks("list", "--watch", "--format=json").splitlines()
    assert [[lock["name"] for lock in json.loads(line)] for line in lines] == [[], ["order:42"]]


def test_watch_goes_on_when_redis_is_out_of_reach(pauses: Callable[..., list[float]]) -> None:
    nowhere = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    pauses(lambda: None)
    with override_settings(CACHES={"default": nowhere}):
        assert redislocks("list", "--watch").count("Redis cannot be reached") == 2
        with pytest.raises(CommandError, match="cannot be reached"):
            redislocks("list", "--watch", "--format=json")


def test_watch_stays_in_place_on_a_terminal(
    pauses: Callable[..., list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("LINES", "6")
    for number in range(9):
        hold(f"order:{number}")
    pauses()
    out = Terminal()
    call_command("redislocks", "list", "--watch", stdout=out, no_color=True)
    text = out.getvalue()
    assert text.startswith("\x1b[H")
    assert text.count("\n") == 5  # the last line of the screen is the cursor's
    assert "order:1" in text
    assert "order:2" not in text
    assert "... and 7 more lines\x1b[K" in text
    call_command("redislocks", "list", "order:8", "--watch", stdout=out, no_color=True)
    assert out.getvalue().endswith("0\x1b[K\x1b[J\x1b[?7h\n")


def test_watch_wants_seconds() -> None:
    with pytest.raises(CommandError, match=r"'order:\*' is no number of seconds"):
        redislocks("list", "--watch", "order:*")
    with pytest.raises(CommandError, match=r"at least 0\.001"):
        redislocks("list", "--watch=0")


def start_watch() -> subprocess.Popen[str]:
    known = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    return subprocess.Popen(
        [sys.executable, "-m", "django", "redislocks", "list", "--watch", "0.05", "--settings=tests.settings"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**known, "PYTHONPATH": str(ROOT)},
    )


def test_ctrl_c_ends_a_watch_without_a_word() -> None:
    process = start_watch()
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


def test_a_reader_who_has_seen_enough_ends_a_watch_without_a_word() -> None:
    process = start_watch()  # | head -n 1
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert (process.wait(30), process.stderr.read()) == (128 + signal.SIGPIPE, "")
    process.stderr.close()


def test_a_reader_who_has_seen_enough_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit) as caught:
            load_command_class("django_redislock", "redislocks").run_from_argv(["manage.py", "redislocks", "list"])
    assert caught.value.code == 128 + signal.SIGPIPE


def test_from_code_a_broken_pipe_is_the_callers_own_business() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        call_command("redislocks", "list", stdout=Broken())
