"""Every key that a script touches is declared in its KEYS, of which it has at least one: so locks fit a cluster."""

from __future__ import annotations

import redis

from redisserver import RedisServer
from tests.helpers.actors import Crowd
from tests.helpers.operations import all_of_them
from tests.helpers.state import Monitor, Touched
from tests.inside import scripts

from .conftest import Eventually


def test_scripts_touch_no_key_that_they_do_not_declare(
    server: RedisServer, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    """As the server sees it, over all main operations."""
    body = "redis.call('GET', KEYS[1]); redis.call('EXISTS', KEYS[1], 'b{0}'); redis.call('PUBLISH', 'c', 'd')"
    monitor, touched, declared, wrong = Monitor(server), Touched(server), dict[str, int](), set[str]()
    client.script_flush()
    all_of_them(crowd, eventually)
    client.eval(body, 1, "a{0}")  # one that does is seen
    for call, inner in monitor.scripts():
        keys = set(call.words[3 : 3 + int(call.words[2])])
        declared[call.words[1]] = len(keys)
        wrong |= {" ".join(seen.words) for seen in inner if not touched.by(seen) <= keys}
    monitor.close()
    touched.close()
    assert wrong == {"EXISTS a{0} b{0}"}
    assert all(count >= 1 for count in declared.values())
    by_hash = {name: script.sha for name, script in scripts().items() if name != "probe"}  # that one is sent as a text
    assert not [name for name, sha in by_hash.items() if sha not in declared], "not all have run"
