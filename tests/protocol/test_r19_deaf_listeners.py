"""R19: a subscription on which messages do not arrive is detected and replaced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from django_redislock import Lock
from tests.helpers.actors import GENEROUS
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME
from tests.inside import Ears, limit
from tests.protocol.scene import LONG, Eventually, Line, listed


@pytest.mark.complete
@pytest.mark.parametrize("ttl", [30, 1], ids=["granted long ago", "its handoff has ended"])
def test_a_scheduled_look_that_finds_an_unannounced_grant_makes_the_listener_reconnect(
    ttl: float,
    network: Proxy,
    line: Line,
    client: redis.Redis,
    listening: Callable[..., Ears],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit(monkeypatch, look_every=2.0)
    ears = listening("other")
    generation = ears.generation
    lock = Lock(NAME, ttl=LONG)
    lock.acquire()
    waiting = line.join(Lock(NAME, ttl=ttl, using="other"))
    swallowed = network.swallow_message(f"g {listed(client)[0][0]}")
    lock.release()
    assert swallowed.over.wait(GENEROUS)
    assert waiting.result()
    eventually(lambda: ears.generation > generation and ears.ready, within=10)


@pytest.mark.usefixtures("nobody_looks")
def test_an_incomplete_message_makes_the_listener_reconnect(
    network: Proxy, line: Line, listening: Callable[..., Ears], eventually: Eventually
) -> None:
    """After a second, instead of waiting for its end for ever."""
    ears = listening("other")
    generation = ears.generation
    lock = Lock(NAME, ttl=LONG)
    lock.acquire()
    waiting = line.join(Lock(NAME, using="other"))
    (link,) = [link for link in network.links if link.down.fileno() >= 0 and link.down.getpeername()[1] == ears.port]
    link.down.sendall(b"*3\r\n$7\r\nmessage\r\n$20\r\nhalf")
    eventually(lambda: ears.generation > generation and ears.ready)
    lock.release()
    assert waiting.result()
