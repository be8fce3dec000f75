"""Checks of the server, for ``check --deploy``: over one connection of their own, and they soon give up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ResponseError

from ..conf import conf
from ..exceptions import LockUnavailable
from ..store.cluster import OLDEST as OLDEST_OF_CLUSTERS
from ..store.place import Backend, Place
from ..store.places import get_places
from ..store.probe import probe_command
from ..store.wire import PASSING, Command, exchange

PATIENCE = 2.0  # seconds to connect, and for each answer
OLDEST, OLDEST_CLUSTER = (6, 2), (OLDEST_OF_CLUSTERS, 0)
_FACT = re.compile(r"^([a-z_]+):(.*?)\r?$", re.M)  # of an answer to INFO


def check_server(**kwargs: Any) -> list[CheckMessage]:
    """The server behind each alias is one that locks can rely on. If there is none, a warning says so."""
    try:
        places = get_places()
    except ImproperlyConfigured:
        return []  # reported by the other checks
    except LockUnavailable as error:
        return [_unseen(conf().CACHE, error)]
    return [message for place in places for message in _check(place)]


def _check(place: Place) -> list[CheckMessage]:
    if place.memory:
        return []
    try:
        # any backend of each node of a cluster: what differs from node to node is told once for each
        backends = list({place.node_of(tag): place.backend(tag) for tag in range(place.tags)}.values())
    except Exception as error:  # whatever the site's own connection class or credential provider raises
        return [_unseen(place.alias, error)]
    found = [message for backend in backends for message in _check_node(backend)]
    return list({str(message): message for message in found}.values())


def _check_node(backend: Backend) -> Iterator[CheckMessage]:
    try:
        info, cluster, probe, *rights = _ask(backend, listening=not conf().POLL)
    except Exception as error:  # see _check()
        yield _unseen(backend.alias, error)
        return
    if isinstance(info, ResponseError):
        yield _unseen(backend.alias, info)
    else:
        facts = dict(_FACT.findall(info))
        if facts.get("slave_read_only") == "1":
            yield _useless(backend, "it is a read-only replica")
        yield from _version(backend, facts)
        yield from _eviction(backend, facts)
        yield from _replicas(backend, facts)
    yield from _cluster(backend, dict(_FACT.findall(str(cluster))))
    if _is_refusal(probe):
        yield _useless(backend, probe)
    else:
        yield from _rights(backend, [str(answer) for answer in rights if _is_refusal(answer)])


def _ask(backend: Backend, *, listening: bool) -> list[Any]:
    """The replies to INFO, to CLUSTER INFO and to a script; where waiters listen, also to its PUBLISH and a SUBSCRIBE.

    Errors are among them. CLUSTER INFO takes a right that a user needs nowhere else: a server without cluster mode is
    not asked, and "" stands for its reply.
    """
    # subscribing comes last: after it, the connection is for messages
    verb = "SSUBSCRIBE" if backend.place.clustered else "SUBSCRIBE"
    commands: list[Command] = [probe_command(backend), *[(verb, backend.channel)] * listening]
    origin = backend.node.origin
    connection = origin.connection(min(PATIENCE, origin.timeout))
    try:
        connection.connect()
        info, cluster = _text(exchange(connection, [("INFO",)])[0]), ""
        if "cluster_enabled:1" in str(info):
            cluster = _text(exchange(connection, [("CLUSTER", "INFO")])[0])
        probe, *subscribed = exchange(connection, commands)
    finally:
        connection.disconnect()
    published = probe[:1] if listening and isinstance(probe, list) else []
    return [info, cluster, probe, *published, *subscribed]


def _is_refusal(answer: Any) -> bool:
    return isinstance(answer, ResponseError) and not isinstance(answer, PASSING)


def _text(answer: Any) -> Any:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def _server(alias: str, article: str = "The") -> str:
    return f"{article} Redis server used for locks (cache alias {alias!r})"


def _unseen(alias: str, trouble: Exception) -> CheckMessage:
    return Warning(
        f"Could not inspect {_server(alias, 'the')}: {trouble}",
        hint="Run this check where the site will run, with the server up and INFO allowed.",
        id="django_redislock.W004",
    )


def _useless(backend: Backend, trouble: object) -> CheckMessage:
    return Error(
        f"{_server(backend.alias)} refuses all locks: {trouble}.",
        hint='Name a master, and a user with the rights on the page "A Redis user for the locks" of the documentation.',
        id="django_redislock.E008",
    )


def _version(backend: Backend, facts: dict[str, str]) -> Iterator[CheckMessage]:
    text = facts.get("redis_version", "")
    numbers = tuple(map(int, re.findall(r"\d+", text)))
    least = OLDEST_CLUSTER if backend.place.clustered else OLDEST
    if not numbers or numbers >= least:
        return
    oldest = ".".join(map(str, least))
    yield Error(
        f"{_server(backend.alias)} is version {text}; locks "
        f"{'on a cluster ' if backend.place.clustered else ''}need {oldest} or later.",
        hint=f"Upgrade to Redis {oldest} or later, or to Valkey.",
        id="django_redislock.E006",
    )


def _eviction(backend: Backend, facts: dict[str, str]) -> Iterator[CheckMessage]:
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return
    when = "as soon as it has a memory limit" if facts.get("maxmemory") == "0" else "when its memory is full"
    yield Warning(
        f"{_server(backend.alias)} evicts keys {when} (maxmemory-policy "
        f"{policy}): locks have a TTL and may be among them.",
        hint="Give the locks a server with maxmemory-policy noeviction. Then extend() each pool with its members: "
        "this brings back those that an eviction took.",
        id="django_redislock.W005",
    )


def _replicas(backend: Backend, facts: dict[str, str]) -> Iterator[CheckMessage]:
    wanted, there = conf().REPLICAS, int(facts.get("connected_slaves", 0))
    if there < wanted:
        yield Warning(
            f"REDISLOCK['REPLICAS'] asks for {wanted} replicas to acknowledge each grant, and "
            f"{_server(backend.alias, 'the')} has {there}: no lock could be acquired.",
            hint="Add replicas, or ask for fewer.",
            id="django_redislock.W009",
        )


def _cluster(backend: Backend, facts: dict[str, str]) -> Iterator[CheckMessage]:
    if not backend.place.clustered and int(facts.get("cluster_known_nodes", 1)) != 1:
        yield Error(
            f"{_server(backend.alias)} is a node of a Redis Cluster, which may move the locks to another node.",
            hint="Set REDISLOCK['CLUSTER'] to True, or to a list with this alias.",
            id="django_redislock.E007",
        )


def _rights(backend: Backend, errors: list[str]) -> Iterator[CheckMessage]:
    if errors:
        yield Warning(
            f"{_server(backend.alias)} denies the user the channel that wakes "
            f"waiters, so they have to poll: {'; '.join(errors)}",
            hint=f"Grant the user the channels: ACL SETUSER ... +@pubsub &{backend.prefix}*",
            id="django_redislock.W006",
        )
