"""Calling the scripts that work on locks. Durations are seconds here, and milliseconds in the scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from ..base.display import Secret, SecretBytes
from ..base.steps import Steps
from ..base.times import NEVER, Deadline, monotonic
from .calls_once import call_once
from .lock_store import Partition
from .loop_connections import ENTERING, LEAVING
from .node import Node
from .old_key import OldKey, old_key_of_held
from .records import Holder, Keys, check_member, make_keys, parse_holder
from .retry import Tried, call
from .scripts import Script, with_source
from .wire import Command

# States of acquire. ALREADY: granted by an earlier call or a handoff, or adopted. REQUEUED: busy, and the waiter had
# been dropped from the queue. FULL: busy, and the queue is full.
BUSY, GRANTED, MORE, GIVEN_UP, ALREADY, REQUEUED, FULL = range(7)
# states of renew. ADOPTED: another acquisition with our token holds it. OLD_LOST (of release as well): we hold it, but
# not the key of old code, see old_key.py
LOST, HELD, ADOPTED, OLD_LOST = range(4)
# states of release
NOT_HELD, RELEASED, DETACHED = range(3)
# on what grounds it is released; see release.lua
HOLDER, BEARER, WITHDRAWAL = "", "bearer", "withdraw"

# what to force-release; see force.lua
WHATEVER, SUSPENSION = "", "s"

# how to wait
NOT_AT_ALL, QUEUED, ADOPTING = "0", "1", "a"

ENDLESS = -1.0  # seconds of lease: a foreign value, which never expires
FREE = -2.0  # there is no lock


def polled(patience: float) -> str:
    """Return how to wait: by polling; the waiter counts as alive for ``patience`` seconds after each look."""
    return f"p{_ms(patience)}"


def _variants(name: str, ways: Sequence[str] = ("key", "member", "permits")) -> dict[str, Script]:
    return {stored: Script(name, stored) for stored in ways}


_ACQUIRE, _RELEASE, _RENEW, _FORCE, _INFO = map(_variants, ("acquire", "release", "renew", "force", "info"))
_SUSPEND = _variants("suspend", ("key", "member"))
_CHECKOUT, _LEAVE = (Script(name, "member") for name in ("checkout", "leave"))


def lease_end(start: float, left: float) -> float:
    """The local monotonic time at which to presume a lease over, with a margin for clocks that run at another rate."""
    return start + left * 0.999 - 0.002


def lease_left(end: float) -> float:
    """The seconds from now that lease_end() would turn into this end."""
    return (end + 0.002 - monotonic()) / 0.999


class LockRequest(NamedTuple):
    """What one attempt asks for each time that it asks."""

    partition: Partition
    keys: Keys
    name: str
    id: str
    ttl: float = 0.0  # seconds
    token: str | None = None  # None: the id
    most: int | None = None  # how many others may be waiting already; None: any number
    replicas: int = 0  # how many have to acknowledge the grant
    owner: str = ""
    listens: bool = True  # whether messages reach this process
    limit: int | None = None  # of a semaphore
    old: OldKey | None = None  # to take as well

    @property
    def channel(self) -> str:
        return self.partition.channel if self.listens else "-"

    @property
    def gone(self) -> str:
        """The key that says that this attempt is over, to an acquire of it that arrives later (R8)."""
        return Secret(f"{self.partition.prefix}gone:{self.id}")


class AcquireReply(NamedTuple):
    """The answer to an attempt."""

    state: int
    us: int  # server time, microseconds
    number: int  # fence when granted, else ticket: as a rule, the time at which it was drawn, as ``us``
    left: float  # seconds of lease, of whoever holds the lock; or ENDLESS, FREE
    sent: float  # local monotonic time
    repeated: bool  # an earlier try may still arrive
    member: str  # the member of a pool that was granted, quoted
    holder: bytes | None  # the lock's value, if somebody else holds it
    unheard: bool  # a handoff to this process expired though the process lives: its wake was lost
    acknowledged: int  # how many replicas have acknowledged it; 0 if that was not asked for
    limit_before: int | None = None  # of a semaphore, if this attempt has changed it


def acquire_command(request: LockRequest, wait: str, ticket: int | None = None) -> Command:
    """Return the command; ``wait``: NOT_AT_ALL, QUEUED, polled() or ADOPTING."""
    # written out, as in release_command(): each lock comes here, and Script.command() would be one more call
    partition, keys = request.partition, request.keys
    script = _CHECKOUT
    more: tuple[str, ...] = ()
    if ticket or request.token or request.most is not None or request.limit or keys.any:
        more = str(ticket or ""), request.token or "-"
    if not keys.any:
        script = _ACQUIRE[keys.stored]
        if more:
            most = "" if request.most is None else str(request.most)
            more = *more, partition.channel, most, str(request.limit or "")
    return (
        "EVALSHA",
        script.sha,
        str(len(keys.all) + 1),
        *keys.all,
        Secret(f"{partition.prefix}gone:{request.id}"),
        request.name,
        request.id,
        partition.channel if request.listens else "-",
        str(partition.highest_fence),
        str(round(request.ttl * 1000)),
        wait,
        request.owner,
        *more,
    )


def acquire(
    request: LockRequest,
    wait: str,
    ticket: int | None,
    deadline: Deadline = NEVER,
    *,
    urgency: int = ENTERING,
    tried: Tried | None = None,
) -> Steps[AcquireReply]:
    """Acquire the lock (or any member of a pool), or queue for it. Idempotent per attempt.

    ``wait``: see acquire_command(). ``deadline``, ``tried``: see call().
    """
    partition, keys, name = request.partition, request.keys, request.name
    command = acquire_command(request, wait, ticket)
    repeated = False
    while True:
        answered = yield from call(
            partition, command, name, deadline=deadline, urgency=urgency, replicas=request.replicas, tried=tried
        )
        (state, us, number, left, *more), sent, again, node, acknowledged = answered
        repeated, tried = repeated or again, None
        node.anchor = us, sent
        if partition.node_if_known is not node:
            # C3: a node that was paused, for instance, may have granted what another node has by now: ask that one
            repeated = True
            continue
        partition.note_fence(number)
        if state != MORE:
            extra, unheard, limit = (*more, None, None, None)[:3]
            member = check_member(partition, name, extra) if keys.any and state in (GRANTED, ALREADY) else ""
            holder = None if keys.any or extra is None else SecretBytes(extra)
            return AcquireReply(
                state, us, number, _seconds(left), sent, repeated, member, holder, unheard == 1, acknowledged, limit
            )


def granted_at_once(request: LockRequest, tried: Tried) -> tuple[int, float] | None:
    """Return the fence of the lock that a first try has got, and its end (monotonic); None: it takes more than that."""
    sent, answers, node = tried
    partition = request.partition
    if node is None or (partition.store.clustered and partition.node_if_known is not node):  # C3; see acquire()
        return None
    answer = answers[0]
    if type(answer) is not list or answer[0] != GRANTED or len(answer) > 6:  # a limit has changed
        return None
    _, us, fence, left, *_ = answer
    node.anchor = us, sent
    ends = lease_end(sent, min(left / 1000, request.ttl))
    if monotonic() >= ends:
        return None
    partition.note_fence(fence)
    return fence, ends


def state_at_once(tried: Tried) -> int | None:
    """Return what state a first try has met; None: that is not known."""
    _, answers, node = tried
    return answers[0][0] if node is not None and type(answers[0]) is list else None


# the answers of a first try that has released a lock, where nothing is left to do
RELEASED_AT_ONCE = [[RELEASED, 0]]


class Released(NamedTuple):
    """The outcome of a release, or of a withdrawal."""

    state: int  # NOT_HELD, RELEASED or DETACHED; OLD_LOST: released, and the old key was not there any more
    repeated: bool  # it was sent more than once
    holder: bytes | None = None  # the lock's value, if somebody else holds it
    left: float = 0.0  # seconds of that lease


def release(
    request: LockRequest,
    deadline: Deadline = NEVER,
    *,
    may_arrive: bool,
    how: str = HOLDER,
    tried: Tried | None = None,
) -> Steps[Released]:
    """Release the lock, or leave its queue.

    ``may_arrive``: an acquire of this attempt may still be on its way; it will find that the attempt is over. ``how``:
    HOLDER, BEARER (whoever acquired it: the token is enough) or WITHDRAWAL. ``deadline``, ``tried``: see call().
    """
    state, again, kept = NOT_HELD, False, True
    if request.old is not None:  # first, so that whoever gets ours next finds it free
        kept, _ = yield from request.old.call("free", deadline=deadline, urgency=LEAVING)
    while True:
        command = release_command(request, may_arrive=may_arrive, how=how)
        calling = call(request.partition, command, request.name, deadline=deadline, urgency=LEAVING, tried=tried)
        answer, _, repeated, *_ = yield from calling
        state, again, tried = state or answer[0], again or repeated, None
        rest = left_to_release(request, answer)
        if rest is None:
            if state == RELEASED and not kept:
                state = OLD_LOST
            if len(answer) <= 3:
                return Released(state, again)
            value, left = answer[3:]
            return Released(state, again, SecretBytes(value), left / 1000)
        request, may_arrive = rest, False


def left_to_release(request: LockRequest, answer: Sequence[Any]) -> LockRequest | None:
    """The next release to send after this answer, if any: for more dead waiters, or those of one member."""
    _, more, *member = answer[:3]
    if member and member[0]:
        name = f"{request.name}{check_member(request.partition, request.name, member[0])}"
        return request._replace(name=name, keys=make_keys(request.partition.prefix, name))
    return request if more else None


def release_command(request: LockRequest, *, may_arrive: bool, how: str = HOLDER) -> Command:
    partition, keys = request.partition, request.keys
    script = _LEAVE if keys.any else _RELEASE[keys.stored]
    more: tuple[str, ...] = ()
    if may_arrive:
        more = keys.never, request.gone
    elif partition.store.clustered:
        more = (keys.never,)
    return (
        "EVALSHA",
        script.sha,
        str(len(keys.all) + len(more)),
        *keys.all,
        *more,
        request.name,
        request.id,
        partition.channel if request.listens else "-",
        str(partition.highest_fence),
        *(() if keys.any or how == HOLDER else (how,)),
    )


class Renewed(NamedTuple):
    """The answer to a renewal."""

    state: int
    ends: float  # local monotonic time at which to presume the lease over
    held_by_other: bool  # if it was lost: somebody else holds the lock
    sent: float  # local monotonic time at which it was asked for
    acknowledged: int = 0  # how many replicas have acknowledged it, if that was asked for


def renew_command(
    request: LockRequest, how: str, left: float, fence: int | None = None, late: tuple[str, str] | None = None
) -> Command:
    """``how``: keep (at least ``left`` seconds from now), confirm (at least the TTL from the grant on), set (``left``
    from now), detach (as set, and nobody here holds it any more), note (as confirm, and the next fence is above the
    highest known here). ``fence``: of the acquisition; None: whatever this attempt holds. ``late``: see renew.lua, the
    key and the number.
    """
    partition, keys = request.partition, request.keys
    args = (request.name, request.id, request.channel, str(partition.highest_fence), _ms(request.ttl), how, _ms(left))
    key, number = late or ("", "")
    declared = (*keys.declared, key) if key else keys.declared
    return _RENEW[keys.stored].command(declared, (*args, request.token or request.id, str(fence or ""), number))


def renew(
    request: LockRequest,
    how: str,
    left: float,
    fence: int | None = None,
    deadline: Deadline = NEVER,
    *,
    replicas: int = 0,
    late: tuple[str, str] | None = None,
) -> Steps[Renewed]:
    """Move the end of this attempt's lease; see renew_command(), and call() for the other arguments."""
    command = renew_command(request, how, left, fence, late)
    calling = call(request.partition, command, request.name, deadline=deadline, replicas=replicas)
    answer, sent, _, node, acknowledged = yield from calling
    found, old = renewed(node, answer, sent), request.old
    if old is not None and old.held and found.state == HELD:
        change = "set" if how in ("set", "detach") else "keep"
        kept, _ = yield from old.call(change, answer[2] / 1000, deadline=deadline)
        found = found if kept else found._replace(state=OLD_LOST)
    return found._replace(acknowledged=acknowledged)


def renewed(node: Node, answer: Sequence[int], sent: float) -> Renewed:
    state, us, left, *_ = answer
    node.anchor = us, sent
    by_other = state == LOST and left > 0
    return Renewed(state, lease_end(sent, left / 1000), by_other, sent)


def force(
    partition: Partition, name: str, highest: int | None = None, what: str = WHATEVER, id: str = ""
) -> Steps[bool]:
    """Release the lock, whoever holds it, unless the fence is above ``highest``; return whether there was one.

    ``what``: WHATEVER there is, a planned suspension included, or a SUSPENSION alone. ``id``: of a semaphore, whose
    permit.
    """
    keys = make_keys(partition.prefix, name)
    value: bytes | None = None
    more = b"1"
    while more == b"1":
        most = "" if highest is None else str(highest)
        args = (name, id, partition.channel, str(partition.highest_fence), most, what)
        answer = yield from call_once(partition, _FORCE[keys.stored], keys.declared, args, name=name)
        more, ended, held = answer.partition(b" ")
        value = held if value is None and ended else value
        highest = 0  # it was released: whoever holds it by now came later
    holder = parse_holder(value)
    old = None if holder is None else old_key_of_held(partition, name, holder.id, holder.token)
    if old is not None:
        yield from old.call("free")
    return value is not None


def suspend(partition: Partition, name: str, seconds: float, owner: str) -> Steps[bool]:
    """Grant the lock to nobody for ``seconds``; return whether that has begun, or somebody still holds the lock."""
    keys = make_keys(partition.prefix, name)
    args = (name, partition.channel, str(partition.highest_fence), _ms(seconds), owner)
    return (yield from call_once(partition, _SUSPEND[keys.stored], keys.declared, args, name=name)) == b"1"


def info(
    partition: Partition,
    keys: Keys,
    name: str,
    waiters: int,
    deadline: Deadline = NEVER,
    *,
    id: str = "",
) -> Steps[list[Any]]:
    """Return what Redis knows of one lock, with at most ``waiters`` of its waiters; see info.lua, and call()."""
    command = _INFO[keys.stored].command(keys.declared, (name, id, partition.channel, str(waiters)))
    reply = yield from call(partition, command, name, deadline=deadline)
    return reply.answer  # type: ignore[no-any-return]


def read_holder(partition: Partition, name: str) -> Steps[tuple[bool, Holder | None]]:
    """Return whether anybody holds the lock, and who (None for a foreign value); one round trip."""
    value, *_ = yield from info(partition, make_keys(partition.prefix, name), name, 0)
    return value is not None, parse_holder(value)


class Permits(NamedTuple):
    """The permits of a semaphore."""

    limit: int
    held: int
    mine: bool  # by the id that was asked for


def read_permits(partition: Partition, name: str, id: str = "") -> Steps[Permits]:
    """Return the permits of a semaphore, and whether ``id`` holds one of them; one round trip."""
    answer = yield from info(partition, make_keys(partition.prefix, name), name, 0, id=id)
    limit, held, mine = answer[5]
    return Permits(limit, held, mine == 1)


class FoundHeld(NamedTuple):
    """The acquisition that holds a lock, whoever made it.

    Calls made with ``request`` name this very one, so they cannot affect a later one with the same token (R16).
    """

    request: LockRequest
    left: float  # seconds of lease


def find_held(partition: Partition, name: str, bears: Callable[[str], bool]) -> Steps[FoundHeld | None]:
    """Who holds the lock, if ``bears`` accepts the token; one round trip."""
    keys = make_keys(partition.prefix, name)
    value, left, *_ = yield from info(partition, keys, name, 0)
    holder = parse_holder(value)
    if holder is None or not bears(holder.token):
        return None
    old = old_key_of_held(partition, name, holder.id, holder.token)
    return FoundHeld(LockRequest(partition, keys, name, holder.id, old=old), max(0.0, left / 1000))


def _ms(seconds: float) -> str:
    return str(round(seconds * 1000))


def _seconds(ms: int) -> float:
    return float(ms) if ms < 0 else ms / 1000


_PROBE = Script("probe")


def probe_command(partition: Partition) -> Command:
    """Publishes to this process's channel from a script; the answer is the number of receivers, and the time."""
    return with_source(_PROBE.command((f"{partition.prefix}fence",), (partition.channel,)))


def is_counted(partition: Partition) -> Steps[bool]:
    """Return whether the node that runs the scripts counts this process as a subscriber; True if it cannot tell."""
    reply = yield from call(partition, probe_command(partition))
    return bool(reply.answer[0])  # an error is no number


def probed(node: Node, answer: Any, sent: float) -> int | ResponseError:
    """The number of receivers that the probe has counted, or the error that it met."""
    if isinstance(answer, ResponseError):
        return answer
    heard, us, id = answer
    node.anchor = us, sent
    node.id = id.decode()
    return heard  # type: ignore[no-any-return]
