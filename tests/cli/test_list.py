"""``redislocks list``, and what holds for every subcommand."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command, load_command_class
from django.test import override_settings

from django_redislock import Lock, LockInfo, get_lock
from django_redislock.cli.formats import _width as text_width
from django_redislock.cli.formats import table
from redisserver import RedisServer
from tests.cli.conftest import NOWHERE, InProcess, WaitFor, hold, redislocks
from tests.helpers.actors import GENEROUS


def info(name: str) -> LockInfo:
    now = datetime.now(timezone.utc)
    return LockInfo(name, "host:1:Main", 7, now, held_for=1.0, lease_left=2.0, waiters=0, token_hint="abcd…")


# -- list -----------------------------------------------------------------------------------------------------------


def test_it_says_so_when_no_locks_are_held() -> None:
    assert redislocks("list") == "No locks are held.\n"


def test_it_says_so_when_no_held_lock_matches() -> None:
    hold("order:1")
    assert redislocks("list", "seat:*") == "No held lock matches seat:*.\n"
    assert redislocks("list", "") == "No held lock matches ''.\n"


def test_it_shows_name_owner_durations_fence_and_waiters(wait_for: WaitFor) -> None:
    with Lock("order:42", ttl=600) as lock:
        wait_for("order:42")
        fence, (head, row) = lock.fence, redislocks("list").splitlines()
    assert re.split(r" {2,}", head) == ["NAME", "OWNER", "HELD FOR", "LEASE LEFT", "FENCE", "WAITERS"]
    name, owner, held_for, left, shown_fence, waiters = re.split(r" {2,}", row)
    assert name == "order:42"
    assert f":{os.getpid()}:" in owner
    assert re.fullmatch(r"\d+(\.\d)? s", held_for)
    assert re.fullmatch(r"(9 min \d+ s|10 min 0 s)", left)
    assert (shown_fence, waiters) == (str(fence), "1")


def test_notes_have_a_column_if_there_are_any() -> None:
    hold("a")
    assert "NOTE" not in redislocks("list")
    hold("b", note="of two\nlines")
    head, a, b = redislocks("list").splitlines()
    assert head.endswith("  WAITERS  NOTE")
    assert a.endswith("  0")
    assert b.endswith(r"  0        'of two\nlines'")


def test_long_texts_are_cut_to_the_terminal_and_the_numbers_stay() -> None:
    locks = [
        replace(info("order:" + "x" * 200), note="n" * 300),
        replace(info("鍵" * 100), owner="host:1:Main " + "y" * 180),
    ]
    head, *rows = table(locks, room=100).splitlines()
    assert head.split() == ["NAME", "OWNER", "HELD", "FOR", "LEASE", "LEFT", "FENCE", "WAITERS", "NOTE"]
    for row in rows:
        assert text_width(row) <= 100
        assert re.search(r"… .* 1\.0 s {5}2\.0 s {7}7 {6}0", row)
    assert rows[0].endswith("n…")
    assert table([info("short")], room=100) == table([info("short")])
    assert max(map(text_width, table(locks, room=10).splitlines())) < 120, "below that, the terminal cuts"


def test_it_shows_only_what_matches_sorted_by_name() -> None:
    for name in ("order:2", "order:1", "seat:1"):
        hold(name)
    assert [line.split()[0] for line in redislocks("list", "order:*").splitlines()] == ["NAME", "order:1", "order:2"]


@pytest.mark.usefixtures("endless")
def test_locks_that_never_end_are_listed() -> None:
    rows = [re.split(r" {2,}", line) for line in redislocks("list").splitlines()[1:]]
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
    assert expires - since == pytest.approx(
        timedelta(seconds=lock["held_for"] + lock["lease_left"]), abs=timedelta(seconds=0.01)
    )
    assert (lock["name"], lock["alias"], lock["waiters"], lock["note"]) == ("order:42", "default", 0, "of the year")
    seen = get_lock("order:42")
    assert seen is not None
    assert (lock["owner"], lock["fence"]) == (seen.owner, seen.fence)


def test_json_of_no_locks_is_an_empty_list() -> None:
    assert json.loads(redislocks("list", "--format", "json")) == []


def test_tokens_are_never_printed() -> None:
    token = hold("order:42")
    everything = [["list"], ["list", "--format=json"], ["show", "order:42"], ["show", "order:42", "--format=json"]]
    everything += [["clear", "order:42", "--noinput"]]
    for arguments in everything:
        printed = redislocks(*arguments)
        assert "order:42" in printed
        assert token[:8] not in printed


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


# -- every subcommand -----------------------------------------------------------------------------------------------


def test_a_subcommand_must_be_given() -> None:
    with pytest.raises(CommandError, match="SUBCOMMAND"):
        redislocks()


def test_using_names_the_alias(server: RedisServer) -> None:
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
    with override_settings(CACHES={"default": entry, "other": {**entry, "KEY_PREFIX": "other"}}):
        hold("here")
        hold("there", using="other")
        assert "there" not in redislocks("list")
        assert "here" not in redislocks("list", "--using", "other").replace("there", "")
        assert redislocks("show", "there", "--using=other").startswith("NAME        there\n")
        assert redislocks("clear", "there", "--using=other", "--noinput").startswith("Force-released there")
        assert Lock("here").locked()


def test_an_unknown_alias_is_a_clear_error() -> None:
    with pytest.raises(
        CommandError, match=r"Unknown cache alias 'nowhere'.*The aliases in CACHES are: default, memory"
    ) as caught:
        redislocks("list", "--using", "nowhere")
    assert caught.value.returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["show", "a"], ["pool", "a"], ["clear", "a", "--noinput"], ["clear", "--all", "--noinput"]],
    ids=" ".join,
)
def test_redis_out_of_reach_is_a_clear_error(arguments: list[str]) -> None:
    problem = r"Redis cannot be reached for .*cache alias 'default'"
    with override_settings(CACHES=NOWHERE), pytest.raises(CommandError, match=problem) as caught:
        redislocks(*arguments)
    assert caught.value.returncode == 69  # 1 would say that nobody holds the lock


@pytest.mark.parametrize("arguments", [["list"], ["run", "a", "--", "true"]])
def test_the_memory_mode_says_that_it_guards_one_process_only(arguments: list[str], settings: Any) -> None:
    settings.DEBUG = True
    errors = io.StringIO()
    call_command("redislocks", *arguments[:1], "--using=memory", *arguments[1:], stdout=io.StringIO(), stderr=errors)
    assert errors.getvalue().startswith("The cache alias 'memory' is not Redis: ")


@pytest.mark.complete
def test_djangos_own_options_may_follow_the_subcommand_too(in_process: InProcess) -> None:
    hold("order:42")
    shown = in_process("list", "--settings=tests.settings", "--no-color")
    assert "order:42" in shown.communicate(timeout=GENEROUS)[0]
    assert shown.returncode == 0
    cleared = in_process("clear", "order:42", "order:43", "--noinput", "-v0", "--settings", "tests.settings")
    out, err = cleared.communicate(timeout=GENEROUS)
    assert cleared.returncode == 1
    assert out.startswith("Force-released order:42")
    assert err.endswith("\nCommandError: Not held: order:43\n")
    assert "Traceback" not in err


@pytest.mark.complete
def test_redis_out_of_reach_prints_no_traceback(in_process: InProcess) -> None:
    shown = in_process("--settings=tests.settings", "list", environment={"REDISLOCK_TEST_URL": "redis://127.0.0.1:1/0"})
    out, err = shown.communicate(timeout=GENEROUS)
    assert (shown.returncode, out) == (69, "")
    assert err.startswith("CommandError: Redis cannot be reached")
    assert err.count("\n") == 1


def test_options_before_the_subcommand_are_kept() -> None:
    parser = load_command_class("django_redislock", "redislocks").create_parser("manage.py", "redislocks")
    options = parser.parse_args(["--traceback", "-v2", "list"])
    assert options.traceback
    assert options.verbosity == 2


# -- a reader who has seen enough -----------------------------------------------------------------------------------


def test_a_closed_pipe_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit) as caught:
            load_command_class("django_redislock", "redislocks").run_from_argv(["manage.py", "redislocks", "list"])
    assert caught.value.code == 128 + signal.SIGPIPE


def test_an_unbuffered_output_is_written_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sluggish(io.FileIO):
        def write(self, data: Any, /) -> int:
            return super().write(data[:100])

    hold("order:1", note="ä" * 300)
    with tempfile.TemporaryFile() as file:
        out = io.TextIOWrapper(Sluggish(file.fileno(), "wb", closefd=False), encoding="utf-8", write_through=True)
        call_command("redislocks", "list", "--format", "json", stdout=out)
        file.seek(0)
        printed = file.read()
    assert printed.endswith(b"]\n")
    assert json.loads(printed)[0]["note"] == "ä" * 300


def test_a_closed_pipe_of_an_unbuffered_output_is_no_error(in_process: InProcess) -> None:
    """A single write to the pipe takes only a part of the output."""
    for number in range(300):
        hold(f"order:{number}")
    process = in_process("list", "--format=json", "--settings=tests.settings", environment={"PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    assert process.stderr is not None
    os.read(process.stdout.fileno(), 1)
    process.stdout.close()
    assert (process.wait(GENEROUS), process.stderr.read()) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_full_disk_is_an_error(unbuffered: str, in_process: InProcess) -> None:
    with open("/dev/full", "w") as full:
        environment = {"PYTHONUNBUFFERED": unbuffered}
        process = in_process("list", "--settings=tests.settings", stdout=full, environment=environment)
        _, err = process.communicate(timeout=GENEROUS)
    assert (process.returncode, err) == (74, "CommandError: Could not write the output: No space left on device\n")


def test_in_a_call_from_code_the_error_of_a_full_disk_propagates() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        out = io.TextIOWrapper(full, write_through=True)
        with pytest.raises(OSError, match="No space left"):
            call_command("redislocks", "list", stdout=out)


def test_an_output_that_would_block_is_an_error() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb", buffering=0) as full:
        while full.write(b"x" * 65536):
            pass
        out = io.TextIOWrapper(full, write_through=True)
        with pytest.raises(BlockingIOError):
            call_command("redislocks", "list", stdout=out)


def test_in_a_call_from_code_the_error_of_a_broken_pipe_propagates() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        call_command("redislocks", "list", stdout=Broken())


# -- what would steer the terminal ----------------------------------------------------------------------------------


def test_control_sequences_are_escaped(client: redis.Redis) -> None:
    hold("order:\u202e42")
    value = f"{'t' * 22} channel c 5 1700000000000000 - \x1b]0;owned\x07host"
    client.set("redislock{0}:lock:order:43", value, px=60_000)
    client.zadd("redislock{0}:index", {"order:43": 4e15})
    clear: list[tuple[list[str], dict[str, Any]]] = [
        (["clear", "--all", "--dry-run"], {}),
        (["clear", "--all"], {"interactive": False}),
    ]
    for arguments, options in [(["list"], {}), (["list", "--format=json"], {}), *clear]:
        printed = redislocks(*arguments, **options)
        assert printed.replace("\n", "").isprintable()
        assert "\\u202e42" in printed
        assert "]0;owned" in printed
