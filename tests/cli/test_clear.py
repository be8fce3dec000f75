"""``redislocks clear`` force-releases locks, whoever holds them."""

import io
import os
import pwd
import re
import socket
import sys
from typing import Any

import pytest
import redis
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models.signals import pre_save

from django_redislock import Lock, LockLost, force_release, lock_force_released
from django_redislock.models import HeldLock
from redisserver import RedisServer
from tests.cli.conftest import Answer, Terminal, WaitFor, fails, held, redislocks
from tests.helpers.actors import GENEROUS, until
from tests.helpers.state import hold, put
from tests.inside import PREFIX
from tests.lock.conftest import receiving

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


@pytest.mark.parametrize(
    ("since", "shown"), [(12, r"[1-5]\d s"), (200, r"3 min [2-5]\d s"), (7_505, "2 h 5 min"), (357_000, "4 d 3 h")]
)
def test_how_long_a_released_lock_was_held_is_shown(since: int, shown: str, client: Any) -> None:
    put(client, "a", since=since)
    told = redislocks("clear", "a", "--noinput")
    assert re.fullmatch(rf"Force-released a, held for {shown} by host:1:Main, 0 waiting\.\n", told)


@pytest.mark.parametrize("user", [USER, "987654"], ids=["known", "unknown"])
def test_the_old_holder_the_site_and_the_log_are_told_and_by_whom_it_was_done(
    user: str, heard: list[tuple[str, Any]], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if user != USER:  # as in many containers
        monkeypatch.setattr(os, "getuid", lambda: int(user))
    losses: list[LockLost] = []
    lock, by = Lock("a", ttl=600, on_lost=losses.append), BY.replace(USER, user, 1)
    lock.acquire()
    assert cleared("a", "--noinput") == "a"
    until(lambda: losses)
    assert "force-released" in losses[0].reason
    with pytest.raises(LockLost):
        lock.release()
    assert [(facts["name"], facts["by"]) for which, facts in heard if which == "force"] == [("a", by)]
    assert f'event=force-released name=a by="{by}" owner=' in caplog.text


@pytest.mark.django_db
def test_it_stands_in_the_history_of_the_lock_if_the_site_has_one_and_the_user(settings: Any) -> None:
    hold("a")
    err = io.StringIO()
    refused = ["clear", "a", "--noinput", "--user", "jo"]
    fails(2, r"^Nothing was force-released: the site has no user 'jo'\.$", *refused)
    assert cleared("a", "--noinput", stderr=err) == "a"
    said = f"Not recorded in the admin's history: the site has no user {USER!r}. Name one with --user.\n"
    assert (err.getvalue(), LogEntry.objects.count()) == (said, 0)
    for name, options in [(USER, []), ("jo", ["--user", "jo"])]:
        user = User.objects.create_superuser(name)
        hold("a")
        assert cleared("a", "--noinput", *options) == "a"
        entry = LogEntry.objects.latest("pk")
        assert (entry.user, entry.object_id, entry.action_flag) == (user, "a", DELETION)
        assert re.match(r"Force-released\. It was held by \S+ for .* s, fence \d+\. \(", entry.change_message)
        assert entry.change_message.endswith(f" ({BY})")
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django.contrib.admin"]
    hold("a")
    fails(2, r"no history without django\.contrib\.admin", *refused)
    assert cleared("a", "--noinput") == "a"


@pytest.mark.django_db
def test_what_was_released_is_said_though_the_history_is_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    """Its database hangs, and somebody presses Ctrl-C."""

    def interrupt(**facts: Any) -> None:
        raise KeyboardInterrupt

    User.objects.create_superuser(USER)
    hold("a")
    with receiving(interrupt, pre_save), pytest.raises(KeyboardInterrupt):
        call_command("redislocks", "clear", "a", "--noinput")
    assert capsys.readouterr().out.startswith("Force-released a, held for ")


@pytest.mark.django_db
def test_the_history_is_that_of_the_lock_in_the_admin_whichever_alias_is_named(two_aliases: None) -> None:
    User.objects.create_superuser(USER)
    hold("a", using="default")
    assert cleared("a", "--noinput", "--using=again") == "a"
    assert LogEntry.objects.get().object_id == HeldLock.named("a", "default").key


@pytest.mark.django_db(transaction=True)
def test_the_history_is_committed_where_autocommit_is_off() -> None:
    User.objects.create_superuser(USER)
    hold("a")
    transaction.set_autocommit(False)
    try:
        connection.cursor().execute("BEGIN")  # as other databases than SQLite do at the first query
        assert cleared("a", "--noinput") == "a"
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert LogEntry.objects.get().object_id == "a"


@pytest.mark.parametrize("options", [[], ["--user", "jo"]])
def test_a_lock_is_cleared_even_if_the_database_cannot_be_reached(options: list[str]) -> None:
    hold("a")
    err = io.StringIO()
    assert cleared("a", "--noinput", *options, stderr=err) == "a"  # pytest-django forbids the database
    assert err.getvalue().startswith("Not recorded in the admin's history: Database access not allowed")


def test_a_pattern_or_all_or_names_say_which_and_a_dry_run_clears_none() -> None:
    hold("a", "b", "c", "d")
    for arguments in ([], ["a", "--all"], ["--all", "--match=a"]):
        fails(2, "either names, or --match PATTERN, or --all", "clear", *arguments, "--noinput")
    dry = redislocks("clear", "--match=[ab]", "--dry-run")
    assert dry.startswith("Would force-release:\nNAME ")
    assert re.findall(r"^(\w) ", dry, re.M) == ["a", "b"]
    assert held("abcd") == "abcd"
    assert cleared("--match=[ab]", "--noinput") == "ab"
    assert cleared("--all", "--noinput") == "cd"
    assert redislocks("clear", "--all", "--noinput") == "No locks are held.\n"
    assert redislocks("clear", "--match=x*", "--noinput") == "No held lock matches x*.\n"


def test_it_fails_when_a_named_lock_is_not_held_and_clears_the_others() -> None:
    hold("a")
    fails(1, r"^Not held: b$", "clear", "a", "b", "--dry-run")
    fails(1, r"^Not held: b, c$", "clear", "b", "a", "c", "--noinput")
    for subcommand in (["clear", "--noinput"], ["show"]):
        fails(1, r"^Not held: a\*\nNAME is not a pattern: .* --match PATTERN\.$", *subcommand, "a*")
    assert not held("a")


def test_a_name_whose_key_is_of_another_type_is_reported_and_none_is_cleared(client: redis.Redis) -> None:
    hold("a")
    client.rpush(f"{PREFIX}lock:x", "foreign")
    fails(69, r"^Redis refuses .* which is a list", "clear", "a", "x", "--noinput")
    assert held("a")


def test_it_asks_first_and_shows_what_it_would_clear(answer: Answer) -> None:
    hold("a", "b", "c")
    answer("y")
    asked = io.StringIO()
    assert cleared("a", "b", stderr=asked) == "ab"
    assert re.search(rf":{os.getpid()}:.*\n\n.*\nForce-release 2 locks\? \[y/N\] ", asked.getvalue())
    answer(" YES ")
    out = Terminal()
    call_command("redislocks", "clear", "c", stdout=out)
    assert "Force-release 1 lock? [y/N] " in out.getvalue(), "on the terminal, if the output is one"


@pytest.mark.parametrize("no", ["", "no", "a", None])
def test_everything_is_left_alone_when_the_answer_is_not_yes(no: str | None, answer: Answer) -> None:
    hold("a")
    answer(no)
    fails(1, "Give --noinput" if no is None else r"^Nothing was force-released\.$", "clear", "a")
    assert held("a")


def test_an_answer_that_cannot_be_decoded_is_not_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    hold("a")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))
    fails(1, r"^Nothing was force-released\.$", "clear", "a")
    assert held("a")


@pytest.mark.parametrize(("argument", "comes"), [("--match=a", True), ("a", True), ("--match=a", False), ("a", False)])
def test_only_who_held_it_at_the_question_is_released(argument: str, comes: bool, answer: Any) -> None:
    hold("a")
    answer("yes", before=lambda: force_release("a") and comes and hold("a"))
    assert not fails(1, "^Left alone, since the holder has changed or is gone: a$", "clear", argument)
    assert held("a") == "a" * comes


def test_locks_released_before_an_outage_are_reported(own: RedisServer, settings: Any) -> None:
    settings.REDISLOCK = {"RETRY_FOR": 0.1}
    hold("a", "b")
    with receiving(lambda **facts: own.stop(), lock_force_released):
        assert re.fullmatch(r"Force-released a, .*\n", fails(69, "cannot be reached", "clear", "--all", "--noinput"))
