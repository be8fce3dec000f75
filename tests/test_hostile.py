"""Names, values and options that somebody means harm with, or has typed wrong: said clearly, before Redis is asked."""

from __future__ import annotations

import json
import logging
import math
import re
import time
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from redis.backoff import AbstractBackoff, ConstantBackoff

from django_redislock import (
    ConditionalValue,
    Counter,
    FairLock,
    Lock,
    LockLost,
    LockPool,
    force_release,
    get_lock,
    list_locks,
    lock_name,
    locked,
    locked_view,
)
from django_redislock.cachelock import CacheLock
from django_redislock.cli.watch import on_screen
from django_redislock.names import quote
from django_redislock.texts import shown

from .actors import GENEROUS, Other

PREFIX = "redislock{0}:"
MEGA = 10_000_000
NASTY = [
    "{a}b",
    "}{",
    "a:b::c",
    "a\nb event=lost name=x",
    "a\r\nSet-Cookie: x=y",
    "a\0b",
    "\u202egpj.exe",
    "\u200f\u2066",
    "\ud800",
    "\x1b[2J\x1b]0;owned\x07",
    "\u2028\u2029\x85",
    "<script>alert(1)</script>",
    "' OR 1=1 --",
    "%41%2F",
    "..",
    "\U0001d56c\U0010ffff",
]


class Silent:
    """Nothing was sent to Redis but what the test itself has sent."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.before = self._count()

    def _count(self) -> int:
        return int(self.client.info("stats")["total_commands_processed"])

    def check(self) -> None:
        assert self._count() == self.before + 1


@pytest.fixture
def silent(client: redis.Redis) -> Silent:
    return Silent(client)


# -- names ------------------------------------------------------------------------------------------------------------

NO_NAMES: list[Any] = [
    "",
    "a\nb",
    "a\0b",
    "\x1b[2J",
    "\x85",
    "\ud800",
    "x" * 513,
    "é" * 257,
    "x" * MEGA,
    b"bytes",
    b"x" * MEGA,
    None,
    7,
    10**5000,
    1.5,
    ["a"],
    True,
]
TAKERS: list[Callable[[Any], Any]] = [
    Lock,
    FairLock,
    Counter,
    ConditionalValue,
    CacheLock,
    get_lock,
    force_release,
]


@pytest.mark.parametrize("name", NO_NAMES, ids=lambda name: shown(name)[:30])
@pytest.mark.parametrize("take", TAKERS, ids=lambda take: take.__name__)
def test_what_is_no_name_is_refused_in_a_short_error_before_redis_is_asked(
    take: Callable[[Any], Any], name: Any, silent: Silent
) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        take(name)
    assert len(str(caught.value)) < 400
    assert "name" in str(caught.value) or "pool" in str(caught.value)
    assert str(caught.value).isprintable()
    silent.check()


@pytest.mark.parametrize("value", [*NASTY, "x" * MEGA, "%" * MEGA, "\n" * MEGA, b"bytes"], ids=lambda v: repr(v[:20]))
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


def test_a_long_text_is_quoted_in_the_time_that_a_few_regular_expressions_take() -> None:
    """Ours called a function that quoted each character: ten times as long as one that calls the least of functions."""
    text = "%a" * (MEGA // 10)
    start = time.process_time()
    re.sub("%", lambda found: "%25", text)
    by_function = time.process_time() - start
    start = time.process_time()
    quote(text)
    assert time.process_time() - start < 4 * by_function


def test_names_are_compared_as_they_are_written_and_not_normalised() -> None:
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    assert composed != decomposed
    with Lock(composed), Lock(decomposed, blocking=False):
        assert len(list_locks()) == 2
        with Lock(composed.upper(), blocking=False), Lock("cafe", blocking=False):
            pass


@pytest.mark.parametrize("member", NASTY, ids=repr)
def test_any_text_can_be_a_member_of_a_pool(member: str) -> None:
    pool = LockPool("accounts")
    pool.assign([member])
    assert pool.keys() == [member]
    with pool.acquire(blocking_timeout=0) as taken:
        assert taken.key == member
        call_command("redislocks", "pool", "accounts")


@pytest.mark.parametrize("member", ["", None, b"a", 7, "x" * MEGA], ids=lambda member: shown(member)[:20])
def test_what_is_no_member_is_refused_in_a_short_error(member: Any, silent: Silent) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        LockPool("accounts").extend([member])
    assert len(str(caught.value)) < 400
    silent.check()


# -- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "token", ["", "short", "x" * 129, "x" * 21 + " ", "x" * 22 + "\n", "é" * 22, b"x" * 22, 7, "*" * 30]
)
def test_a_forged_token_is_refused_without_being_repeated(token: Any, silent: Silent) -> None:
    with pytest.raises(ValueError, match="A token must be") as caught:
        Lock("a", token=token)
    with pytest.raises(ValueError, match="A token must be"):
        Lock("a").acquire(token=token or " ")
    assert not token or str(token) not in str(caught.value)
    silent.check()


# -- seconds ----------------------------------------------------------------------------------------------------------

NO_SECONDS: list[Any] = [
    math.nan,
    math.inf,
    -math.inf,
    -1,
    -0.5,
    1e300,
    10**400,
    10**5000,
    2**63,
    True,
    "10",
    "x" * MEGA,
    b"10",
    Decimal(10),
    [10],
    1j,
]
HOURS: dict[str, Callable[[Any], Any]] = {
    "ttl": lambda value: Lock("a", ttl=value),
    "blocking_timeout": lambda value: Lock("a", blocking_timeout=value),
    "acquire": lambda value: Lock("a").acquire(blocking_timeout=value),
    "counter": lambda value: Counter("a").incr(ttl=value),
    "value": lambda value: ConditionalValue("a").setgt(1, ttl=value),
    "pool": lambda value: LockPool("a").acquire(ttl=value),
    "cache": lambda value: CacheLock("a", timeout=value),
    "view": lambda value: locked_view("a", ttl=value),
}


@pytest.mark.parametrize("value", NO_SECONDS, ids=lambda value: shown(value)[:20])
@pytest.mark.parametrize("call", HOURS)
def test_what_are_no_seconds_is_refused_in_a_short_error_before_redis_is_asked(
    call: str, value: Any, silent: Silent
) -> None:
    with pytest.raises((TypeError, ValueError), match=r"seconds|at most ten years") as caught:
        HOURS[call](value)
    assert shown(value) in str(caught.value)
    assert len(str(caught.value)) < 1000
    silent.check()


def test_redis_takes_the_longest_ttl_that_is_allowed_and_as_much_again() -> None:
    longest = 10 * 365 * 86400
    with Lock("a", ttl=longest) as lock:
        lock.extend(longest)
        assert lock.remaining() > longest


class Odd(AbstractBackoff):
    def __init__(self, delay: Any) -> None:
        self.delay = delay

    def compute(self, failures: int) -> Any:
        return self.delay


@pytest.mark.parametrize("delay", [math.nan, None, "1", b"", [1]])
def test_delays_that_are_none_are_refused(delay: Any, client: redis.Redis) -> None:
    with pytest.raises(ValueError, match=r"delays of backoff must be seconds.*, not ") as caught:
        Lock("a", wait="poll", backoff=Odd(delay)).acquire()
    assert shown(delay) in str(caught.value)
    assert not client.keys(f"{PREFIX}*a")


@pytest.mark.parametrize("delay", [-1.0, 0, math.inf, -math.inf])
def test_delays_beyond_all_bounds_are_bounded(delay: float) -> None:
    holder = Other()
    holder(Lock("a").acquire)
    lock = Lock("a", wait="poll", backoff=ConstantBackoff(delay))
    assert not lock.acquire(blocking_timeout=0.05)
    holder.end()


# -- notes and owners -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "note", ["x" * 1001, "é" * 501, "x" * MEGA, "\ud800", b"x", 7, None, ["x"] * 1000], ids=lambda n: shown(n)[:20]
)
def test_what_is_no_note_is_refused_in_a_short_error(note: Any, silent: Silent) -> None:
    with pytest.raises((TypeError, ValueError), match="note") as caught:
        Lock("a", note=note)
    assert len(str(caught.value)) < 400
    silent.check()


@pytest.mark.parametrize("note", [text for text in NASTY if text.isprintable() or "\ud800" not in text], ids=repr)
def test_a_note_is_kept_as_it_is_and_shown_harmlessly(
    note: str, capsys: pytest.CaptureFixture[str], eventually: Callable[..., Any]
) -> None:
    def wait() -> None:
        with Lock("a", note=note):
            pass

    with Lock("a", note=note) as lock:
        info = lock.info()
        assert info is not None
        assert info.note == note
        waiter = Other()
        waiting = waiter.start(wait)
        eventually(lambda: (get_lock("a") or info).waiters == 1)
        call_command("redislocks", "show", "a")
        assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))
        call_command("redislocks", "show", "a", "--format", "json")
        assert json.loads(capsys.readouterr().out)["queue"][0]["note"] == note
    waiting.result(GENEROUS)
    waiter.end()


PATHS = ["/<script>alert(1)</script>/\"'&", "/a\r\nX: y", "/\x1b[31m", "/\u202e", "/" + "é" * 5000, "/a b=c event=lost"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: repr(path[:20]))
def test_a_path_is_text_to_whoever_reads_of_its_lock(
    path: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    @locked_view("a")
    def view(request: HttpRequest) -> HttpResponse:
        seen.append(list_locks()[0].owner)
        call_command("redislocks", "list")
        force_release("a", by=path)
        return HttpResponse()

    request = RequestFactory().get("/")
    request.path = path
    with pytest.raises(Exception, match="lost"):
        view(request)
    (owner,) = seen
    assert owner.isprintable()
    assert len(owner.encode()) <= 200
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 2
    assert all(line.isprintable() for line in out.splitlines())
    assert all("\n" not in message and "\r" not in message and "\x1b" not in message for message in caplog.messages)
    assert sum(message.startswith("event=lost ") for message in caplog.messages) <= 1
    assert any(message.startswith("event=force-released ") for message in caplog.messages)


# -- answers to requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [value for value in NASTY if "\ud800" not in value], ids=repr)
@pytest.mark.parametrize("accept", ["application/json", "text/html", "*/*", "\u202e", "a/" * 1000])
def test_a_423_answer_repeats_nothing_of_the_name_in_head_or_body(value: str, accept: str) -> None:
    @locked_view("order:{value}")
    def view(request: HttpRequest, value: str) -> HttpResponse:
        raise AssertionError

    holder = Other()
    holder(Lock(lock_name("order", value)).acquire)
    response = view(RequestFactory().get("/", headers={"accept": accept}), value=value)
    holder.end()
    assert response.status_code == 423
    assert set(response.headers) == {"Content-Type", "Retry-After", "Vary"}
    assert response.headers["Retry-After"].isdecimal()
    assert value not in response.content.decode()


@pytest.mark.parametrize(
    "name", ["a\r\nSet-Cookie: x=y", "", "x" * MEGA, None, b"a"], ids=lambda name: shown(name)[:20]
)
def test_a_callable_that_makes_no_name_is_refused_before_redis_is_asked(name: Any, silent: Silent) -> None:
    @locked_view(lambda request: name)
    def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError

    with pytest.raises((TypeError, ValueError), match="lock"):
        view(RequestFactory().get("/"))
    silent.check()


# -- patterns ---------------------------------------------------------------------------------------------------------

SLOW = ["a*" * 250 + "b", "*a" * 250 + "b", "?*" * 250 + "b", "*" * 500 + "b", "[a" * 250, "*" + "[a-z]*" * 80 + "!"]


@pytest.mark.parametrize("pattern", SLOW, ids=lambda pattern: pattern[:12])
def test_a_pattern_that_would_try_every_way_is_matched_at_once(
    pattern: str, settings: Any, client: redis.Redis
) -> None:
    """Python's fnmatch takes the first way that fits between two stars. Redis's own patterns are used nowhere."""
    names = [lock_name("a" * 500, number) for number in range(50)]
    client.zadd(f"{PREFIX}index", dict.fromkeys(names, 9e15))
    start = time.process_time()
    assert list_locks(pattern) == []
    call_command("redislocks", "list", pattern)
    call_command("redislocks", "clear", "--match", pattern, "--noinput")
    settings.REDISLOCK = {"TTLS": {pattern: 5}}
    assert {Lock(name).ttl for name in names} == {30}
    assert time.process_time() - start < 5


def test_no_pattern_is_ever_given_to_redis() -> None:
    package = Path(__file__).parent.parent / "django_redislock"
    sources = [path for path in package.rglob("*") if path.suffix in (".py", ".lua")]
    words = re.compile(r"""["'](KEYS|SCAN|[HSZ]SCAN|PSUBSCRIBE|MATCH|SORT|CONFIG)["']""")
    assert [path.name for path in sources if words.search(path.read_text("utf-8"))] == []


# -- what the terminal gets -------------------------------------------------------------------------------------------


def test_nothing_that_others_wrote_steers_the_terminal(client: redis.Redis, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["a\u202eb", "\u2066x", "soft\u00adhyphen", "\u2028next"]
    for name in names:
        client.set(f"{PREFIX}lock:{name}", f"\x1b[2J{'x' * 22} c c 1 1 \x1b[2Jowner\u202e\r\n\x07note", px=60_000)
        client.zadd(f"{PREFIX}index", {name: 9e15})
    call_command("redislocks", "list")
    shown_list = capsys.readouterr().out
    assert len(shown_list.splitlines()) == 1 + len(names)
    for name in names:
        call_command("redislocks", "show", name)
    everything = shown_list + capsys.readouterr().out
    assert all(line.isprintable() for line in everything.split("\n"))
    on_the_screen = re.sub(r"\x1b\[(H|J|K|\?7[lh])", "", on_screen(shown_list))
    assert "\x1b" not in on_the_screen
    call_command("redislocks", "list", "--format", "json")
    text = capsys.readouterr().out
    assert text.isascii()
    assert sorted(lock["name"] for lock in json.loads(text)) == sorted(names)


@pytest.mark.parametrize("command", [["show"], ["clear", "--noinput"], ["run"], ["pool"]])
@pytest.mark.parametrize("name", ["a\x1b[2J", "x" * 600, "", "\ud800", "a\nb"], ids=lambda name: repr(name[:20]))
def test_a_name_that_is_none_is_said_to_be_so_by_the_command(command: list[str], name: str, silent: Silent) -> None:
    with pytest.raises(CommandError) as caught:
        call_command("redislocks", *command, name, *(["--", "true"] if command == ["run"] else []))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    silent.check()


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix", ["a b", "a\0", "a\n", "{a}", "\ud800", "", None, 7, b"x", "{" * MEGA], ids=lambda p: shown(p)[:20]
)
def test_a_prefix_that_is_none_is_refused_in_a_short_error(prefix: Any, settings: Any) -> None:
    settings.REDISLOCK = {"KEY_PREFIX": prefix}
    with pytest.raises(ImproperlyConfigured, match="KEY_PREFIX") as caught:
        Lock("a").acquire()
    assert len(str(caught.value)) < 400


# -- the log ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [text for text in NASTY if "\ud800" not in text], ids=repr)
def test_no_text_of_others_makes_a_second_line_or_pair_in_the_log(text: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "django_redislock")
    lock = Lock(lock_name("user", text))
    lock.acquire()
    force_release(lock.name, by=text)
    with pytest.raises(LockLost):
        lock.release()
    with lock:
        pass
    for message in caplog.messages:
        assert message.isprintable()
        bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", message)
        assert re.findall(r"(\w+)=", bare)[0] == "event"
        assert len(re.findall(r"\bevent=", bare)) == 1
