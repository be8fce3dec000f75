"""Bad input: what is invalid causes a short error before anything is sent, and no text breaks or imitates anything."""

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff

from django_redislock import ConditionalValue, Counter, Lock, get_lock, list_locks, lock_name, locked
from tests.helpers.actors import GENEROUS, Crowd, until
from tests.helpers.state import NAME, leftovers, queued

# texts that mean harm to whoever reads, parses or prints them
MEGA = 10_000_000

NASTY = [
    "<b>&\"'\\ \x00\x1b[31m\u202e line\nbreak\r\n\ttab  end \u00fc\U0001f512 ",
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
ENCODABLE = [text for text in NASTY if "\ud800" not in text]
NO_SECONDS: list[Any] = [math.nan, math.inf, -math.inf, -1, True, "10", "x" * MEGA, b"10", Decimal(10), [10], 1j]
NO_SECONDS += [1e300, 10**5000, 2**63]
NO_DURATION = r"seconds|at most ten years"


def brief(value: object) -> str:
    return "a large number" if isinstance(value, int) and value > 2**64 else ascii(value)[:20]


def refuses(take: Callable[[], object], about: str) -> None:
    with pytest.raises((TypeError, ValueError), match=about) as caught:
        take()
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


def test_a_name_that_looks_like_a_template_warns() -> None:
    with pytest.warns(RuntimeWarning, match=r"^Lock\('order:{pk}'\) locks this very name: only decorators") as caught:
        assert Lock("order:{pk}").name == "order:{pk}"
    assert caught[0].filename == __file__
    assert [Lock(name).name for name in ("{", "a}", "a{{pk}}")] == ["{", "a}", "a{{pk}}"]


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("token", ["", "short secret", "x" * 129, "x" * 22 + "\n", "\u00e9" * 22, b"x" * 22, 7])
def test_an_invalid_token_is_refused_and_not_shown(me: Any, token: Any) -> None:
    for take in (lambda: Lock(NAME, token=token), lambda: me(Lock(NAME), "acquire", token=token)):
        with pytest.raises(ValueError, match="A token must be") as caught:
            take()
        assert not token or str(token) not in str(caught.value)


@pytest.mark.parametrize("value", NO_SECONDS, ids=brief)
def test_an_invalid_duration_is_refused_and_leaves_a_held_lock_unchanged(crowd: Crowd, value: Any) -> None:
    me, lock = crowd(), Lock(NAME, ttl=100)
    refuses(lambda: me(lock, "acquire", blocking_timeout=value), NO_DURATION)
    refuses(lambda: me(lock, "acquire", blocking=5), r"^blocking must be True, False or None, not 5")
    refuses(lambda: me(Counter("a"), "incr", ttl=value), NO_DURATION)
    refuses(lambda: me(ConditionalValue("a"), "setgt", 1, ttl=value), NO_DURATION)
    assert get_lock(NAME) is None
    me(lock, "acquire")
    for method in ("extend", "detach"):
        refuses(lambda method=method: me(lock, method, value), NO_DURATION)  # type: ignore[misc]
    assert get_lock(NAME).lease_left <= 100  # type: ignore[union-attr]
    me(lock, "release")


@pytest.mark.parametrize("delay", [math.nan, None, "1", [1]], ids=brief)
def test_a_delay_that_is_no_number_is_refused_and_leaves_nothing(crowd: Crowd, delay: Any, client: redis.Redis) -> None:
    lock = Lock(NAME, poll=True, backoff=ConstantBackoff(delay))
    refuses(lambda: crowd()(lock, "acquire"), r"delays of backoff must be seconds.*, not ")
    assert leftovers(client) == []


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


@pytest.mark.parametrize("note", ["\n", " ", "x" * 1000, "\u00fc" * 500, *ENCODABLE], ids=ascii)
def test_the_notes_of_holder_and_waiters_are_kept_as_they_are(note: str, crowd: Crowd, client: redis.Redis) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, note=note)
    me(lock, "acquire")
    me(lock, "extend", 5)
    waiting = you.start(Lock(NAME, note=note), "acquire")
    until(lambda: queued(client))
    info = me(lock, "info")
    assert (info.note, info.queue[0].note) == (note, note)
    assert "\n" not in info.owner + info.queue[0].owner
    assert [one.note for one in list_locks()] == [note]
    me(lock, "release")
    assert waiting.result(GENEROUS)
    assert get_lock(NAME).note == note  # type: ignore[union-attr]
