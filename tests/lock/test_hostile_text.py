"""Text that users of a site type and that becomes part of a name: it cannot imitate other names or break anything."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_redislock import Lock, LockLost, LockPool, force_release, list_locks, lock_name, locked, locked_view
from tests.helpers.actors import Other

from .texts import ENCODABLE, MEGA, NASTY


@pytest.mark.parametrize(
    "value", [*NASTY, "x" * MEGA, "%" * (MEGA // 10), b"bytes"], ids=lambda value: ascii(value[:20])
)
def test_any_value_can_be_part_of_a_name_and_imitates_no_other(value: Any) -> None:
    name = lock_name("user", value)
    assert name.count(":") == 1
    assert len(name.encode()) <= 512
    assert not re.search(r"[\x00-\x1f\x7f-\x9f{}\s]", name)
    with Lock(name):
        (held,) = list_locks()
        assert held.name == name

    @locked("user:{value}", blocking_timeout=0)
    def section(value: Any) -> str:
        return list_locks()[0].name

    assert section(value) == name


def test_names_are_compared_as_they_are_written_and_not_normalised() -> None:
    with Lock("caf\u00e9"), Lock("cafe\u0301", blocking=False), Lock("CAF\u00c9", blocking=False):
        assert len(list_locks()) == 3


@pytest.mark.parametrize("member", NASTY, ids=ascii)
def test_any_text_can_be_a_member_of_a_pool(member: str) -> None:
    pool = LockPool("accounts")
    pool.assign([member])
    assert pool.keys() == [member]
    with pool.acquire(blocking_timeout=0) as taken:
        assert taken.key == member


@pytest.mark.parametrize(
    "path", ["/<script>alert(1)</script>/\"'&", "/a\r\nX: y", "/\x1b[31m", "/\u202e", "/" + "\u00e9" * 5000], ids=ascii
)
def test_a_path_is_shown_as_plain_text_wherever_its_lock_is_shown(
    path: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    @locked_view("a")
    def view(request: HttpRequest) -> HttpResponse:
        (info,) = list_locks()
        assert info.owner.isprintable()
        assert len(info.owner.encode()) <= 200
        call_command("redislocks", "list")
        force_release("a", by=path)
        return HttpResponse()

    request = RequestFactory().get("/")
    request.path = path
    with pytest.raises(LockLost):
        view(request)
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 2
    assert all(line.isprintable() for line in out.splitlines())
    assert all(message.isprintable() for message in caplog.messages)


@pytest.mark.parametrize("value", ENCODABLE, ids=ascii)
def test_a_423_repeats_nothing_of_the_name_in_head_or_body(other: Callable[[], Other], value: str) -> None:
    @locked_view("order:{value}")
    def view(request: HttpRequest, value: str) -> HttpResponse:
        raise AssertionError

    other()(Lock(lock_name("order", value)).acquire)
    for accept in ("application/json", "text/html", "\u202e"):
        response = view(RequestFactory().get("/", headers={"accept": accept}), value=value)
        assert response.status_code == 423
        assert set(response.headers) == {"Content-Type", "Retry-After", "Vary"}
        assert response.headers["Retry-After"].isdecimal()
        assert value not in response.content.decode()


@pytest.mark.parametrize("text", ENCODABLE, ids=ascii)
def test_no_text_makes_a_second_line_or_pair_in_the_log(text: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "django_redislock")
    lock = Lock(lock_name("user", text))
    lock.acquire()
    force_release(lock.name, by=text)
    with pytest.raises(LockLost):
        lock.release()
    for message in caplog.messages:
        assert message.isprintable()
        bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", message)
        assert re.findall(r"(\w+)=", bare)[0] == "event"
        assert len(re.findall(r"\bevent=", bare)) == 1
