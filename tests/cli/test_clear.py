"""``redislocks clear`` force-releases locks, whoever holds them."""

from __future__ import annotations

import io
import os
import pwd
import re
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import User
from django.core.management import call_command

from django_redislock import Lock, LockLost, force_release, lock_force_released
from redisserver import RedisServer
from tests.cli.conftest import Answer, Done, Eventually, InProcess, Terminal, WaitFor, fails, held, hold, redislocks
from tests.helpers.actors import GENEROUS

USER, HOST = pwd.getpwuid(os.getuid()).pw_name, socket.gethostname()
BY = f"{USER}@{HOST} by manage.py redislocks clear"


def cleared(*arguments: str, **options: Any) -> str:
    """The names of the locks, of one letter each, that were force-released."""
    return "".join(re.findall(r"^Force-released (\w)\b", redislocks("clear", *arguments, **options), re.M))


def test_the_named_locks_are_released_to_their_next_waiters_and_their_holders_are_shown(wait_for: WaitFor) -> None:
    hold("a", "b", "c", ttl=600)
    waiting = wait_for("b")
    a, b = redislocks("clear", "a", "b", "a", "--noinput").splitlines()
    assert re.fullmatch(rf"Force-released a, held for .* by \S+:{os.getpid()}:.*, 0 waiting\.", a)
    assert re.fullmatch(r"Force-released b, .*, 1 waiting\.", b)
    assert waiting.result(GENEROUS)
    assert held("abc") == "c"


@pytest.mark.parametrize("user", [USER, "987654"], ids=["known", "unknown"])
def test_the_old_holder_the_site_and_the_log_are_told_and_by_whom_it_was_done(
    user: str,
    eventually: Eventually,
    heard: list[tuple[str, dict[str, Any]]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if user != USER:  # as in many containers
        monkeypatch.setattr(os, "getuid", lambda: int(user))
    losses: list[LockLost] = []
    lock, by = Lock("a", ttl=600, on_lost=losses.append), BY.replace(USER, user, 1)
    lock.acquire()
    assert cleared("a", "--noinput") == "a"
    eventually(lambda: losses)
    assert "force-released" in losses[0].reason
    with pytest.raises(LockLost):
        lock.release()
    assert [(facts["name"], facts["by"]) for which, facts in heard if which == "force"] == [("a", by)]
    assert f'event=force-released name=a by="{by}" owner=' in caplog.text


# -- in the admin's history -------------------------------------------------------------------------------------------


@pytest.fixture
def without_admin(settings: Any) -> Callable[[], None]:
    def without_admin() -> None:
        settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django.contrib.admin"]

    return without_admin


@pytest.mark.django_db
@pytest.mark.parametrize(("name", "options"), [(USER, []), ("jo", ["--user", "jo"])])
def test_it_stands_in_the_history_of_the_lock(name: str, options: list[str]) -> None:
    user = User.objects.create_superuser(name)
    hold("a")
    assert cleared("a", "--noinput", *options) == "a"
    (entry,) = LogEntry.objects.all()
    assert (entry.user, entry.object_id, entry.action_flag) == (user, "a", DELETION)
    assert re.match(r"Force-released\. It was held by \S+ for .* s, fence \d+\. \(", entry.change_message)
    assert entry.change_message.endswith(f" ({BY})")


@pytest.mark.django_db
def test_a_user_whose_name_cannot_be_recorded_is_refused_before_anything_is_released(
    without_admin: Callable[[], None],
) -> None:
    hold("a")
    arguments = ["clear", "a", "--noinput", "--user", "nobody"]
    fails(2, r"^Nothing was force-released: the site has no user 'nobody'\.$", *arguments)
    without_admin()
    fails(2, r"no history without django\.contrib\.admin", *arguments)
    assert held("a")


@pytest.mark.django_db
def test_what_stands_in_no_history_is_said_and_cleared(without_admin: Callable[[], None]) -> None:
    hold("a", "b")
    err, nothing = io.StringIO(), io.StringIO()
    assert cleared("a", "--noinput", stderr=err) == "a"
    said = f"Not recorded in the admin's history: the site has no user {USER!r}. Name one with --user.\n"
    assert err.getvalue() == said
    without_admin()
    assert cleared("b", "--noinput", stderr=nothing) == "b"
    assert nothing.getvalue() == ""


@pytest.mark.parametrize("options", [[], ["--user", "jo"]])
def test_a_lock_is_cleared_even_if_the_database_cannot_be_reached(options: list[str]) -> None:
    hold("a")
    err = io.StringIO()
    assert cleared("a", "--noinput", *options, stderr=err) == "a"  # pytest-django forbids the database
    assert err.getvalue().startswith("Not recorded in the admin's history: Database access not allowed")


# -- which ones -----------------------------------------------------------------------------------------------------


def test_a_pattern_or_all_or_names_say_which_and_a_dry_run_clears_none() -> None:
    hold("a", "b", "c", "d")
    dry = redislocks("clear", "--match=[ab]", "--dry-run")
    assert dry.startswith("Would force-release:\nNAME ")
    assert re.findall(r"^(\w) ", dry, re.M) == ["a", "b"]
    assert held("abcd") == "abcd"
    assert cleared("--match=[ab]", "--noinput") == "ab"
    assert cleared("--all", "--noinput") == "cd"
    assert redislocks("clear", "--all", "--noinput") == "No locks are held.\n"
    assert redislocks("clear", "--match=x*", "--noinput") == "No held lock matches x*.\n"


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("arguments", [["--all"], ["--match=*"], ["persisted", "foreign", "sound"]], ids=" ".join)
def test_locks_that_never_end_are_cleared_like_any(arguments: list[str]) -> None:
    printed = redislocks("clear", "--noinput", *arguments)
    assert set(re.findall(r"^Force-released (\w+)", printed, re.M)) == {"persisted", "foreign", "sound"}
    assert redislocks("list") == "No locks are held.\n"


@pytest.mark.parametrize("arguments", [[], ["a", "--all"], ["a", "--match=a"], ["--all", "--match=a"]], ids=" ".join)
def test_names_a_pattern_or_all_must_be_given_and_only_one_of_them(arguments: list[str]) -> None:
    hold("a")
    fails(2, "either names, or --match PATTERN, or --all", "clear", *arguments, "--noinput")
    assert held("a")


def test_it_fails_when_a_named_lock_is_not_held_and_clears_the_others() -> None:
    hold("a")
    fails(1, r"^Not held: b$", "clear", "a", "b", "--dry-run")
    fails(1, r"^Not held: b, c$", "clear", "b", "a", "c", "--noinput")
    assert not held("a")


@pytest.mark.parametrize("arguments", [["clear", "order:*", "--noinput"], ["show", "order:*"]])
def test_a_pattern_given_as_a_name_is_an_error_that_names_the_option(arguments: list[str]) -> None:
    hold("order:42")
    fails(1, r"^Not held: order:\*\nNAME is not a pattern: .* --match PATTERN\.$", *arguments)
    assert Lock("order:42").locked()


# -- the question ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("yes", ["y", "yes", "Y", " YES "])
def test_it_asks_first_and_shows_what_it_would_clear(yes: str, answer: Answer) -> None:
    hold("a", "b", "c")
    answer(yes)
    asked = io.StringIO()
    assert cleared("a", "b", stderr=asked) == "ab"
    assert re.search(rf":{os.getpid()}:.*\n\n.*\nForce-release 2 locks\? \[y/N\] ", asked.getvalue())
    answer(yes)
    out, asked = Terminal(), io.StringIO()
    call_command("redislocks", "clear", "c", stdout=out, stderr=asked)
    assert "Force-release 1 lock? [y/N] " in out.getvalue(), "on the terminal, if the output is one"
    assert "Force-release 1 lock" not in asked.getvalue()


@pytest.mark.parametrize("no", ["", "n", "no", "yeah", "a", b"\xff", None])
def test_everything_is_left_alone_when_the_answer_is_not_yes(no: Any, answer: Answer) -> None:
    hold("a")
    if isinstance(no, bytes):
        answer("yes", before=no.decode)  # which fails
    else:
        answer(no)
    fails(1, "Give --noinput" if no is None else r"^Nothing was force-released\.$", "clear", "a")
    assert held("a")


@pytest.mark.parametrize("argument", ["a", "--match=a"])
def test_a_holder_that_came_after_the_question_is_spared(argument: str, answer: Answer) -> None:
    token = hold("a")

    def change_hands() -> None:
        Lock("a", token=token).release()
        hold("a")

    answer("yes", before=change_hands)
    assert not fails(1, r"^Left alone, since the holder has changed: a$", "clear", argument)
    assert force_release("a")


def test_what_came_free_before_the_answer_fails_if_it_was_named_or_nothing_is_left(answer: Answer) -> None:
    def come_free() -> None:
        assert force_release("a")

    hold("b")
    for arguments, problem in [
        (["a"], r"^Not held: a$"),
        (["--match=a"], r"^Nothing was force-released: nobody holds these locks any more\.$"),
        (["--all"], None),
    ]:
        hold("a")
        answer("yes", before=come_free)
        if problem is None:
            assert cleared(*arguments) == "b"
        else:
            fails(1, problem, "clear", *arguments)


# -- closed pipes, and outages ----------------------------------------------------------------------------------------


def test_a_closed_pipe_stops_no_release(in_process: InProcess) -> None:
    hold("a", "b", "c")
    reading, writing = os.pipe()
    process = in_process("clear", "--all", "--noinput", stdout=writing)
    os.close(reading)
    os.close(writing)
    process.communicate(timeout=GENEROUS)
    assert process.returncode == 128 + signal.SIGPIPE
    assert not held("abc")


@pytest.fixture
def outage(own: RedisServer, settings: Any) -> Iterator[None]:
    """The server stops as soon as a lock was force-released."""

    def stop(**facts: Any) -> None:
        own.stop()

    settings.REDISLOCK = {"RETRY_FOR": 0.1}
    lock_force_released.connect(stop)
    yield
    lock_force_released.disconnect(stop)


@pytest.mark.usefixtures("outage")
def test_locks_released_before_an_outage_are_reported() -> None:
    hold("a", "b")
    assert re.fullmatch(r"Force-released a, .*\n", fails(69, "cannot be reached", "clear", "--all", "--noinput"))


def test_each_message_is_printed_once(done: Done) -> None:
    hold("a", "b")
    status, out, err = done("clear", "--match", "[ab]", "--noinput")
    assert [line.split(",")[0] for line in out.splitlines()] == ["Force-released a", "Force-released b"]
    assert (status, err) == (0, "Not recorded in the admin's history: no such table: auth_user\n")
