"""Checks of the server, for ``check --deploy``: over one connection of their own, and they soon give up."""

from __future__ import annotations

import re
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import RedisError, ResponseError

from ..conf import conf
from ..store.backend import Backend, get_backends
from ..store.calls import probe_command
from ..store.wire import Command, exchange

PATIENCE = 2.0  # seconds to connect, and for each answer
OLDEST = (6, 2)


def check_server(**kwargs: Any) -> list[CheckMessage]:
    """The server behind each alias is one that locks can rely on. If there is none, a warning says so."""
    try:
        backends = get_backends()
    except ImproperlyConfigured:
        return []  # reported by the other checks
    return [message for backend in backends for message in _check(backend)]


def _check(backend: Backend) -> list[CheckMessage]:
    if backend.memory:
        return []
    try:
        info, *rights = _ask(backend, listening=not conf().POLL)
    except (RedisError, OSError) as error:
        return [_unseen(backend, str(error))]
    found: list[CheckMessage] = []
    if isinstance(info, ResponseError):
        found.append(_unseen(backend, str(info)))
    else:
        facts = dict(re.findall(r"^([a-z_]+):(.*?)\r?$", info, re.M))
        found = _version(backend, facts) + _eviction(backend, facts)
    return found + _rights(backend, [str(answer) for answer in rights if isinstance(answer, ResponseError)])


def _ask(backend: Backend, *, listening: bool) -> list[Any]:
    """The replies to INFO and, unless we poll, to a PUBLISH from a script and a SUBSCRIBE; errors are among them."""
    commands: list[Command] = [("INFO",)]
    if listening:
        # subscribing comes last: after it, the connection is for messages
        commands += [probe_command(backend), ("SUBSCRIBE", backend.channel)]
    connection = backend.connect(min(PATIENCE, backend.timeout))
    try:
        connection.connect()
        info, *rights = exchange(connection, commands)
    finally:
        connection.disconnect()
    return [_text(info), *rights]


def _text(answer: Any) -> Any:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def _unseen(backend: Backend, trouble: str) -> CheckMessage:
    return Warning(
        f"Could not inspect the Redis server used for locks (cache alias {backend.alias!r}): {trouble}",
        hint="Run this check where the site will run, with the server up and INFO allowed.",
        id="django_redislock.W004",
    )


def _version(backend: Backend, facts: dict[str, str]) -> list[CheckMessage]:
    text = facts.get("redis_version", "")
    numbers = tuple(map(int, re.findall(r"\d+", text)))
    if not numbers or numbers >= OLDEST:
        return []
    oldest = ".".join(map(str, OLDEST))
    return [
        Error(
            f"The Redis server used for locks (cache alias {backend.alias!r}) is version {text}; locks need {oldest} "
            f"or later.",
            hint=f"Upgrade to Redis {oldest} or later, or to Valkey.",
            id="django_redislock.E006",
        )
    ]


def _eviction(backend: Backend, facts: dict[str, str]) -> list[CheckMessage]:
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return []
    when = "as soon as it has a memory limit" if facts.get("maxmemory") == "0" else "when its memory is full"
    return [
        Warning(
            f"The Redis server used for locks (cache alias {backend.alias!r}) evicts keys {when} (maxmemory-policy "
            f"{policy}): locks have a TTL and may be among them.",
            hint="Give the locks a server with maxmemory-policy noeviction.",
            id="django_redislock.W005",
        )
    ]


def _rights(backend: Backend, errors: list[str]) -> list[CheckMessage]:
    if not errors:
        return []
    return [
        Warning(
            f"The Redis server used for locks (cache alias {backend.alias!r}) denies the user the channel that wakes "
            f"waiters, so they have to poll: {'; '.join(errors)}",
            hint=f"Grant the user channels and scripts, as in: ACL SETUSER ... +@pubsub +@scripting &{backend.prefix}*",
            id="django_redislock.W006",
        )
    ]
