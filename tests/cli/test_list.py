"""``redislocks list``, and what holds for every subcommand."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import unicodedata
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command, load_command_class
from django.test import override_settings

from django_redislock import Lock, get_lock
from tests.cli.conftest import NOWHERE, Done, InProcess, Terminal, WaitFor, fails, hold, redislocks
from tests.helpers.actors import GENEROUS
from tests.helpers.state import put


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line)


def width(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def test_it_says_so_when_no_locks_are_held_or_none_matches() -> None:
    assert redislocks("list") == "No locks are held.\n"
    assert json.loads(redislocks("list", "--format", "json")) == []
    hold("order:1")
    assert redislocks("list", "seat:*") == "No held lock matches seat:*.\n"
    assert redislocks("list", "") == "No held lock matches ''.\n"


def test_it_shows_name_owner_durations_fence_and_waiters(wait_for: WaitFor) -> None:
    with Lock("order:42", ttl=600) as lock:
        wait_for("order:42")
        fence, (head, row) = lock.fence, redislocks("list").splitlines()
    assert cells(head) == ["NAME", "OWNER", "HELD FOR", "LEASE LEFT", "FENCE", "WAITERS"]
    name, owner, held_for, left, shown_fence, waiters = cells(row)
    assert (name, shown_fence, waiters) == ("order:42", str(fence), "1")
    assert f":{os.getpid()}:" in owner
    assert re.fullmatch(r"\d+(\.\d)? s", held_for)
    assert re.fullmatch(r"(9 min \d+ s|10 min 0 s)", left)


def test_it_shows_only_what_matches_sorted_by_name_and_notes_if_there_are_any() -> None:
    hold("order:2", "seat:1")
    hold("order:1", note="of two\nlines")
    head, first, second = redislocks("list", "order:*").splitlines()
    assert head.endswith("  WAITERS  NOTE")
    assert re.match(r"order:1 .*  0        'of two\\nlines'$", first)
    assert re.match(r"order:2 .*  0$", second)
    assert "NOTE" not in redislocks("list", "seat:*")


@pytest.mark.usefixtures("endless")
def test_locks_that_never_end_are_listed() -> None:
    rows = [cells(line) for line in redislocks("list").splitlines()[1:]]
    assert [(name, owner, left) for name, owner, _, left, *_ in rows] == [
        ("foreign", "?", "without end"),
        ("persisted", "web-1", "without end"),
        ("sound", "host:1:Main", rows[2][3]),
    ]


def test_json_is_for_programs() -> None:
    hold("order:42", ttl=100, note="of the year")
    (lock,) = json.loads(redislocks("list", format="json"))
    keys = ["name", "alias", "owner", "since", "held_for", "lease_left", "expires", "fence", "waiters"]
    assert list(lock) == [*keys, "pool_waiters", "note", "held", "suspension", "handed_over"]
    since, expires = datetime.fromisoformat(lock["since"]), datetime.fromisoformat(lock["expires"])
    assert since.utcoffset() == timedelta()
    assert isinstance(lock["held_for"], float)
    assert 0 < lock["lease_left"] <= 100
    # it was detached, and its lease counts from then on
    lasts = timedelta(seconds=lock["held_for"] + lock["lease_left"])
    assert expires - since == pytest.approx(lasts, abs=timedelta(seconds=0.01))
    assert (lock["name"], lock["alias"], lock["waiters"], lock["note"]) == ("order:42", "default", 0, "of the year")
    seen = get_lock("order:42")
    assert seen is not None
    assert (lock["owner"], lock["fence"]) == (seen.owner, seen.fence)


@pytest.mark.parametrize(
    "arguments", ["list", "list --format=json", "show a", "show a --format=json", "clear a --noinput"]
)
def test_tokens_are_never_printed(arguments: str) -> None:
    token, printed = hold("a"), redislocks(*arguments.split())
    assert re.search(r"\ba\b", printed)
    assert token[:8] not in printed


def test_columns_stay_aligned_with_wide_and_combining_characters() -> None:
    hold("plain", "e\u0301e", "鍵")
    head, *rows = redislocks("list").splitlines()
    place = head.index("OWNER")
    assert rows[0].index(rows[0].split()[1]) == place + 1
    assert rows[1].index(rows[1].split()[1]) == place
    assert rows[2].index(rows[2].split()[1]) == place - 1


# -- --watch ----------------------------------------------------------------------------------------------------------


class Watched(io.StringIO):
    """Does these things, one after each list; then it interrupts, as Ctrl-C does."""

    def __init__(self, *deeds: Callable[[], Any]) -> None:
        super().__init__()
        self._deeds = list(deeds)

    def flush(self) -> None:
        super().flush()
        if not self._deeds:
            raise KeyboardInterrupt
        self._deeds.pop(0)()


class WatchedTerminal(Watched, Terminal):
    pass


def watch(out: Watched, *arguments: str) -> str:
    call_command("redislocks", "list", *arguments, stdout=out, no_color=True)
    return out.getvalue()


def test_it_lists_again_and_again_until_interrupted() -> None:
    printed = watch(Watched(lambda: hold("order:42")), "--watch=0.01")
    first, second = re.split(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, every 0\.01 s\n", printed, flags=re.M)[1:]
    assert first == "No locks are held.\n\n"
    assert "order:42" in second
    assert ", every 2 s\n" in watch(Watched(), "order:*", "--watch")


def test_watched_as_json_it_is_a_line_each_time() -> None:
    lines = watch(Watched(lambda: hold("order:42")), "--watch=0.01", "--format=json").splitlines()
    assert [[lock["name"] for lock in json.loads(line)] for line in lines] == [[], ["order:42"]]


@pytest.mark.complete
def test_watching_goes_on_when_redis_is_out_of_reach() -> None:
    with override_settings(CACHES=NOWHERE):
        assert watch(Watched(lambda: None), "--watch=0.01").count("Redis cannot be reached") == 2
        with pytest.raises(CommandError, match="cannot be reached"):
            watch(Watched(), "--watch", "--format=json")


def test_long_texts_are_cut_to_the_terminal_and_the_numbers_stay(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "order:" + "x" * 200, owner=f"host:1:Main\n{'n' * 300}")
    put(client, "鍵" * 100, owner=f"host:1:Main {'y' * 180}")
    for columns, most in (("110", 110), ("10", 120)):  # below that, the terminal cuts
        monkeypatch.setenv("COLUMNS", columns)
        head, *rows = re.findall(r"^(?:\x1b\S*)?(.*?)\x1b\[K", watch(WatchedTerminal(), "--watch"), re.M)[1:]
        assert head.split() == ["NAME", "OWNER", "HELD", "FOR", "LEASE", "LEFT", "FENCE", "WAITERS", "NOTE"]
        for row in rows:
            assert width(row) <= most
            assert re.search(r"… .* s +(5\d(\.\d)? s|1 min 0 s) +\d{16} +0", row)
        assert rows[0].endswith("n…")
    assert "…" not in redislocks("list")


def test_watching_stays_in_place_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "6")
    monkeypatch.setenv("COLUMNS", "200")
    hold(*(f"order:{number}" for number in range(9)))
    text = watch(WatchedTerminal(), "--watch")
    assert text.startswith("\x1b[H")
    assert text.count("\n") == 5  # the last line of the screen is for the cursor
    assert "order:1" in text
    assert "order:2" not in text
    assert "... and 7 more lines\x1b[K" in text
    assert watch(WatchedTerminal(), "order:8", "--watch").endswith("0\x1b[K\x1b[J\x1b[?7h\n")


def test_the_interval_must_be_seconds() -> None:
    fails(1, r"'order:\*' is not a number of seconds", "list", "--watch", "order:*")
    fails(1, r"at least 0\.001", "list", "--watch=0")


@pytest.mark.parametrize("ends", ["Ctrl-C", "a closed pipe"])
def test_a_watch_in_a_shell_ends_silently(ends: str, in_process: InProcess) -> None:
    process = in_process("list", "--watch", "0.05", stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stderr is not None
    for _ in range(4):
        assert process.stdout.readline()
    if ends == "Ctrl-C":
        process.send_signal(signal.SIGINT)
    else:
        process.stdout.close()  # | head -n 4
    status = process.wait(GENEROUS)
    assert (status, process.stderr.read()) == (0 if ends == "Ctrl-C" else 128 + signal.SIGPIPE, "")


# -- every subcommand -----------------------------------------------------------------------------------------------


def test_a_subcommand_must_be_given() -> None:
    fails(1, "SUBCOMMAND")


def test_an_unknown_alias_is_a_clear_error() -> None:
    fails(2, r"Unknown cache alias 'nowhere'.*The aliases in CACHES are: default, memory", "list", "--using=nowhere")


@pytest.mark.parametrize(
    "arguments",
    ["list", "show a", "pool a", "clear a --noinput", "clear --all --noinput", "run a -- false"],
)
def test_redis_out_of_reach_is_a_clear_error(arguments: str) -> None:
    with override_settings(CACHES=NOWHERE):  # 1 would say that nobody holds the lock, or that the program has failed
        fails(69, r"Redis cannot be reached for .*cache alias 'default'", *arguments.split())


@pytest.mark.parametrize("arguments", [["list"], ["run", "a", "--", "true"]])
def test_the_memory_mode_says_that_it_guards_one_process_only(arguments: list[str], settings: Any) -> None:
    settings.DEBUG = True
    errors = io.StringIO()
    redislocks(*arguments[:1], "--using=memory", *arguments[1:], stderr=errors)
    assert errors.getvalue().startswith("The cache alias 'memory' is not Redis: ")


@pytest.mark.complete
def test_djangos_own_options_may_stand_on_both_sides_of_the_subcommand(done: Done) -> None:
    hold("order:42")
    assert "order:42" in done("list", "--no-color")[1]
    status, out, err = done("clear", "order:42", "order:43", "--noinput", "-v0")
    assert status == 1
    assert out.startswith("Force-released order:42")
    assert err.endswith("\nCommandError: Not held: order:43\n")
    assert "Traceback" not in err
    parser = load_command_class("django_redislock", "redislocks").create_parser("manage.py", "redislocks")
    options = parser.parse_args(["--traceback", "-v2", "list"])
    assert (options.traceback, options.verbosity) == (True, 2)


@pytest.mark.parametrize("arguments", [["list"], ["run", "a", "--", "true"]])
def test_redis_out_of_reach_prints_one_line_and_no_traceback(arguments: list[str], done: Done) -> None:
    status, out, err = done(*arguments, environment={"REDISLOCK_TEST_URL": "redis://127.0.0.1:1/0"})
    assert (status, out, err.count("\n")) == (69, "", 1)
    assert err.startswith("CommandError: Redis cannot be reached")
