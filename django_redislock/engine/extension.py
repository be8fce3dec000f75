"""Moving the end of a lease, and leaving a lock to whoever has its token."""

from __future__ import annotations

from ..steps import Steps
from ..store import calls
from ..store.backend import Backend
from ..store.calls import Wanted
from ..store.keys import make_keys
from .lease import Lease, Section
from .loss import reason_of
from .runtime import runtime


def renew(lease: Lease, how: str, left: float) -> Steps[None]:
    """Move the end of this very acquisition, from any thread, task or context; ``how``, ``left``: see renew_command().

    Raises LockLost, LockUnavailable.
    """
    if lease.lost_reason:
        raise lease.lost_error()
    answer = yield from calls.renew(lease.wanted, how, left)
    if answer.state != calls.HELD:
        runtime().watchdog.lose(lease, reason_of(answer))
        raise lease.lost_error()
    runtime().watchdog.extended(lease, answer.ends)
    if lease.lost_reason:  # the answer came after the end: the loss was reported
        raise lease.lost_error()


def renew_by_token(backend: Backend, name: str, token: str, how: str, left: float) -> Steps[bool]:
    """Move the end of the lease if ``token`` is that of its holder, whoever has acquired it. Returns whether it was."""
    _, holder = yield from calls.read_holder(backend, name)
    if holder is None or holder.token != token:
        return False
    answer = yield from calls.renew(Wanted(backend, make_keys(backend.prefix, name), name, holder.id), how, left)
    return answer.state == calls.HELD


def detach(section: Section, left: float) -> Steps[str]:
    """End renewal and ownership here; the lock stays for ``left`` seconds. Return the token that adopts it."""
    lease = section.held
    lease.detaching = True
    yield from renew(lease, "detach", left)
    runtime().watchdog.end(lease)
    section.leave()
    return lease.token


def start_listening(lease: Lease) -> None:
    """Somebody is about to learn the token, and is not to take this process for dead."""
    if lease.wanted.listens:
        runtime().listener(lease.wanted.backend).start()
