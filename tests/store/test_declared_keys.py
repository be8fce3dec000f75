"""Every key that a script touches is declared in its KEYS, of which it has at least one: so locks fit a cluster."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from random import randrange

import pytest
import redis

from django_redislock import Lock, list_locks
from redisserver import RedisServer
from tests.helpers.actors import Crowd
from tests.helpers.monitor import Monitor, Touched
from tests.helpers.operations import all_of_them
from tests.helpers.ways import DJANGO_REDIS, alias, caches
from tests.inside import Text, keys_of, put_together, scripts

from .conftest import Eventually

SLOTS = 16384

Undeclared = Callable[[], tuple[dict[str, int], set[str]]]


def cluster_port() -> int:
    """A free port; the one 10,000 above it, by which the nodes of a cluster talk, is free as well."""
    while True:
        port = randrange(12_000, 22_000)
        try:
            with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port + 10_000)):
                return port
        except OSError:
            continue


@pytest.fixture(scope="module")
def node() -> Iterator[RedisServer]:
    """A cluster of one node, which has all slots."""
    server = RedisServer(cluster_enabled="yes", cluster_node_timeout=1000)
    server.port = cluster_port()
    try:
        with server.start().client() as client:
            try:
                client.execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
            except redis.ResponseError:  # before Redis 7
                client.execute_command("CLUSTER ADDSLOTS", *range(SLOTS))
            yield server
    finally:
        server.close()


@pytest.fixture
def one_node(node: RedisServer, own_pools: None, eventually: Eventually) -> Iterator[redis.Redis]:
    """It is where the locks are."""
    with node.client() as client, caches(alias(DJANGO_REDIS, node.url)):
        eventually(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        client.flushall()
        yield client


@pytest.fixture
def monitor(node: RedisServer, one_node: redis.Redis) -> Iterator[Monitor]:
    made = Monitor(node)
    yield made
    made.close()


@pytest.fixture
def undeclared(node: RedisServer, monitor: Monitor) -> Iterator[Undeclared]:
    """How many keys each script declares that was called by now, and the commands in them on others."""
    touched = Touched(node)

    def undeclared() -> tuple[dict[str, int], set[str]]:
        declared: dict[str, int] = {}
        wrong: set[str] = set()
        for call, inner in monitor.scripts():
            keys = set(call.words[3 : 3 + int(call.words[2])])
            declared[call.words[1]] = len(keys)
            wrong |= {" ".join(seen.words) for seen in inner if not touched.by(seen) <= keys}
        return declared, wrong

    yield undeclared
    touched.close()


def test_scripts_touch_no_key_that_they_do_not_declare(
    crowd: Crowd, undeclared: Undeclared, eventually: Eventually
) -> None:
    """As the server sees it, over all main operations; its cluster mode refuses keys of several slots besides."""
    all_of_them(crowd, eventually)
    declared, wrong = undeclared()
    assert wrong == set()
    assert all(count >= 1 for count in declared.values())
    by_hash = {name: script.sha for name, script in scripts().items() if name != "probe"}  # that one is sent as a text
    assert not [name for name, sha in by_hash.items() if sha not in declared], "not all have run"
    assert len({*by_hash.values()}) == len(by_hash)


def test_a_script_that_touches_another_key_would_be_seen(undeclared: Undeclared, one_node: redis.Redis) -> None:
    body = "redis.call('GET', KEYS[1]); redis.call('EXISTS', KEYS[1], 'b{0}'); redis.call('PUBLISH', 'c', 'd')"
    one_node.eval(body, 1, "a{0}")
    declared, wrong = undeclared()
    assert declared == {body: 1}
    assert wrong == {"EXISTS a{0} b{0}"}


def test_the_cluster_would_refuse_a_script_with_keys_of_several_slots(one_node: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match=r"CROSSSLOT|same slot"):
        one_node.execute_command("EVAL", "return 1", 2, "a", "b")


def test_locks_of_one_node_are_where_the_alias_leads(one_node: redis.Redis) -> None:
    with Lock("a"):
        assert one_node.exists("redislock{0}:lock:a")
        assert [info.name for info in list_locks()] == ["a"]


@pytest.mark.parametrize("name", ["a", "{b}", "}{", "a{", "pool:accounts:alice", "pool:accounts:"])
def test_all_keys_share_one_hash_tag_whatever_the_name(name: str) -> None:
    for key in keys_of(name, "site:redislock{0}:").all:
        assert key[key.index("{") + 1 : key.index("}")] == "0"


@pytest.mark.parametrize(("one", "another"), [("a", "b"), ("pool:a:b", "pool:a%3Ab:")])
def test_names_share_the_index_and_the_fence_and_nothing_else(one: str, another: str) -> None:
    """The second is a pool whose name is that of a member of another one."""
    assert {*keys_of(one, "p{0}:").all} & {*keys_of(another, "p{0}:").all} == {"p{0}:index", "p{0}:fence"}


# -- by their texts ---------------------------------------------------------------------------------------------------

EVERY_SCRIPT = pytest.mark.parametrize("script", scripts().values(), ids=scripts())

# fakeredis has these, and no cmsgpack, bit or struct
PROVIDED = "KEYS ARGV redis string table math cjson tonumber tostring type unpack pairs ipairs"
KEYWORDS = "and break do else elseif end false for function if in local nil not or repeat return then true until while"


@EVERY_SCRIPT
def test_every_key_in_the_text_of_a_script_is_one_of_keys(script: Text) -> None:
    """Written as such, or under the name by which a function has been given it; none is put together."""
    assert script.keys
    found = re.findall(
        r"\bredis\.p?call\((?:sharded\(channel\) and 'SPUBLISH' or )?'([A-Z]+)'(?:, *([^,)]+))?", script.source
    )
    assert len(found) >= 3
    assert len(found) == len(re.findall(r"\bredis\.p?call\b", script.source))
    for command, key in found:
        if command not in ("TIME", "PUBLISH", "PUBSUB", "CLUSTER"):
            assert re.fullmatch(r"KEYS\[\d+\]|queue|waiters|key|keys\[\d\]", key), (command, key)


@EVERY_SCRIPT
def test_a_script_knows_no_globals_but_those_that_every_server_provides(script: Text) -> None:
    """Nor sets any: a server would refuse it in the middle of its work."""
    code = re.sub(r"'[^'\n]*'", "''", re.sub(r"--.*", "", script.source))
    known = {*KEYWORDS.split(), *PROVIDED.split()}
    for pattern in (
        r"local function (\w+)",
        r"local ((?!function)\w+(?:, *\w+)*)",
        r"for (\w+(?:, *\w+)*)",
        r"function(?: \w+)?\(([^)]*)\)",
    ):
        for names in re.findall(pattern, code):
            known.update(re.split(r", *", names))
    assert set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", code)) <= known


@EVERY_SCRIPT
def test_a_script_uses_no_key_or_argument_that_it_does_not_take(script: Text) -> None:
    for array, taken in (("KEYS", script.keys), ("ARGV", script.args)):
        used = {int(number) for number in re.findall(rf"\b{array}\[(\d+)\]", script.source)}
        assert used <= {*range(1, len(taken) + 1)}


def test_names_stand_for_positions_and_an_unknown_one_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    head = "-- made: up\n-- KEYS index fence\n-- ARGV name\n"
    assert put_together(monkeypatch, f"{head}return {{KEYS.fence, ARGV.name}}\n") == "return {KEYS[2], ARGV[1]}\n"
    with pytest.raises(ValueError, match=r"The script made \(key\) uses a name that its header does not have"):
        put_together(monkeypatch, f"{head}return KEYS.queue\n")
