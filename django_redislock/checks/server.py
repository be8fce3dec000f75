"""Checks of the server, for ``check --deploy``: over connections of their own, and they soon give up."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import AuthenticationError, ResponseError

from ..base.steps import Steps, run
from ..base.times import GRACE, Deadline
from ..conf import conf
from ..exceptions import LockUnavailable
from ..store import calls
from ..store.calls import probe_command
from ..store.lock_store import LockStore, Partition
from ..store.records import make_keys
from ..store.stores import reach_stores
from ..store.wire import NO_CLUSTER, PASSING, exchange

PATIENCE = 2.0  # seconds to connect, and for each answer
OLDEST, OLDEST_CLUSTER = (6, 2), (7, 0)


def check_server(**kwargs: Any) -> list[CheckMessage]:
    """The server behind each alias is one that locks can rely on. If there is none, a warning says so."""
    try:
        reached = reach_stores()
    except ImproperlyConfigured:
        return []  # reported by the other checks
    # what all nodes of a cluster have in common is told once
    return list({str(each): each for alias, store in reached.items() for each in _check(alias, store)}.values())


def _check(alias: str, store: LockStore | LockUnavailable) -> Iterator[CheckMessage]:
    if isinstance(store, LockUnavailable):
        yield _unseen(alias, store)
        return
    if store.memory:
        return
    try:
        # any partition of each node
        partitions = {store.node_of(tag): store.partition(tag) for tag in range(store.tags)}.values()
    except Exception as error:  # whatever the site's own connection class or credential provider raises
        yield _unseen(alias, error)
        return
    for partition in partitions:
        try:
            info, rights, nodes = _ask(partition)
        except Exception as error:  # see above
            if _is_refusal(error):  # no connection gets that far: the database does not exist, say
                yield from _use(partition)
            else:
                yield _unseen(partition.alias, error)
            continue
        if isinstance(info, ResponseError):
            found = [_unseen(partition.alias, info)]
        else:
            found = list(_read(partition, _facts(info), nodes))
        yield from found
        if any(isinstance(message, Error) for message in found):
            continue
        if errors := [str(answer) for answer in rights if _is_refusal(answer)]:
            yield Warning(
                f"{_server(partition.alias)} denies the user the channel that wakes waiters, so they have to poll: "
                f"{'; '.join(errors)}",
                hint=f"Grant the user the channels: ACL SETUSER ... +@pubsub &{partition.prefix}*",
                id="django_redislock.W006",
            )
        yield from _use(partition)


def _facts(info: Any) -> dict[str, str]:
    return dict(re.findall(r"^([a-z_]+):(.*?)\r?$", info.decode(), re.M)) if isinstance(info, bytes) else {}


def _ask(partition: Partition) -> tuple[Any, list[Any], int]:
    """The replies to INFO and, where waiters listen, to a script's PUBLISH and a SUBSCRIBE; errors are among them.

    The number is that of the cluster's nodes, 1 if it is unknown: CLUSTER INFO takes a right that a user needs nowhere
    else, and a server without cluster mode is not asked.
    """
    verb = "SSUBSCRIBE" if partition.store.clustered else "SUBSCRIBE"
    rights: list[Any] = []
    config = partition.node.config
    connection = config.connection(min(PATIENCE, config.timeout))
    try:
        connection.connect()
        (info,), cluster = exchange(connection, [("INFO",)]), {}
        if _facts(info).get("cluster_enabled") == "1":
            cluster = _facts(exchange(connection, [("CLUSTER", "INFO")])[0])
        if not conf().POLL:
            # subscribing comes last: after it, the connection is for messages
            probe, subscribed = exchange(connection, [probe_command(partition), (verb, partition.channel)])
            # a script that cannot run at all is for _use() to tell
            rights = [probe[0], subscribed] if isinstance(probe, list) else []
    finally:
        connection.disconnect()
    return info, rights, int(cluster.get("cluster_known_nodes", 1))


def _is_refusal(answer: Any) -> bool:
    return isinstance(answer, ResponseError) and not isinstance(answer, PASSING)


def _use(partition: Partition) -> Iterator[CheckMessage]:
    """A lock of a name of its own is acquired, waited for and released, as all locks are."""
    try:
        run(_use_lock(partition, f"check:{secrets.token_hex(8)}"))
    except LockUnavailable as error:
        refused = _is_refusal(error.__cause__)
        yield _useless(partition.alias, error) if refused else _unseen(partition.alias, error)
    finally:
        partition.store.threads.drop_idle()


def _use_lock(partition: Partition, name: str) -> Steps[None]:
    deadline = Deadline.after(max(0.0, PATIENCE - GRACE))
    keys = make_keys(partition.prefix, name)
    holder, waiter = (
        calls.LockRequest(partition, keys, name, secrets.token_urlsafe(16), PATIENCE, owner="manage.py check")
        for _ in range(2)
    )
    yield from calls.acquire(holder._replace(replicas=conf().REPLICAS), calls.NOT_AT_ALL, None, deadline)
    yield from calls.acquire(waiter, calls.QUEUED, None, deadline)
    yield from calls.renew(holder, "keep", PATIENCE, None, deadline)
    yield from calls.info(partition, keys, name, 1, deadline)
    yield from calls.release(holder, deadline, may_arrive=True)  # nobody listens for the waiter: it is dropped
    yield from calls.release(waiter, deadline, may_arrive=True, how=calls.WITHDRAWAL)


def _server(alias: str, the: str = "The") -> str:
    return f"{the} Redis server used for locks (cache alias {alias!r})"


def _is_unauthenticated(trouble: BaseException | None) -> bool:
    return isinstance(trouble, AuthenticationError) or (trouble is not None and _is_unauthenticated(trouble.__cause__))


def _unseen(alias: str, trouble: Exception) -> CheckMessage:
    if NO_CLUSTER in str(trouble):
        return Error(
            f"{_server(alias)} is no node of a Redis Cluster, or denies the user CLUSTER SLOTS.",
            hint="Leave this alias out of REDISLOCK['CLUSTER'], or grant the user +cluster|slots.",
            id="django_redislock.E009",
        )
    if _is_unauthenticated(trouble):
        return Error(
            f"{_server(alias)} lets nobody in with the user and the password of the alias: {trouble}",
            hint="Set both in LOCATION or in OPTIONS of the alias.",
            id="django_redislock.E010",
        )
    return Warning(
        f"Could not inspect {_server(alias, 'the')}: {trouble}",
        hint="Run this check where the site will run, with the server up and INFO allowed.",
        id="django_redislock.W004",
    )


def _useless(alias: str, trouble: Exception) -> CheckMessage:
    reason = str(trouble).partition(f"(cache alias {alias!r}): ")[2].rstrip(".")
    return Error(
        f"{_server(alias)} refuses all locks: {reason}.",
        hint='Use a master, a database that it has, and a user with the rights on the page "A Redis user for the '
        'locks" of the documentation.',
        id="django_redislock.E008",
    )


def _read(partition: Partition, facts: dict[str, str], nodes: int) -> Iterator[CheckMessage]:
    """Yield what the answer to INFO says."""
    server, clustered = _server(partition.alias), partition.store.clustered
    if nodes != 1 and not clustered:
        yield Error(
            f"{server} is a node of a Redis Cluster, which may move the locks to another node.",
            hint="Set REDISLOCK['CLUSTER'] to True, or to a list with this alias.",
            id="django_redislock.E007",
        )
    version = facts.get("redis_version", "")
    numbers, least = tuple(map(int, re.findall(r"\d+", version))), OLDEST_CLUSTER if clustered else OLDEST
    if numbers and numbers < least:
        oldest = ".".join(map(str, least))
        yield Error(
            f"{server} is version {version}; locks {'on a cluster ' * clustered}need {oldest} or later.",
            hint=f"Upgrade to Redis {oldest} or later, or to Valkey.",
            id="django_redislock.E006",
        )
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        when = "as soon as it has a memory limit" if facts.get("maxmemory") == "0" else "when its memory is full"
        yield Warning(
            f"{server} evicts keys {when} (maxmemory-policy {policy}): locks have a TTL and may be among them.",
            hint="Give the locks a server with maxmemory-policy noeviction. Then extend() each pool with its members: "
            "this brings back those that an eviction took.",
            id="django_redislock.W005",
        )
    wanted, there = conf().REPLICAS, int(facts.get("connected_slaves", 0))
    if there < wanted:
        yield Warning(
            f"REDISLOCK['REPLICAS'] asks for {wanted} replicas to acknowledge each grant, and "
            f"{_server(partition.alias, 'the')} has {there}: no lock could be acquired.",
            hint="Add replicas, or ask for fewer.",
            id="django_redislock.W009",
        )
