"""Loads the Lua scripts, calls them, and gives their answers a shape. See docs/protocol.rst for the protocol."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from time import monotonic
from typing import Any, NamedTuple

from redis.backoff import EqualJitterBackoff
from redis.exceptions import ConnectionError, NoScriptError, ReadOnlyError, ResponseError, TimeoutError

from .conf import conf
from .connection import ENTERING, LEAVING, Backend, Command
from .exceptions import LockError, LockUnavailable
from .names import Keys, known_as, read_member, redis_type
from .polling import Pace
from .steps import Execute, ExecuteMany, Pause, Steps
from .texts import shown

# states that scripts answer
# acquire; ALREADY: granted by an earlier call or a handoff; REQUEUED: busy, and the waiter had been dropped
BUSY, GRANTED, MORE, GONE, ALREADY, REQUEUED = range(6)
LOST, HELD, ADOPTED = 0, 1, 2  # renew, release

CONNECTION_ERRORS = (ConnectionError, TimeoutError, OSError)

RETRYING = EqualJitterBackoff(cap=0.25, base=0.02)  # when connections fail
BATCH = 1000  # members in one command


_BY_SHA: dict[str, Script] = {}


class Script:
    """One Lua script; ``--#include piece`` lines bring in the shared pieces."""

    def __init__(self, name: str) -> None:
        self.source = _source(name)
        self.sha = sha1(self.source.encode()).hexdigest()
        _BY_SHA[self.sha] = self

    def by_sha(self, keys: tuple[str, ...], args: tuple[Any, ...]) -> Command:
        return ("EVALSHA", self.sha, len(keys), *keys, *args)

    def by_source(self, command: Command) -> Command:
        """The same call with the text of the script, which also loads it, for a server that does not know it."""
        return ("EVAL", self.source, *command[2:])


def _source(name: str) -> str:
    source = (files(__package__) / "scripts" / f"{name}.lua").read_text("utf-8")
    return re.sub(r"^ *--#include (\w+)$", lambda found: _source(found[1]), source, flags=re.M)


_ACQUIRE, _RELEASE, _RENEW, _FORCE, _INFO = map(Script, ("acquire", "release", "renew", "force", "info"))
_CHECKOUT, _MEMBERS, _LOOK = map(Script, ("checkout", "members", "look"))


class Reply(NamedTuple):
    answer: Any
    sent: float  # local monotonic time at which the answered request was sent
    repeated: bool  # an earlier try may have run without our seeing its answer


def execute(
    backend: Backend,
    command: Command,
    name: str | None = None,
    *,
    noun: str = "lock",
    until: float = 0.0,
    urgency: int = ENTERING,
) -> Steps[Reply]:
    """Run ``command``, again after connection trouble, at most to the monotonic time ``until``.

    The setting RETRY_FOR bounds it, and redis-py's backoff sets the pace.

    ``name``, ``noun``: for errors. ``urgency``: before which other coroutines that wait for a connection. Commands
    must bear repetition; ``Reply.repeated`` says that it may have happened. Raises LockUnavailable.
    """
    return _persist(Execute(backend, command, urgency=urgency), name, noun, until)


def execute_many(backend: Backend, commands: list[Command], name: str | None = None) -> Steps[list[Any]]:
    """The same for commands in one write; errors of single ones stand among the answers."""
    reply = yield from _persist(ExecuteMany(backend, commands), name)
    return reply.answer  # type: ignore[no-any-return]


def _persist(request: Execute | ExecuteMany, name: str | None, noun: str = "lock", until: float = 0.0) -> Steps[Reply]:
    backend = request.backend
    delay, repeated, give_up = 0.0, False, 0.0
    pace: Pace | None = None
    while True:
        sent = monotonic()
        try:
            return Reply((yield request), sent, repeated)
        except NoScriptError:
            assert isinstance(request, Execute)
            request = Execute(backend, in_full(request.command), urgency=request.urgency)
            continue
        except CONNECTION_ERRORS as error:
            if not isinstance(error, TimeoutError):
                backend.drop_connections()  # the others are probably stale as well
            trouble: Exception = error
            repeated = True
        except ResponseError as error:
            # a demoted master (Redis 6 wraps what a script meets): connect again, to the new one
            if "READONLY" not in str(error) and not isinstance(error, ReadOnlyError):
                commands = [request.command] if isinstance(request, Execute) else request.commands
                raise (yield from refusal(backend, commands, name, error, noun)) from error
            backend.drop_connections()
            trouble = error
        now = monotonic()
        if pace is None:
            give_up = min(sent + conf().RETRY_FOR, until or math.inf)
        # the first try may just have met a connection that had gone stale in the pool
        stale = pace is None and not isinstance(trouble, TimeoutError)
        if now + delay > give_up and not stale:
            raise _unavailable("cannot be reached for", backend, name, trouble, noun) from trouble
        if delay:
            yield Pause(delay)
        pace = pace or Pace(RETRYING)
        delay = pace.next()


def _unavailable(what: str, backend: Backend, name: str | None, trouble: object, noun: str = "lock") -> LockUnavailable:
    """Redis cannot do ``what`` for the lock (the pool, ``noun``) of this name, or for locks."""
    if name and noun == "lock":
        noun, name = known_as(name)
    whom = f"the {noun} {name!r}" if name else "locks"
    return LockUnavailable(f"Redis {what} {whom} (cache alias {backend.alias!r}): {trouble}", name)


# in which line of a script: Redis 7 says it behind, Redis 6 before the error
_WHERE = re.compile(
    r" script: \w+, on @user_script:\d+\.$|^(ERR )?Error running script \(call to \w+\): @user_script:\d+: "
)


def refusal(
    backend: Backend, commands: Sequence[Command], name: str | None, error: Exception, noun: str = "lock"
) -> Steps[LockUnavailable]:
    """What says that Redis answers ``commands`` with ``error``, and which of our keys somebody else has written."""
    text = _WHERE.sub("", str(error)).rstrip(".")
    hint = "".join((yield from _foreign_keys(backend, commands, text)))
    return _unavailable("refuses to serve", backend, name, f"{text}.{hint}", noun)


def _foreign_keys(backend: Backend, commands: Sequence[Command], text: str) -> Steps[list[str]]:
    keys = sorted({key for command in commands for key in _keys_of(command)})
    fence = f"{backend.prefix}fence"
    if fence in keys and ("not an integer" in text or "would overflow" in text):
        return [f" Somebody else has written the key {fence!r}, which holds no fence. Delete it."]
    if "WRONGTYPE" not in text:
        return []
    types = yield from execute_many(backend, [("TYPE", key) for key in keys])
    return [
        f" Somebody else has written the key {key!r}, which is a {found.decode()} and should be a {ours}. Delete it."
        for key, found in zip(keys, types, strict=True)
        if isinstance(found, bytes) and found.decode() not in ("none", ours := redis_type(key, backend.prefix))
    ]


def _keys_of(command: Command) -> Sequence[str]:
    return command[3 : 3 + command[2]] if command[0] in ("EVALSHA", "EVAL") else command[1:2]


def check_member(backend: Backend, pool: str, raw: bytes) -> str:
    """The member ``raw``, as names quote it, of what is asked for as ``pool``. LockError: it is none of ours."""
    found = read_member(pool, raw)
    if found is not None:
        return found
    raise LockError(
        f"Somebody else has written {shown(raw)} into the keys {f'{backend.prefix}members:{pool}'!r} or "
        f"{f'{backend.prefix}free:{pool}'!r}: that is no member of a pool. Remove it (ZREM), or "
        f"assign() the members anew.",
        known_as(pool)[1],
    )


class Taken(NamedTuple):
    """Answer of :func:`acquire`."""

    state: int
    us: int  # server time, microseconds
    number: int  # fence when granted, else ticket
    left: int  # milliseconds of lease, of whoever holds the lock; negative when nobody does
    sent: float  # local monotonic time
    repeated: bool  # an earlier try may still arrive
    member: str  # of a pool, when one was granted; as names quote it
    seized: bytes | None  # value of the lock that somebody else held


def acquire(
    backend: Backend,
    keys: Keys,
    name: str,
    token: str,
    *,
    ttl: int,
    mode: str,
    wait: str,
    ticket: int | None,
    owner: str,
    until: float = 0.0,
    urgency: int = ENTERING,
) -> Steps[Taken]:
    """Take the lock (or any member of a pool), or queue for it. Idempotent per token.

    ``wait``: "0" no, "1" yes, "p1000" as one who polls and counts as alive for 1000 ms, "s" take it from its holder.
    """
    script = _CHECKOUT if keys.any else _ACQUIRE
    command = script.by_sha(
        (*keys.all, f"{backend.prefix}gone:{token}"),
        (name, token, backend.channel, backend.known, ttl, mode, wait, ticket or "", owner),
    )
    repeated = False
    while True:
        answered = yield from execute(backend, command, name, until=until, urgency=urgency)
        (state, us, number, left, *more), sent, again = answered
        repeated = repeated or again
        backend.anchor = us, sent
        if number > backend.known:
            backend.known = number
        if state != MORE:
            granted, seized = "", None
            if not keys.any:
                seized = more[0] if more else None
            elif state in (GRANTED, ALREADY):
                granted = check_member(backend, name, more[0])
            return Taken(state, us, number, left, sent, repeated, granted, seized)


def settle(backend: Backend, keys: Keys, name: str, how: str, members: Sequence[str]) -> Steps[int]:
    """Put members (each once) into the pool or take them out (``how``: see members.lua), however many, in one write."""
    staged = f"{backend.prefix}staged:{secrets.token_urlsafe(12)}"
    commands: list[Command] = [
        ("ZADD", staged, *(word for member in members[start : start + BATCH] for word in ("0", member)))
        for start in range(0, len(members), BATCH)
    ]
    commands.append(("PEXPIRE", staged, 60_000))

    def script(how: str, count: int) -> Command:
        return _MEMBERS.by_sha((*keys.all, staged), (name, how, backend.channel, backend.known, count))

    # the script works on all of them or on none
    settling = script(how, len(members))
    answers = yield from execute_many(backend, [*commands, settling], name)
    for error in answers:
        if isinstance(error, ResponseError) and not isinstance(error, NoScriptError):
            raise (yield from refusal(backend, [*commands, settling], name, error)) from error
    if isinstance(answers[-1], NoScriptError):
        answers = [(yield from execute(backend, in_full(settling), name)).answer]
    changed, more = answers[-1]
    while more:
        (_, more), _, _ = yield from execute(backend, script("serve", 0), name)
    return changed  # type: ignore[no-any-return]


def look(backend: Backend, keys: Keys, name: str, command: str, *args: Any) -> Steps[Any]:
    """The answer to one command on the sorted set of a pool's members."""
    script = _LOOK.by_sha(keys.all, (name, command, backend.channel, backend.known, *args))
    while True:
        (answer, more), _, _ = yield from execute(backend, script, name)
        if not more:
            return answer


def release(
    backend: Backend, keys: Keys, name: str, token: str, *, unknown: bool = False, own: bool = False
) -> Steps[tuple[int, bool]]:
    """Give the lock back or leave its queue. Answers (whether it was held by the token, the call may have run twice).

    ``unknown``: an acquire with this token may still be on its way; it will find that the token is gone. ``own``: only
    what this process holds; ADOPTED where another one has adopted the token.
    """
    command = release_command(backend, keys, name, token, unknown=unknown, own=own)
    held, twice = 0, False
    while True:
        (was_held, more), _, repeated = yield from execute(backend, command, name, urgency=LEAVING)
        held, twice = held or was_held, twice or repeated
        if not more:
            return held, twice


def release_command(
    backend: Backend, keys: Keys, name: str, token: str, *, unknown: bool, own: bool = False
) -> Command:
    declared = (*keys.all, f"{backend.prefix}gone:{token}") if unknown else keys.all
    return _RELEASE.by_sha(declared, (name, token, backend.channel, backend.known, int(own)))


class Renewed(NamedTuple):
    """Answer of :func:`renew`."""

    state: int
    ends: float  # local monotonic time at which the lease must be presumed over
    taken: bool  # when lost: somebody else holds the lock


def renew_command(backend: Backend, keys: Keys, name: str, token: str, ttl: int, how: str, ms: int) -> Command:
    """``how``: keep (at least ms from now), confirm (at least ttl from the grant), add (ms more), set (ms from now)."""
    return _RENEW.by_sha(keys.all, (name, token, backend.channel, backend.known, ttl, how, ms))


def renew(backend: Backend, keys: Keys, name: str, token: str, ttl: int, how: str, ms: int) -> Steps[Renewed]:
    """Move the end of the lease that ``token`` holds."""
    command = renew_command(backend, keys, name, token, ttl, how, ms)
    answer, sent, _ = yield from execute(backend, command, name)
    return renewed(backend, answer, sent)


def renewed(backend: Backend, answer: list[int], sent: float) -> Renewed:
    state, us, left = answer
    backend.anchor = us, sent
    return Renewed(state, lease_end(sent, left), state == LOST and left > 0)


def in_full(command: Command) -> Command:
    """A call with the text of its script, after NOSCRIPT in a pipeline."""
    return _BY_SHA[command[1]].by_source(command)


def lease_end(start: float, left_ms: float) -> float:
    """The local monotonic time at which a lease must be presumed over: a margin for clocks that run at another rate."""
    return start + left_ms / 1000 * 0.999 - 0.002


def force(backend: Backend, keys: Keys, name: str, fence: int | None = None) -> Steps[bytes | None]:
    """Set the lock free whoever holds it, but nobody with a higher fence; answers the value it had."""
    value: bytes | None = None
    while True:
        command = _FORCE.by_sha(keys.all, (name, "" if fence is None else fence, backend.channel, backend.known))
        (held, more), _, _ = yield from execute(backend, command, name)
        value = value or held
        if not more:
            return value
        fence = 0  # it was set free: whoever has it by now has come in between


def info(backend: Backend, keys: Keys, name: str, waiters: int) -> Steps[list[Any]]:
    """What Redis knows about one lock, with at most ``waiters`` of those who queue."""
    command = _INFO.by_sha((keys.lock, keys.queue, keys.waiters, *keys.line), (waiters,))
    reply = yield from execute(backend, command, name)
    return reply.answer  # type: ignore[no-any-return]


PROBE = ("EVAL", "return redis.pcall('PUBLISH', ARGV[1], 'p')", 0)
