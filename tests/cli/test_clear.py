"""``redislocks clear`` force-releases locks, whoever holds them."""

from __future__ import annotations

import io
import os
import pwd
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from django_redislock import Lock, LockLost, LockUnavailable, force_release
from tests.cli.conftest import Answer, Eventually, InProcess, WaitFor, hold, redislocks
from tests.helpers.actors import GENEROUS

OPERATOR = f"{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_named_locks_are_released_and_their_holders_are_shown() -> None:
    for name in ("a", "b", "c"):
        hold(name)
    printed = redislocks("clear", "a", "b", "--noinput")
    assert [line.split(",")[0] for line in printed.splitlines()] == ["Force-released a", "Force-released b"]
    assert f":{os.getpid()}:" in printed
    assert [Lock(name).locked() for name in "abc"] == [False, False, True]


def test_the_next_waiter_gets_the_lock(wait_for: WaitFor) -> None:
    hold("a", ttl=600)
    waiting = wait_for("a")
    assert redislocks("clear", "a", "--noinput").endswith(", 1 waiting.\n")
    assert waiting.result(GENEROUS)


def test_the_old_holder_is_told(eventually: Eventually) -> None:
    losses: list[LockLost] = []
    lock = Lock("a", ttl=600, on_lost=losses.append)
    lock.acquire()
    redislocks("clear", "a", "--noinput")
    eventually(lambda: losses)
    assert "force-released" in losses[0].reason
    assert lock.lost
    with pytest.raises(LockLost):
        lock.release()


def test_the_site_is_told_who_did_it(heard: list[tuple[str, dict[str, Any]]]) -> None:
    hold("a")
    redislocks("clear", "a", "--noinput")
    told = [(facts["name"], facts["by"]) for which, facts in heard if which == "force"]
    assert told == [("a", f"{OPERATOR} by manage.py redislocks clear")]


def test_the_log_tells_who_did_it(caplog: pytest.LogCaptureFixture) -> None:
    hold("a")
    redislocks("clear", "a", "--noinput")
    assert f'event=force-released name=a by="{OPERATOR} by manage.py redislocks clear" owner=' in caplog.text


def test_a_system_user_without_a_name_is_shown_by_number(
    heard: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    hold("a")
    redislocks("clear", "a", "--noinput")
    ((by),) = [facts["by"] for which, facts in heard if which == "force"]
    assert by.startswith(f"987654@{socket.gethostname()} ")


# -- in the admin's history -------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(("name", "options"), [(OPERATOR.partition("@")[0], []), ("jo", ["--user", "jo"])])
def test_it_stands_in_the_history_of_the_lock(name: str, options: list[str]) -> None:
    user = User.objects.create_superuser(name)
    hold("a")
    redislocks("clear", "a", "--noinput", *options)
    (entry,) = LogEntry.objects.all()
    assert (entry.user, entry.object_id, entry.action_flag) == (user, "a", DELETION)
    assert re.match(r"Force-released\. It was held by \S+ for 0\.\d s, fence \d+\. \(", entry.change_message)
    assert entry.change_message.endswith(f" ({OPERATOR} by manage.py redislocks clear)")


@pytest.mark.django_db
def test_a_user_unknown_to_the_site_is_refused_before_anything_is_released() -> None:
    hold("a")
    with pytest.raises(CommandError, match=r"^Nothing was force-released: the site has no user 'nobody'\.$"):
        redislocks("clear", "a", "--noinput", "--user", "nobody")
    assert Lock("a").locked()


@pytest.mark.django_db
def test_a_system_user_who_is_no_user_of_the_site_gets_a_message() -> None:
    hold("a")
    err = io.StringIO()
    redislocks("clear", "a", "--noinput", stderr=err)
    name = OPERATOR.partition("@")[0]
    assert err.getvalue() == (
        f"Not recorded in the admin's history: the site has no user {name!r}. Name one with --user.\n"
    )
    assert not Lock("a").locked()


@pytest.mark.parametrize("options", [[], ["--user", "jo"]])
def test_a_lock_is_cleared_even_if_the_database_cannot_be_reached(options: list[str]) -> None:
    hold("a")
    err = io.StringIO()
    redislocks("clear", "a", "--noinput", *options, stderr=err)  # pytest-django forbids the database
    assert err.getvalue().startswith("Not recorded in the admin's history: Database access not allowed")
    assert not Lock("a").locked()


@pytest.fixture
def _no_admin(settings: Any) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django.contrib.admin"]


@pytest.mark.usefixtures("_no_admin")
def test_a_site_without_the_admin_has_no_history() -> None:
    hold("a")
    err = io.StringIO()
    redislocks("clear", "a", "--noinput", stderr=err)
    assert err.getvalue() == ""


@pytest.mark.usefixtures("_no_admin")
def test_a_user_is_refused_without_a_history_before_anything_is_released() -> None:
    hold("a")
    with pytest.raises(CommandError, match=r"no history without django\.contrib\.admin") as caught:
        redislocks("clear", "a", "--noinput", "--user", "jo")
    assert caught.value.returncode == 2
    assert Lock("a").locked()


# -- which ones -----------------------------------------------------------------------------------------------------


def test_a_pattern_leaves_the_others() -> None:
    for name in ("order:1", "order:2", "seat:1"):
        hold(name)
    assert redislocks("clear", "--match", "order:*", "--noinput").count("Force-released order:") == 2
    assert re.findall(r"^\S+:\d", redislocks("list"), re.M) == ["seat:1"]


def test_all_means_everything() -> None:
    hold("order:1")
    hold("seat:1")
    assert redislocks("clear", "--all", "--noinput").count("Force-released ") == 2
    assert redislocks("list") == "No locks are held.\n"


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("arguments", [["--all"], ["--match=*"], ["persisted", "foreign", "sound"]], ids=" ".join)
def test_locks_that_never_end_are_cleared_like_any(arguments: list[str]) -> None:
    printed = redislocks("clear", "--noinput", *arguments)
    assert set(re.findall(r"^Force-released (\w+)", printed, re.M)) == {"persisted", "foreign", "sound"}
    assert redislocks("list") == "No locks are held.\n"


def test_a_pattern_that_matches_no_lock_is_no_failure() -> None:
    assert redislocks("clear", "--all", "--noinput") == "No locks are held.\n"
    assert redislocks("clear", "--match=x*", "--noinput") == "No held lock matches x*.\n"


@pytest.mark.parametrize("arguments", [[], ["a", "--all"], ["a", "--match=a"], ["--all", "--match=a"]], ids=" ".join)
def test_names_a_pattern_or_all_must_be_given_and_only_one_of_them(arguments: list[str]) -> None:
    hold("a")
    with pytest.raises(CommandError, match="either names, or --match PATTERN, or --all") as caught:
        redislocks("clear", *arguments, "--noinput")
    assert caught.value.returncode == 2
    assert Lock("a").locked()


def test_a_name_given_twice_is_cleared_once() -> None:
    hold("a")
    assert redislocks("clear", "a", "a", "--noinput").count("Force-released a") == 1


def test_a_name_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(CommandError, match=r"contains '\\x1b'"):
        redislocks("clear", "a\x1b[2J", "--noinput")


def test_it_fails_when_a_named_lock_is_not_held_and_clears_the_others() -> None:
    hold("a")
    with pytest.raises(CommandError, match=r"^Not held: b, c$") as caught:
        redislocks("clear", "b", "a", "c", "--noinput")
    assert caught.value.returncode == 1
    assert not Lock("a").locked()


def test_a_dry_run_only_says_what_would_be_cleared() -> None:
    hold("order:1")
    hold("seat:1")
    printed = redislocks("clear", "--match", "order:*", "--dry-run")
    assert printed.startswith("Would force-release:\n")
    assert "order:1" in printed
    assert "seat:1" not in printed
    assert Lock("order:1").locked()


@pytest.mark.parametrize("arguments", [["clear", "order:*", "--noinput"], ["show", "order:*"]])
def test_a_pattern_given_as_a_name_is_an_error_that_names_the_option(arguments: list[str]) -> None:
    hold("order:42")
    with pytest.raises(CommandError, match=r"^Not held: order:\*\nNAME is not a pattern: .* --match PATTERN\.$"):
        redislocks(*arguments)
    assert Lock("order:42").locked()


def test_a_dry_run_fails_too_when_a_named_lock_is_not_held() -> None:
    with pytest.raises(CommandError, match=r"^Not held: b$"):
        redislocks("clear", "b", "--dry-run")


# -- the question ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("yes", ["y", "yes", "Y", " YES "])
def test_it_asks_first_and_shows_what_it_would_clear(yes: str, answer: Answer) -> None:
    hold("a")
    hold("b")
    answer(yes)
    asked = io.StringIO()
    printed = redislocks("clear", "a", "b", stderr=asked)
    assert re.search(rf":{os.getpid()}:.*\n\n.*\nForce-release 2 locks\? \[y/N\] ", asked.getvalue())
    assert printed.count("Force-released ") == 2


def test_it_asks_on_the_terminal_if_the_output_is_one(answer: Answer) -> None:
    hold("a")
    answer("yes")
    out, err = Terminal(), io.StringIO()
    call_command("redislocks", "clear", "a", stdout=out, stderr=err)
    assert "Force-release 1 lock? [y/N] " in out.getvalue()
    assert "Force-release 1 lock" not in err.getvalue()


@pytest.mark.parametrize("no", ["", "n", "no", "yeah", "a"])
def test_everything_is_left_alone_when_the_answer_is_not_yes(no: str, answer: Answer) -> None:
    hold("a")
    answer(no)
    with pytest.raises(CommandError, match=r"^Nothing was force-released\.$"):
        redislocks("clear", "a")
    assert Lock("a").locked()


def test_nothing_happens_when_nobody_can_be_asked(answer: Answer) -> None:
    hold("a")
    answer(None)
    with pytest.raises(CommandError, match="--noinput"):
        redislocks("clear", "a")
    assert Lock("a").locked()


@pytest.mark.parametrize("closed", [0, 1])
def test_nothing_happens_if_a_stream_needed_for_the_question_is_closed(closed: int, in_process: InProcess) -> None:
    hold("a")
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": None, "preexec_fn": lambda: os.close(closed)}
    process = in_process("clear", "a", "--settings=tests.settings", **streams)
    _, err = process.communicate(timeout=GENEROUS)
    assert process.returncode == 1
    assert err.endswith("CommandError: Nothing was force-released: nobody is there to confirm it. Give --noinput.\n")
    assert Lock("a").locked()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_stream_gets_nothing_and_is_no_error(stream: str, in_process: InProcess) -> None:
    hold("a")
    closed: dict[str, Any] = {stream: None, "preexec_fn": lambda: os.close(1 if stream == "stdout" else 2)}
    for arguments in (["list"], ["show", "a"], ["clear", "a", "--noinput"]):
        process = in_process(*arguments, "--settings=tests.settings", **closed)
        _, err = process.communicate(timeout=GENEROUS)
        assert process.returncode == 0
        assert "Traceback" not in (err or "")
    assert not Lock("a").locked()


def test_an_undecodable_answer_is_not_a_yes(typed: Callable[..., None]) -> None:
    hold("a")
    typed(lambda: b"\xff".decode())
    with pytest.raises(CommandError, match=r"^Nothing was force-released\.$"):
        redislocks("clear", "a")
    assert Lock("a").locked()


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Answer yes, but only after something else has happened."""

    def typed(first: Callable[[], Any]) -> None:
        def type_yes_late() -> str:
            first()
            return "yes"

        monkeypatch.setattr("builtins.input", type_yes_late)

    return typed


def test_a_lock_that_came_free_before_the_answer_counts_as_not_held(typed: Callable[..., None]) -> None:
    token = hold("a")
    typed(lambda: Lock("a", token=token).release())
    with pytest.raises(CommandError, match=r"^Not held: a$"):
        redislocks("clear", "a")


def test_a_lock_of_a_pattern_that_came_free_before_the_answer_is_no_failure(typed: Callable[..., None]) -> None:
    tokens = {name: hold(name) for name in "ab"}
    typed(lambda: Lock("a", token=tokens["a"]).release())
    printed = redislocks("clear", "--all")
    assert "Force-released b" in printed
    assert "Force-released a" not in printed


def test_when_all_came_free_before_the_answer_it_says_so_and_fails(typed: Callable[..., None]) -> None:
    token = hold("a")
    typed(lambda: Lock("a", token=token).release())
    with pytest.raises(
        CommandError, match=r"^Nothing was force-released: nobody holds these locks any more\.$"
    ) as caught:
        redislocks("clear", "--match=a")
    assert caught.value.returncode == 1


@pytest.mark.parametrize("argument", ["a", "--all"])
def test_a_holder_that_came_after_the_question_is_spared(
    argument: str, typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    token = hold("a")

    def change_hands() -> None:
        Lock("a", token=token).release()
        hold("a")

    typed(change_hands)
    with pytest.raises(CommandError, match=r"^Left alone, since the holder has changed: a$") as caught:
        call_command("redislocks", "clear", argument)
    assert caught.value.returncode == 1
    assert "Cleared" not in capsys.readouterr().out
    assert force_release("a")


def test_a_closed_pipe_stops_no_release(in_process: InProcess) -> None:
    names = [f"order:{number}" for number in range(3)]
    for name in names:
        hold(name)
    reading, writing = os.pipe()
    process = in_process("clear", "--all", "--noinput", "--settings=tests.settings", stdout=writing)
    os.close(reading)
    os.close(writing)
    process.communicate(timeout=GENEROUS)
    assert process.returncode == 128 + signal.SIGPIPE
    assert [Lock(name).locked() for name in names] == [False] * 3


def test_locks_released_before_an_outage_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(name: str, **options: Any) -> Any:
        if name == "b":
            raise LockUnavailable(name, "gone")
        return force_release(name, **options)

    for name in "ab":
        hold(name)
    monkeypatch.setattr("django_redislock.cli.clear.force_release", release)
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("redislocks", "clear", "--all", "--noinput", stdout=out)
    assert caught.value.returncode == 69
    assert out.getvalue().startswith("Force-released a, ")


def test_each_message_is_printed_once(in_process: InProcess) -> None:
    for name in ("order:1", "order:2"):
        hold(name)
    process = in_process("clear", "--match", "order:*", "--noinput", "--settings=tests.settings")
    out, err = process.communicate(timeout=GENEROUS)
    assert [line.split(",")[0] for line in out.splitlines()] == ["Force-released order:1", "Force-released order:2"]
    assert err == "Not recorded in the admin's history: no such table: auth_user\n"
