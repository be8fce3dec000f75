"""Calls to Redis that survive a lost connection: what is sent again, for how long, and what is raised in the end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.backoff import EqualJitterBackoff
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from ..base.names import known_as
from ..base.steps import Pause, Steps
from ..base.times import NEVER, Deadline, monotonic
from ..conf import conf
from ..exceptions import LockUnavailable
from .lock_store import Partition
from .loop_connections import ENTERING
from .node import Node
from .records import redis_type
from .scripts import keys_of, wants_source, with_source
from .wire import CONNECTION_ERRORS, NO_CLUSTER, PASSING, Command, hints_at_failover, wording

ACKNOWLEDGED_WITHIN = 0.5  # seconds: longer than a working replica needs, and no long wait for a user
_DEMOTED = re.compile("UNBLOCKED|replica instances")  # what WAIT says where a master becomes a replica
BACKOFF = EqualJitterBackoff(cap=0.25, base=0.02)


@dataclass(slots=True)
class Roundtrip:
    """Sends commands in one write; its result is the list of answers (an error may be one of them) and the node."""

    partition: Partition
    commands: Sequence[Command]
    by: float | None = None
    urgency: int = ENTERING

    def run(self) -> tuple[list[Any], Node]:
        return self.partition.exchange(self.commands, self.by)

    async def arun(self) -> tuple[list[Any], Node]:
        return await self.partition.aexchange(self.commands, self.by, urgency=self.urgency)


def patience_with_replicas(timeout: float) -> float:
    """Seconds to wait for replicas on a connection that waits ``timeout`` seconds for an answer."""
    return min(ACKNOWLEDGED_WITHIN, 0.8 * timeout)


def ask_replicas(count: int, timeout: float) -> Command:
    """The command that waits until so many replicas have what this connection has written, and says how many do."""
    return ("WAIT", str(count), str(round(patience_with_replicas(timeout) * 1000)))


class Reply(NamedTuple):
    answer: Any
    sent: float  # local monotonic time at which the answered request was sent
    repeated: bool  # an earlier try, whose answer was lost, may have run
    node: Node  # that has answered
    acknowledged: Any = 0  # how many replicas have acknowledged it, if that was asked for


# what has come of a command that was sent once: when (monotonic), the answers and whose they are, or the error
Tried = tuple[float, Any, Node | None]


def try_once(partition: Partition, command: Command, by: float | None) -> Tried:
    """Send ``command`` in this thread, where a plain call has to be enough; call() goes on if it was not."""
    sent, store = monotonic(), partition.store
    try:
        if store.clustered:
            answers, node = partition.exchange((command,), by)
        else:  # written out: each lock comes here
            node = store._node_by_tag[0]
            answers, _ = store.threads.exchange(node, (command,), by)
    except (*CONNECTION_ERRORS, ResponseError) as error:
        return sent, error, None
    return sent, answers, node


async def atry_once(partition: Partition, command: Command, by: float | None, urgency: int) -> Tried:
    """See try_once()."""
    sent, store = monotonic(), partition.store
    try:
        if store.clustered:
            answers, node = await partition.aexchange((command,), by, urgency=urgency)
        else:  # written out, as in try_once()
            node = store._node_by_tag[0]
            answers, _ = await store.aexchange(node, (command,), by, urgency=urgency)
    except (*CONNECTION_ERRORS, ResponseError) as error:
        return sent, error, None
    return sent, answers, node


def call(
    partition: Partition,
    command: Command,
    name: str | None = None,
    *,
    noun: str = "lock",
    deadline: Deadline = NEVER,
    urgency: int = ENTERING,
    replicas: int = 0,
    tried: Tried | None = None,
) -> Steps[Reply]:
    """Run ``command``, which must be safe to retry; after connection trouble again, for at most the setting RETRY_FOR.

    A single try may take as long as the alias's ``socket_timeout``.

    ``deadline``: when not to try again, and a little later, when to stop waiting for an answer. ``name``, ``noun``: for
    errors. ``urgency``: see LEAVING. ``replicas``: wait for so many to acknowledge what the command has written; see
    ask_replicas(). ``tried``: what has come of the first try, if there was one. Raises LockUnavailable.
    """
    if tried is not None:
        sent, answers, node = tried
        if node is not None and not isinstance(answers[0], ResponseError):
            return Reply(answers[0], sent, False, node)
    commands = [command, ask_replicas(replicas, partition.store.timeout)] if replicas else [command]
    reply = yield from _send_until_answered(
        Roundtrip(partition, commands, deadline.answer_by, urgency), name, noun, deadline, tried=tried
    )
    if isinstance(reply.acknowledged, ResponseError):
        trouble = f"{reply.acknowledged}. Without WAIT, no replicas can be asked for: set REPLICAS to 0."
        raise _unavailable("refuses to serve", partition, name, trouble) from reply.acknowledged
    return reply


def call_many(partition: Partition, commands: Sequence[Command]) -> Steps[list[Any]]:
    """The same for several commands in one write; an error may be among the answers."""
    reply = yield from _send_until_answered(Roundtrip(partition, commands), None, several=True)
    return reply.answer  # type: ignore[no-any-return]


def _send_until_answered(
    request: Roundtrip,
    name: str | None,
    noun: str = "lock",
    deadline: Deadline = NEVER,
    *,
    several: bool = False,
    tried: Tried | None = None,
) -> Steps[Reply]:
    """``several``: return all answers, errors among them; else return the first, or raise it if it is an error."""
    partition = request.partition
    failures, delay, repeated, give_up = 0, 0.0, False, 0.0
    node: Any = None  # that has answered
    while True:
        sent = monotonic()
        try:
            if tried is None:
                answers, node = yield request
            else:
                (sent, answers, node), tried = tried, None
                if isinstance(answers, Exception):
                    raise answers
            if several:
                for answer in answers if partition.store.clustered else ():
                    if isinstance(answer, PASSING):
                        raise answer  # all keys are on the same node, so all commands have to be repeated
                return Reply(answers, sent, repeated, node)
            answer = answers[0]
            if not isinstance(answer, ResponseError):
                if len(answers) > 1 and _DEMOTED.search(str(answers[1])):
                    raise ConnectionError(wording(answers[1]))
                return Reply(answer, sent, repeated, node, *answers[1:])
            if not wants_source(request.commands[0], answer):
                raise answer
            request.commands = [with_source(request.commands[0]), *request.commands[1:]]
            if request.by is not None and len(request.commands) > 1:
                request.by += ACKNOWLEDGED_WITHIN  # WAIT has used it up, though nothing was written
            continue
        except CONNECTION_ERRORS as error:
            # its other connections are probably stale, too, or lead to a server that hangs and is being replaced
            partition.store.blame(partition.node_if_known, error)
            trouble: Exception = error
            repeated = True
        except ResponseError as error:
            if node is not None:  # else we were refused when connecting, for lack of a right
                partition.store.redirect(partition, error, node)
            replaced = hints_at_failover(error)
            if not replaced and not (partition.store.clustered and isinstance(error, PASSING)):
                refused = request.commands if node else ()  # without a node, the error came as we connected
                raise (yield from refusal(partition, refused, name, error, noun)) from error
            if replaced:
                partition.store.demoted(node, error)
            trouble = error
        now = monotonic()
        if not failures:
            # a slot on its way to another node must not fail those who try once
            give_up = sent + conf().RETRY_FOR
            if deadline.at > sent or not isinstance(trouble, PASSING):
                give_up = min(give_up, deadline.at)
            else:
                request.by = max(request.by or 0.0, give_up)
        # the first try may have met a connection that went stale in the pool
        stale = not failures and not isinstance(trouble, TimeoutError)
        if now + delay > give_up and not stale:
            what = "refuses to serve" if isinstance(trouble, ResponseError) else "cannot be reached for"
            text = _without_where(trouble)
            if NO_CLUSTER in text:
                text += ". REDISLOCK['CLUSTER'] says that this is a node of one, whose user may call CLUSTER SLOTS."
            raise _unavailable(what, partition, name, text, noun) from trouble
        yield Pause(delay)  # zero at first: one turn of the loop, in which it drops its connections
        failures += 1
        delay = BACKOFF.compute(failures)


def _unavailable(
    what: str, partition: Partition, name: str | None, trouble: object, noun: str = "lock"
) -> LockUnavailable:
    if name and noun == "lock":
        noun, name = known_as(name)
    whom = f"the {noun} {name!r}" if name else "locks"
    return LockUnavailable(f"Redis {what} {whom} (cache alias {partition.alias!r}): {wording(trouble)}", name)


# a version that cannot share locks with this one writes this before the number in the key `fence`: docs/releases.rst
PROTOCOL = 1
_NEWER = re.compile(rb"protocol (\d{1,9}) ")

# where in a script an error came from: Redis 7 appends it (Valkey 9 without the script's hash). Redis 6 prepends it,
# which hides from redis-py the word that it strips elsewhere
_WHERE = re.compile(
    r" script: (\w+, )?on @user_script:\d+\.$"
    r"|^(ERR )?Error running script \(call to \w+\): (@user_script: ?\d+: )+(-READONLY )?"
)


def _without_where(error: object) -> str:
    return _WHERE.sub("", wording(error))


def refusal(
    partition: Partition, commands: Sequence[Command], name: str | None, error: Exception, noun: str = "lock"
) -> Steps[LockUnavailable]:
    """The error for ``commands`` that Redis refused with ``error``; it names foreign keys that are in the way."""
    text = _without_where(error).rstrip(".")
    hint = yield from _foreign_keys(partition, commands, text)
    if "unauthenticated" in text:  # instead of NOAUTH, for a command that is too long for such a client
        hint = " The server wants a password, and the cache alias has none."
    if isinstance(error, PASSING):
        hint = " This is a node of a Redis Cluster: set REDISLOCK['CLUSTER'] = True."
    return _unavailable("refuses to serve", partition, name, f"{text}.{hint}", noun)


def _foreign_keys(partition: Partition, commands: Sequence[Command], text: str) -> Steps[str]:
    keys = sorted({key for command in commands for key in keys_of(command)})
    fence = f"{partition.prefix}fence"
    if fence in keys and ("not an integer" in text or "would overflow" in text):
        (value,) = yield from call_many(partition, [("GET", fence)])
        if isinstance(value, bytes) and (newer := _NEWER.match(value)):
            return (
                f" Newer processes have marked {fence!r} for protocol {int(newer[1])}, and this one speaks protocol"
                f" {PROTOCOL}: update it, or stop them."
            )
        return f" Somebody else has written the key {fence!r}, which does not hold a fence. Delete it."
    if "WRONGTYPE" not in text:
        return ""
    types = yield from call_many(partition, [("TYPE", key) for key in keys])
    return "".join(
        f" Somebody else has written the key {key!r}, which is a {found.decode()} and should be a {ours}. Delete it."
        for key, found in zip(keys, types, strict=True)
        if isinstance(found, bytes) and found.decode() not in ("none", ours := redis_type(key, partition.prefix))
    )
