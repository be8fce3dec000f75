"""Calls to Redis that survive a lost connection: what is sent again, for how long, and what is raised in the end."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from time import monotonic
from typing import Any, NamedTuple

from redis.backoff import EqualJitterBackoff
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError, TimeoutError

from ..conf import conf
from ..exceptions import LockUnavailable
from ..names import known_as
from ..pace import Pace
from ..steps import Pause, Steps
from .aio import ENTERING
from .backend import Backend
from .keys import redis_type
from .scripts import keys_of, with_source
from .wire import CONNECTION_ERRORS, Command

BACKOFF = EqualJitterBackoff(cap=0.25, base=0.02)


class Execute:
    """One command; sends back its answer or throws its error."""

    __slots__ = ("backend", "by", "command", "urgency")

    def __init__(self, backend: Backend, command: Command, by: float | None = None, urgency: int = ENTERING) -> None:
        self.backend: Backend = backend
        self.command: Command = command
        self.by: float | None = by
        self.urgency: int = urgency

    @property
    def commands(self) -> Sequence[Command]:
        return [self.command]

    def run(self) -> Any:
        return self.backend.execute(self.command, self.by)

    async def arun(self) -> Any:
        return await self.backend.aexecute(self.command, self.by, urgency=self.urgency)


class ExecuteMany:
    """Several commands in one write; sends back the list of answers, errors of single commands among them."""

    __slots__ = ("backend", "commands")

    def __init__(self, backend: Backend, commands: Sequence[Command]) -> None:
        self.backend: Backend = backend
        self.commands: Sequence[Command] = commands

    def run(self) -> list[Any]:
        return self.backend.execute_many(self.commands)

    async def arun(self) -> list[Any]:
        return await self.backend.aexecute_many(self.commands, urgency=ENTERING)


class Reply(NamedTuple):
    answer: Any
    sent: float  # local monotonic time at which the answered request was sent
    repeated: bool  # an earlier try may have run without our seeing its answer


def call(
    backend: Backend,
    command: Command,
    name: str | None = None,
    *,
    noun: str = "lock",
    until: float = math.inf,
    by: float | None = None,
    urgency: int = ENTERING,
) -> Steps[Reply]:
    """Run ``command``, again after connection trouble, for at most the setting RETRY_FOR. It must be safe to retry.

    ``until``: the monotonic time after which it is not tried again. ``by``: the one at which to give up waiting for an
    answer. ``name``, ``noun``: for errors. ``urgency``: see aio.py. Raises LockUnavailable.
    """
    return _persist(Execute(backend, command, by, urgency), name, noun, until)


def call_many(backend: Backend, commands: Sequence[Command], name: str | None = None) -> Steps[list[Any]]:
    """The same for several commands in one write; errors of single ones stand among the answers."""
    reply = yield from _persist(ExecuteMany(backend, commands), name)
    return reply.answer  # type: ignore[no-any-return]


def _persist(
    request: Execute | ExecuteMany, name: str | None, noun: str = "lock", until: float = math.inf
) -> Steps[Reply]:
    backend = request.backend
    delay, repeated, give_up = 0.0, False, 0.0
    pace: Pace | None = None
    while True:
        sent = monotonic()
        try:
            return Reply((yield request), sent, repeated)
        except NoScriptError:
            assert isinstance(request, Execute)
            request = Execute(backend, with_source(request.command), request.by, request.urgency)
            continue
        except CONNECTION_ERRORS as error:
            if not isinstance(error, TimeoutError):
                backend.drop_connections()  # the others are probably stale as well
            trouble: Exception = error
            repeated = True
        except ResponseError as error:
            # a demoted master (Redis 6 wraps what a script meets): connect again, to the new one
            if "READONLY" not in str(error) and not isinstance(error, ReadOnlyError):
                raise (yield from refusal(backend, request.commands, name, error, noun)) from error
            backend.drop_connections()
            trouble = error
        now = monotonic()
        if pace is None:
            give_up = min(sent + conf().RETRY_FOR, until)
        # the first try may just have met a connection that had gone stale in the pool
        stale = pace is None and not isinstance(trouble, TimeoutError)
        if now + delay > give_up and not stale:
            raise _unavailable("cannot be reached for", backend, name, trouble, noun) from trouble
        yield Pause(delay)  # for no time at first, in which an event loop drops its connections
        pace = pace or Pace(BACKOFF)
        delay = pace.next()


def _unavailable(what: str, backend: Backend, name: str | None, trouble: object, noun: str = "lock") -> LockUnavailable:
    if name and noun == "lock":
        noun, name = known_as(name)
    whom = f"the {noun} {name!r}" if name else "locks"
    return LockUnavailable(f"Redis {what} {whom} (cache alias {backend.alias!r}): {trouble}", name)


# in which line of a script: Redis 7 says it behind, Redis 6 before the error
_WHERE = re.compile(
    r" script: \w+, on @user_script:\d+\.$|^(ERR )?Error running script \(call to \w+\): (@user_script: ?\d+: )+"
)


def refusal(
    backend: Backend, commands: Sequence[Command], name: str | None, error: Exception, noun: str = "lock"
) -> Steps[LockUnavailable]:
    """The error for ``commands`` that Redis has refused with ``error``; it names what somebody else has written."""
    text = _WHERE.sub("", str(error)).rstrip(".")
    hint = "".join((yield from _foreign_keys(backend, commands, text)))
    return _unavailable("refuses to serve", backend, name, f"{text}.{hint}", noun)


def _foreign_keys(backend: Backend, commands: Sequence[Command], text: str) -> Steps[list[str]]:
    keys = sorted({key for command in commands for key in keys_of(command)})
    fence = f"{backend.prefix}fence"
    if fence in keys and ("not an integer" in text or "would overflow" in text):
        return [f" Somebody else has written the key {fence!r}, which does not hold a fence. Delete it."]
    if "WRONGTYPE" not in text:
        return []
    types = yield from call_many(backend, [("TYPE", key) for key in keys])
    return [
        f" Somebody else has written the key {key!r}, which is a {found.decode()} and should be a {ours}. Delete it."
        for key, found in zip(keys, types, strict=True)
        if isinstance(found, bytes) and found.decode() not in ("none", ours := redis_type(key, backend.prefix))
    ]
