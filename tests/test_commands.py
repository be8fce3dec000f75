"""``LockedCommand``: a site's own commands that must not overlap."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import BaseCommand, OutputWrapper
from django.test import override_settings

from django_redislock import (
    FairLock,
    Lock,
    LockedCommand,
    LockLost,
    LockUnavailable,
    force_release,
    get_lock,
    lock_acquired,
)
from redisserver import RedisServer, redis_server

from .proxy import proxy


class Report(LockedCommand, BaseCommand):
    """As a site would write it; what it does is put in by the test."""

    lock_name = "report"
    work: Callable[..., Any] = staticmethod(lambda command, **options: "done")

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--year", type=int, default=2026)

    def handle(self, *args: Any, **options: Any) -> Any:
        return self.work(self, **options)


def report(work: Callable[..., Any] | None = None, arguments: dict[str, Any] | None = None, **attributes: Any) -> str:
    """Run the command with other attributes; answers what it printed."""
    more = attributes if work is None else {**attributes, "work": staticmethod(work)}
    out = io.StringIO()
    call_command(type("Command", (Report,), more)(), stdout=out, **(arguments or {}))
    return out.getvalue()


@pytest.fixture
def acquired() -> Iterator[list[tuple[type, str]]]:
    """Which locks were taken, of which kind."""
    seen: list[tuple[type, str]] = []

    def receiver(sender: type, *, name: str, **facts: object) -> None:
        seen.append((sender, name))

    lock_acquired.connect(receiver)
    yield seen
    lock_acquired.disconnect(receiver)


@pytest.fixture
def own(settings: Any) -> Iterator[RedisServer]:
    """A server of this test alone, behind the alias of the locks."""
    with redis_server() as running:
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": running.url}}
        yield running


def test_a_locked_command_holds_its_lock_while_it_runs() -> None:
    held: list[Any] = []
    assert report(lambda command, **options: held.append(get_lock("report"))) == ""
    assert held[0] is not None
    assert held[0].owner.endswith(" test_commands")  # the module's name, which is the command's
    assert get_lock("report") is None


def test_what_the_command_prints_is_printed() -> None:
    assert report() == "done\n"


def test_a_busy_lock_is_a_command_error_with_a_status_of_its_own() -> None:
    ran: list[int] = []
    with Lock("report"), pytest.raises(CommandError, match=r"^The lock report is held by \S+ for \d") as caught:
        report(lambda command, **options: ran.append(1))
    assert caught.value.returncode == 75
    assert ran == []


def test_the_status_of_a_busy_lock_can_be_chosen() -> None:
    with Lock("report"), pytest.raises(CommandError) as caught:
        report(lock_busy_status=0)
    assert caught.value.returncode == 0


@pytest.mark.parametrize(("arguments", "says"), [([], False), (["-v2"], True), (["--traceback"], False)])
def test_cron_has_nothing_to_mail_about_a_busy_lock(
    arguments: list[str], says: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with Lock("report"), pytest.raises(SystemExit) as caught:
        Report().run_from_argv(["manage.py", "report", *arguments])
    assert caught.value.code == 75
    assert ("The lock report is held by " in capsys.readouterr().err) == says


def test_at_a_terminal_a_busy_lock_says_who_holds_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OutputWrapper, "isatty", lambda self: True)
    with Lock("report"), pytest.raises(SystemExit) as caught:
        Report().run_from_argv(["manage.py", "report"])
    assert caught.value.code == 75
    assert "The lock report is held by " in capsys.readouterr().err


def test_another_busy_lock_is_the_commands_own_business(capsys: pytest.CaptureFixture[str]) -> None:
    class Outer(Report):
        def handle(self, *args: Any, **options: Any) -> None:
            call_command(type("Command", (Report,), {"lock_name": "inner", "lock_busy_status": 9})())

    with Lock("inner"), pytest.raises(SystemExit) as caught:
        Outer().run_from_argv(["manage.py", "outer"])
    assert caught.value.code == 9
    assert "The lock inner is held by " in capsys.readouterr().err


def test_its_name_is_by_default_that_of_app_and_command(acquired: list[tuple[type, str]]) -> None:
    class Nightly(LockedCommand):
        __module__ = "django_redislock.management.commands.nightly"

        def handle(self, *args: Any, **options: Any) -> None:
            pass

    class Elsewhere(Nightly):
        __module__ = "scripts.weekly"

    call_command(Nightly())
    call_command(Elsewhere())
    assert [name for _, name in acquired] == ["django_redislock:nightly", "scripts:weekly"]


def test_its_name_may_be_a_template_over_its_options(acquired: list[tuple[type, str]]) -> None:
    report(lock_name="report:{year}", arguments={"year": 2027})
    assert [name for _, name in acquired] == ["report:2027"]


@pytest.mark.parametrize(("fair", "kind"), [(False, Lock), (True, FairLock)])
def test_it_may_be_fair(fair: bool, kind: type[Lock], acquired: list[tuple[type, str]]) -> None:
    report(lock_fair=fair)
    assert acquired == [(kind, "report")]


def test_it_waits_when_told_to(eventually: Callable[..., Any], other: Callable[[], Any]) -> None:
    lock, thread = Lock("report"), other()
    thread(lock.acquire)

    def let_go() -> None:
        eventually(lambda: (info := get_lock("report")) and info.waiters)
        lock.release()

    thread.start(let_go)
    assert report(lock_wait=30) == "done\n"


def test_ttl_and_alias_are_those_of_the_class(settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "other": {**settings.CACHES["default"], "KEY_PREFIX": "other"}}
    seen: list[Any] = []
    report(lambda command, **options: seen.append(get_lock("report", using="other")), lock_ttl=500, lock_using="other")
    assert 400 < seen[0].lease_left <= 500


def test_it_keeps_the_lock_for_machines_whose_clocks_differ() -> None:
    assert report(lock_at_least=20) == "done\n"
    info = get_lock("report")
    assert info is not None
    assert 15 < info.lease_left <= 20


@pytest.mark.parametrize("status", [0, 3, None, "a message"])
def test_it_keeps_the_lock_when_the_command_exits_as_well(status: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        report(lambda command, **options: sys.exit(status), lock_at_least=20)
    assert caught.value.code == status
    info = get_lock("report")
    assert info is not None
    assert 15 < info.lease_left <= 20


def test_a_command_that_exits_when_its_lock_was_lost_is_a_command_error() -> None:
    def lose(command: Any, **options: Any) -> None:
        force_release("report")
        with suppress(LockLost):
            command.lock.extend(1)
        sys.exit(0)

    with pytest.raises(CommandError, match="The lock 'report' was lost") as caught:
        report(lose)
    assert caught.value.returncode == 76


def test_an_error_of_the_command_goes_up_and_the_lock_is_free() -> None:
    def fail(command: Any, **options: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        report(fail, lock_at_least=20)
    assert get_lock("report") is None


@pytest.mark.parametrize("looks", [True, False])
def test_a_lock_that_was_lost_meanwhile_is_a_command_error(looks: bool) -> None:
    def lose(command: Any, **options: Any) -> None:
        force_release("report")
        if looks:
            command.lock.extend(1)

    with pytest.raises(CommandError, match="The lock 'report' was lost") as caught:
        report(lose)
    assert caught.value.returncode == 76


def test_the_loss_of_another_lock_is_the_commands_own_business() -> None:
    def lose(command: Any, **options: Any) -> None:
        with Lock("other"):
            force_release("other")

    with pytest.raises(LockLost, match="'other'"):
        report(lose)
    assert get_lock("report") is None


def test_redis_out_of_reach_is_a_command_error_and_nothing_runs() -> None:
    nowhere = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    ran: list[int] = []
    with override_settings(CACHES={"default": nowhere}), pytest.raises(CommandError, match="cannot be reach") as caught:
        report(lambda command, **options: ran.append(1))
    assert caught.value.returncode == 69
    assert ran == []


def test_redis_out_of_reach_at_the_end_is_logged_as_the_work_is_done(
    own: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(command: Any, **options: Any) -> str:
        own.stop()
        return "done"

    with caplog.at_level(logging.WARNING, "django_redislock"):
        assert report(stop) == "done\n"
    assert caplog.text.count("event=not-released name=report") == 1


def test_the_lock_of_a_command_is_given_back_as_soon_as_redis_hears_it(
    server: RedisServer, settings: Any, eventually: Callable[..., Any]
) -> None:
    with proxy(server.port) as network:
        default = settings.CACHES["default"]
        far = {**default, "LOCATION": network.url, "OPTIONS": {"SOCKET_TIMEOUT": 1}}
        settings.CACHES = {**settings.CACHES, "far": far}

        def cut(command: Any, **options: Any) -> str:
            network.cut()
            return "done"

        assert report(cut, lock_using="far", lock_ttl=600) == "done\n"
        assert get_lock("report")
        network.mend()
        eventually(lambda: not get_lock("report"))


def test_redis_out_of_reach_at_the_end_of_a_command_that_keeps_its_lock(
    own: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(command: Any, **options: Any) -> str:
        own.stop()
        return "done"

    assert report(stop, lock_at_least=20) == "done\n"
    assert caplog.text.count("event=not-released name=report") == 1


def test_who_holds_a_busy_lock_may_remain_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(lock: Lock) -> None:
        raise LockUnavailable("gone", lock.name)

    monkeypatch.setattr(Lock, "info", unavailable)
    with Lock("report"), pytest.raises(CommandError, match=r"^The lock report is held by somebody else\.$"):
        report()


def test_the_command_runs_again_when_it_has_ended() -> None:
    assert report() + report() == "done\ndone\n"
