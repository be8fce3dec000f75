"""Checks of the server, for ``check --deploy``: over connections of their own, and they soon give up."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ResponseError

from ..base.steps import Steps, run
from ..base.times import monotonic
from ..conf import conf
from ..exceptions import LockUnavailable
from ..store import calls
from ..store.calls import probe_command
from ..store.lock_store import LockStore, Partition
from ..store.records import make_keys
from ..store.stores import get_stores
from ..store.wire import PASSING, Command, exchange

PATIENCE = 2.0  # seconds to connect, and for each answer
OLDEST, OLDEST_CLUSTER = (6, 2), (7, 0)
_FACT = re.compile(r"^([a-z_]+):(.*?)\r?$", re.M)  # of an answer to INFO


def check_server(**kwargs: Any) -> list[CheckMessage]:
    """The server behind each alias is one that locks can rely on. If there is none, a warning says so."""
    try:
        stores = get_stores()
    except ImproperlyConfigured:
        return []  # reported by the other checks
    except LockUnavailable as error:
        return [_unseen(conf().CACHE, error)]
    return [message for store in stores for message in _check(store)]


def _check(store: LockStore) -> list[CheckMessage]:
    if store.memory:
        return []
    try:
        # any partition of each node of a cluster: what differs from node to node is told once for each
        partitions = list({store.node_of(tag): store.partition(tag) for tag in range(store.tags)}.values())
    except Exception as error:  # whatever the site's own connection class or credential provider raises
        return [_unseen(store.alias, error)]
    found = [message for partition in partitions for message in _check_node(partition)]
    return list({str(message): message for message in found}.values())


def _check_node(partition: Partition) -> Iterator[CheckMessage]:
    try:
        info, cluster, probe, *rights = _ask(partition, listening=not conf().POLL)
    except Exception as error:  # see _check()
        yield _unseen(partition.alias, error)
        return
    found = list(_cluster(partition, dict(_FACT.findall(str(cluster)))))
    if isinstance(info, ResponseError):
        yield _unseen(partition.alias, info)
    else:
        facts = dict(_FACT.findall(info))
        if facts.get("slave_read_only") == "1":
            found.append(_useless(partition, "it is a read-only replica"))
        found += [*_version(partition, facts), *_eviction(partition, facts), *_replicas(partition, facts)]
    yield from found
    if _is_refusal(probe):
        yield _useless(partition, probe)
        return
    yield from _rights(partition, [str(answer) for answer in rights if _is_refusal(answer)])
    if not any(isinstance(message, Error) for message in found):
        yield from _use(partition)


def _use(partition: Partition) -> Iterator[CheckMessage]:
    """A lock of a name of its own is acquired, waited for and released, as all locks are."""
    try:
        run(_use_lock(partition, f"check:{secrets.token_hex(8)}", by=monotonic() + PATIENCE))
    except LockUnavailable as error:
        trouble = str(error).partition(f"(cache alias {partition.alias!r}): ")[2].rstrip(".")
        yield _useless(partition, trouble) if _is_refusal(error.__cause__) else _unseen(partition.alias, error)
    finally:
        partition.store.threads.drop_idle()


def _use_lock(partition: Partition, name: str, by: float) -> Steps[None]:
    until, keys = by, make_keys(partition.prefix, name)
    holder, waiter = (
        calls.LockRequest(partition, keys, name, secrets.token_urlsafe(16), PATIENCE, owner="manage.py check")
        for _ in range(2)
    )
    yield from calls.acquire(holder._replace(replicas=conf().REPLICAS), calls.NOT_AT_ALL, None, until=until, by=by)
    yield from calls.acquire(waiter, calls.QUEUED, None, until=until, by=by)
    yield from calls.renew(holder, "keep", PATIENCE, until=until, by=by)
    yield from calls.info(partition, keys, name, 1, until=until, by=by)
    yield from calls.release(waiter, unknown=True, how=calls.WITHDRAWAL, until=until, by=by)
    yield from calls.release(holder, unknown=True, until=until, by=by)


def _ask(partition: Partition, *, listening: bool) -> list[Any]:
    """The replies to INFO, to CLUSTER INFO and to a script; where waiters listen, also to its PUBLISH and a SUBSCRIBE.

    Errors are among them. CLUSTER INFO takes a right that a user needs nowhere else: a server without cluster mode is
    not asked, and "" stands for its reply.
    """
    # subscribing comes last: after it, the connection is for messages
    verb = "SSUBSCRIBE" if partition.store.clustered else "SUBSCRIBE"
    commands: list[Command] = [probe_command(partition), *[(verb, partition.channel)] * listening]
    origin = partition.node.origin
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


def _useless(partition: Partition, trouble: object) -> CheckMessage:
    return Error(
        f"{_server(partition.alias)} refuses all locks: {trouble}.",
        hint='Use a master, and a user with the rights on the page "A Redis user for the locks" of the documentation.',
        id="django_redislock.E008",
    )


def _version(partition: Partition, facts: dict[str, str]) -> Iterator[CheckMessage]:
    text = facts.get("redis_version", "")
    numbers = tuple(map(int, re.findall(r"\d+", text)))
    least = OLDEST_CLUSTER if partition.store.clustered else OLDEST
    if not numbers or numbers >= least:
        return
    oldest = ".".join(map(str, least))
    yield Error(
        f"{_server(partition.alias)} is version {text}; locks "
        f"{'on a cluster ' if partition.store.clustered else ''}need {oldest} or later.",
        hint=f"Upgrade to Redis {oldest} or later, or to Valkey.",
        id="django_redislock.E006",
    )


def _eviction(partition: Partition, facts: dict[str, str]) -> Iterator[CheckMessage]:
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return
    when = "as soon as it has a memory limit" if facts.get("maxmemory") == "0" else "when its memory is full"
    yield Warning(
        f"{_server(partition.alias)} evicts keys {when} (maxmemory-policy "
        f"{policy}): locks have a TTL and may be among them.",
        hint="Give the locks a server with maxmemory-policy noeviction. Then extend() each pool with its members: "
        "this brings back those that an eviction took.",
        id="django_redislock.W005",
    )


def _replicas(partition: Partition, facts: dict[str, str]) -> Iterator[CheckMessage]:
    wanted, there = conf().REPLICAS, int(facts.get("connected_slaves", 0))
    if there < wanted:
        yield Warning(
            f"REDISLOCK['REPLICAS'] asks for {wanted} replicas to acknowledge each grant, and "
            f"{_server(partition.alias, 'the')} has {there}: no lock could be acquired.",
            hint="Add replicas, or ask for fewer.",
            id="django_redislock.W009",
        )


def _cluster(partition: Partition, facts: dict[str, str]) -> Iterator[CheckMessage]:
    if not partition.store.clustered and int(facts.get("cluster_known_nodes", 1)) != 1:
        yield Error(
            f"{_server(partition.alias)} is a node of a Redis Cluster, which may move the locks to another node.",
            hint="Set REDISLOCK['CLUSTER'] to True, or to a list with this alias.",
            id="django_redislock.E007",
        )


def _rights(partition: Partition, errors: list[str]) -> Iterator[CheckMessage]:
    if errors:
        yield Warning(
            f"{_server(partition.alias)} denies the user the channel that wakes "
            f"waiters, so they have to poll: {'; '.join(errors)}",
            hint=f"Grant the user the channels: ACL SETUSER ... +@pubsub &{partition.prefix}*",
            id="django_redislock.W006",
        )
