"""Bad input: what is invalid causes a short error before anything is sent, and no text breaks or imitates anything."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff

from django_redislock import ConditionalValue, Counter, Lock, get_lock, list_locks
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import NAME, leftovers

# what means harm to whoever reads, parses or prints it
NASTY = ["<b>&\"'\\ \x00\x1b[31m\u202e line\nbreak\r\n\ttab  end \u00fc\U0001f512 ", "\u2028\u2029\x85\U0010ffff"]
NO_SECONDS: dict[str, Any] = {"nan": math.nan, "negative": -1, "a text": "10", "large": 10**5000}
NO_DURATION = r"seconds|at most ten years"


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


@pytest.mark.parametrize("value", NO_SECONDS.values(), ids=NO_SECONDS)
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


@pytest.mark.parametrize("delay", [math.nan, None, "1", [1]], ids=str)
def test_a_delay_that_is_no_number_is_refused_and_leaves_nothing(crowd: Crowd, delay: Any, client: redis.Redis) -> None:
    lock = Lock(NAME, poll=True, backoff=ConstantBackoff(delay))
    refuses(lambda: crowd()(lock, "acquire"), r"delays of backoff must be seconds.*, not ")
    assert leftovers(client) == []


def test_names_are_compared_as_they_are_written_and_not_normalised() -> None:
    with Lock("caf\u00e9"), Lock("cafe\u0301", blocking=False), Lock("CAF\u00c9", blocking=False):
        assert len(list_locks()) == 3


@pytest.mark.parametrize("note", ["\n", " ", "x" * 1000, "\u00fc" * 500, *NASTY], ids=ascii)
def test_the_notes_of_holder_and_waiters_are_kept_as_they_are(note: str, me: Any, you: Any, queue: Any) -> None:
    lock = Lock(NAME, note=note)
    me(lock, "acquire")
    me(lock, "extend", 5)
    waiting = queue(Lock(NAME, note=note), you)
    info = me(lock, "info")
    assert (info.note, info.queue[0].note) == (note, note)
    assert "\n" not in info.owner + info.queue[0].owner
    assert [one.note for one in list_locks()] == [note]
    me(lock, "release")
    assert waiting.result(GENEROUS)
    assert get_lock(NAME).note == note  # type: ignore[union-attr]
