"""R16: a late release or withdrawal touches nothing newer, even with the same token."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_redislock import Lock
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME, TOKEN, holder, queued
from tests.protocol.scene import RELEASE, Eventually, Line


@pytest.fixture
def slow(network: Proxy, add_alias: Callable[..., str]) -> Proxy:
    """A network that loses requests, and an alias that soon retries."""
    add_alias(network.url, SOCKET_TIMEOUT=0.2)
    return network


@pytest.mark.parametrize("by", ["holder", "bearer"])
def test_a_release_that_comes_late_leaves_a_new_holder_with_the_same_token_alone(
    by: str, slow: Proxy, crowd: Crowd, line: Line
) -> None:
    me, you = crowd(), crowd()
    first, second = Lock(NAME, token=TOKEN, using="other"), Lock(NAME, token=TOKEN)
    me(first, "acquire")
    if by == "bearer":
        me(first, "detach")
    late = slow.hold_request(RELEASE)
    me(first, "release")  # at the second try
    assert late.caught.is_set()
    assert you(second, "acquire")
    id = holder(line.client)
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert holder(line.client) == id
    assert you.read(lambda: second.token) == TOKEN
    assert not you.read(lambda: second.lost)
    you(second, "release")


def test_a_withdrawal_that_comes_late_leaves_a_new_waiter_with_the_same_token_in_the_queue(
    slow: Proxy, line: Line, eventually: Eventually
) -> None:
    lock = Lock(NAME)
    lock.acquire()
    leaving = line.join(Lock(NAME, token=TOKEN, blocking_timeout=1, using="other"))
    late = slow.hold_request(RELEASE)
    assert not leaving.result()
    assert late.caught.wait(GENEROUS)
    eventually(lambda: queued(line.client) == 0)  # the second try, in the background
    waiting = line.join(Lock(NAME, token=TOKEN))
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert queued(line.client) == 1
    lock.release()
    assert waiting.result()


def test_a_release_in_the_background_leaves_a_new_holder_with_the_same_token_alone(
    network: Proxy, crowd: Crowd, line: Line, eventually: Eventually
) -> None:
    """Of a block whose end did not reach Redis, until it was force-released and taken by somebody else."""
    me, you = crowd(), crowd()
    first, second = Lock(NAME, token=TOKEN, using="other"), Lock(NAME, token=TOKEN)
    me(first, "enter")
    network.cut()
    with pytest.raises(Exception, match="cannot be reached"):
        me(first, "exit", None, None, None)
    line.client.delete("redislock{0}:lock:order:42")
    assert you(second, "acquire")
    id = holder(line.client)
    late = network.delay_answer(RELEASE, 0)
    network.mend()
    assert late.over.wait(GENEROUS)
    assert holder(line.client) == id
    you(second, "release")
