"""``LockedCommand``: a site's own commands that must not overlap."""

import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import CommandError, call_command
from django.core.management.base import BaseCommand, OutputWrapper

from django_redislock import (
    Lock,
    LockedCommand,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockUnavailable,
    force_release,
    get_lock,
)
from django_redislock.testing import redis_away
from tests.helpers.actors import GENEROUS, Other, never, until
from tests.helpers.proxy import Proxy
from tests.helpers.state import hold
from tests.inside import RELEASE


class Report(LockedCommand, BaseCommand):
    lock_name = "report"
    work: Callable[..., Any] = staticmethod(lambda command, **options: "done")

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--year", type=int, default=2026)

    def handle(self, *args: Any, **options: Any) -> Any:
        return self.work(self, **options)


def report(work: Callable[..., Any] | None = None, arguments: dict[str, Any] | None = None, **attributes: Any) -> str:
    """Run the command with other attributes; return what it printed."""
    more = attributes if work is None else {**attributes, "work": staticmethod(work)}
    out = io.StringIO()
    call_command(type("Command", (Report,), more)(), stdout=out, **(arguments or {}))
    return out.getvalue()


@pytest.fixture
def busy(other: Callable[[], Other]) -> None:
    assert other()(Lock("report").acquire)


def test_a_locked_command_holds_its_lock_while_it_runs() -> None:
    held: list[Any] = []
    for _ in range(2):
        assert report(lambda command, **options: held.append(get_lock("report"))) == ""
        assert get_lock("report") is None
    # the module's name is the command's
    assert [info.owner.rpartition(" ")[2] for info in held] == ["test_locked_command"] * 2


def test_a_command_that_executes_itself_keeps_its_lock_in_between() -> None:
    locks: list[str] = []

    def work(command: Any, year: int, **options: Any) -> None:
        if year == 2026:
            for other in (2024, 2025, 2025):
                command.execute(**{**options, "year": other})
            text = r"this thread or task holds it already\. Pass reentrant=True to acquire it again\."
            with pytest.raises(CommandError, match=text) as caught:
                command.execute(**{**options, "year": 2026})
            assert caught.value.returncode == 75
        command.lock.check()
        locks.append(command.lock.name)

    report(work, lock_name="year:{year}")
    assert locks == ["year:2024", "year:2025", "year:2025", "year:2026"]


async def test_in_an_event_loop_it_is_refused() -> None:
    with pytest.raises(SynchronousOnlyOperation, match=r"event loop .* thread\. Call it through sync_to_async\.$"):
        report(never)


def test_its_name_is_that_of_app_and_command_or_a_template_over_its_options(heard: list[tuple[str, Any]]) -> None:
    class Nightly(LockedCommand):
        __module__ = "django_redislock.management.commands.nightly"

        def handle(self, *args: Any, **options: Any) -> None:
            pass

    call_command(Nightly())
    call_command(type("Elsewhere", (Nightly,), {"__module__": "scripts.weekly"})())
    report(lock_name="report:{year}", arguments={"year": 2027})
    acquired = [facts["name"] for which, facts in heard if which == "acquired"]
    assert acquired == ["django_redislock:nightly", "scripts:weekly", "report:2027"]


def test_the_options_of_the_lock_are_those_of_the_class(settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "other": {**settings.CACHES["default"], "KEY_PREFIX": "other"}}
    seen: list[Any] = []
    more = {"note": "the books", "purpose": "nightly run"}
    attributes: dict[str, Any] = {"lock_ttl": 500, "lock_using": "other", "lock_options": more}
    report(lambda command, **options: seen.append(get_lock("report", using="other")), **attributes)
    assert 300 < seen[0].lease_left <= 500
    assert (seen[0].note, seen[0].owner.partition(" ")[2]) == ("the books", "nightly run")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"lock_options": {"fair": True}}, r"takes no option 'fair'\. The options are: adopt, attempts, "),
        ({"lock_options": {"name": "x"}}, r"argument 'name'"),
        *[({"lock_busy_status": status}, r"^Command\.lock_busy_status ") for status in (999, "75")],
        ({"lock_timeout": 5}, "does not know. Did you mean 'lock_ttl' or 'lock_blocking_timeout'"),
        (
            {"lock_on": 5},
            r"^Command has lock_on = 5, which .* does not know. The attributes are: lock_name, lock_limit, ",
        ),
    ],
)
def test_attributes_are_checked_before_anything_is_locked(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        report(never, **wrong)


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(("attributes", "status"), [({}, 75), ({"lock_busy_status": 0}, 0)])
def test_a_busy_lock_is_a_command_error_with_a_status_of_its_own(attributes: dict[str, Any], status: int) -> None:
    with pytest.raises(CommandError, match=r"^Could not acquire the lock 'report' at once: held by .+\.$") as caught:
        report(never, **attributes)
    assert caught.value.returncode == status


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("arguments", "terminal", "says"), [([], False, False), (["-v2"], False, True), ([], True, True)]
)
def test_cron_has_nothing_to_mail_about_a_busy_lock_and_a_terminal_says_who_holds_it(
    arguments: list[str], terminal: bool, says: bool, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OutputWrapper, "isatty", lambda self: terminal)
    with pytest.raises(SystemExit) as caught:
        Report().run_from_argv(["manage.py", "report", *arguments])
    assert caught.value.code == 75
    printed = capsys.readouterr()
    assert ("Could not acquire the lock 'report' at once: held by " in printed.err) == says
    assert says or (printed.out, printed.err) == ("", "")


def test_another_busy_lock_is_the_commands_own_business(capsys: pytest.CaptureFixture[str]) -> None:
    class Outer(Report):
        def handle(self, *args: Any, **options: Any) -> None:
            call_command(type("Command", (Report,), {"lock_name": "inner", "lock_busy_status": 9})())

    hold("inner")
    with pytest.raises(SystemExit) as caught:
        Outer().run_from_argv(["manage.py", "outer"])
    assert caught.value.code == 9
    assert "Could not acquire the lock 'inner' at once: held by " in capsys.readouterr().err


@pytest.mark.parametrize("attributes", [{"lock_blocking_timeout": GENEROUS}, {"lock_options": {"blocking": True}}])
def test_it_waits_when_told_to(attributes: dict[str, Any]) -> None:
    lock = Lock("report", ttl=2)
    assert lock.acquire()
    lock.detach()
    assert report(**attributes) == "done\n"


@pytest.mark.parametrize("status", ["returns", 0, "a message"])
def test_it_keeps_the_lock_for_machines_whose_clocks_differ_however_the_command_ends(status: Any) -> None:
    if status == "returns":
        assert report(lock_at_least=20) == "done\n"
    else:
        with pytest.raises(SystemExit) as caught:
            report(lambda command, **options: sys.exit(status), lock_at_least=20)
        assert caught.value.code == status
    info: Any = get_lock("report")
    assert 0 < info.lease_left <= 20


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_of_the_command_propagates_and_the_lock_is_free(error: type[BaseException]) -> None:
    def fail(command: Any, **options: Any) -> None:
        assert get_lock("report")
        raise error

    with pytest.raises(error):
        report(fail, lock_at_least=20)
    assert get_lock("report") is None


@pytest.mark.parametrize("end", ["release", "detach"])
def test_a_command_may_give_its_lock_away_by_itself(end: str) -> None:
    assert report(lambda command, **options: getattr(command.lock, end)() and "", lock_at_least=20) == ""
    assert (get_lock("report") is None) is (end == "release")


@pytest.mark.parametrize(("at_least", "request_"), [(0, RELEASE), (600, "detach")])
def test_a_command_interrupted_while_it_releases_leaves_no_lock(
    at_least: float, request_: str, network: Proxy, other: Callable[[], Other]
) -> None:
    held_up = network.hold_request(request_)

    def interrupt() -> None:
        assert held_up.caught.wait(GENEROUS)
        os.kill(os.getpid(), signal.SIGINT)

    other().start(interrupt)
    with pytest.raises(KeyboardInterrupt):
        report(lock_ttl=6, lock_at_least=at_least)
    held_up.let_go()
    until(lambda: not get_lock("report"))


@pytest.mark.parametrize("at_least", [0, 20])
@pytest.mark.parametrize("then", ["returns", "exits"])
def test_a_lock_that_was_lost_meanwhile_is_a_command_error(then: str, at_least: float, client: redis.Redis) -> None:
    def lose(command: Any, **options: Any) -> None:
        client.flushall()
        if then == "exits":
            with suppress(LockLost):
                command.lock.extend(1)
            sys.exit(0)

    with pytest.raises(CommandError, match="The lock 'report' was lost") as caught:
        report(lose, lock_at_least=at_least)
    assert caught.value.returncode == 76


def lose_another() -> None:
    with Lock("another"):
        force_release("another")


def fail_to_reach_redis() -> None:
    with redis_away():
        Lock("other").acquire()


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (Lock("other").release, LockNotOwned),
        (Lock("other", blocking=False).__enter__, LockNotAcquired),
        (lose_another, LockLost),
        (fail_to_reach_redis, LockUnavailable),
    ],
)
def test_the_errors_of_another_lock_are_the_commands_own_business(act: Any, error: type[Exception]) -> None:
    hold("other")
    with pytest.raises(error, match="other'"):
        report(lambda command, **options: act())
    assert get_lock("report") is None


def test_redis_out_of_reach_is_an_error_first_and_logged_last(own: Any, retry_for: Any, caplog: Any) -> None:
    retry_for(0.1)
    for number, at_least in enumerate((0, 20), 1):
        assert report(lambda command, **options: own.stop() or "done", lock_at_least=at_least) == "done\n"
        assert caplog.text.count("event=not-released name=report") == number
        with pytest.raises(CommandError, match=r"cannot .*reach") as caught:
            report(never)
        assert caught.value.returncode == 69
        own.start()
