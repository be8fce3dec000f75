"""Several locks at once: all or none, in the order of their names, in which nobody waits in a circle.

``Several`` has those methods of an Acquisition that matter to whoever runs something under either.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from copy import copy
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from redis.exceptions import ResponseError

from ..base.display import shown
from ..base.names import refuse_semaphore
from ..base.steps import DRIVING_LOOP, Step, Steps, arun, run
from ..base.times import Deadline, monotonic
from ..exceptions import LockLost, LockNotAcquired, LockNotOwned, LockUnavailable
from ..options import OnLost, Options, Terms
from ..store.calls import HOLDER, RELEASED_AT_ONCE
from ..store.lock_store import Partition
from ..store.loop_connections import ENTERING, LEAVING
from ..store.retry import Roundtrip, Tried
from ..store.wire import CONNECTION_ERRORS, Command
from .acquisition import Acquisition, Frame
from .announcements import tell_acquired, tell_released
from .lease import Lease
from .release import Ending, Releasable, log_unreleased


def _once(function: OnLost) -> OnLost:
    """An ``on_lost`` that hears of the first loss among several."""
    first = threading.Lock()
    return lambda error: first.acquire(blocking=False) and function(error)


class Several(Ending):
    """Acquisitions of different locks, in the order of their names, made before anything is sent."""

    __slots__ = ("acquisitions",)

    def __init__(self, acquisitions: Iterable[Releasable]) -> None:
        self.acquisitions: tuple[Any, ...] = tuple(acquisitions)

    @classmethod
    def of(
        cls,
        templates: Mapping[str, str],
        options: Options,
        *,
        through: Mapping[str, Any] = MappingProxyType({}),
        purpose: str = "",
    ) -> Several:
        """``templates``, and the objects ``through`` which users hold the locks, by name.

        A template is what its name was made of, where the options do not say so for all.
        """
        for name in templates:
            refuse_semaphore(name, in_set=True)
        if callable(options.on_lost):
            options = copy(options)
            options.on_lost, options.terms = _once(options.on_lost), None
        made = cls(
            Acquisition(name, options, through=through.get(name), purpose=purpose, template=template)
            for name, template in sorted(templates.items())  # strings: by their UTF-8 bytes
        )
        together = frozenset(made.acquisitions)
        for one in made.acquisitions:
            one.stand_beside(together)
        return made

    @property
    def leases(self) -> list[Lease]:
        """Of those that are obtained."""
        return [one.lease for one in self.acquisitions if one.lease is not None]

    @property
    def half_obtained(self) -> bool:
        """Whether one of them is."""
        return any(one.half_obtained for one in self.acquisitions)

    def keep(self, seconds: float) -> None:
        """See Releasable.keep()."""
        for one in self.acquisitions:
            one.keep(seconds)

    @property
    def terms(self) -> Terms:
        """Of all of them."""
        terms: Terms = self.acquisitions[0].terms
        return terms

    def acquire(self, deadline: Deadline | None = None) -> LockNotAcquired | None:
        """See obtain()."""
        return run(self.obtain(deadline))

    async def aacquire(self, deadline: Deadline | None = None) -> LockNotAcquired | None:
        """See obtain()."""
        return await arun(self.obtain(deadline))

    def obtain(self, deadline: Deadline | None = None) -> Steps[LockNotAcquired | None]:
        """Get all locks, one after the other; return the error where one was not acquired in time: none is held then.

        ``deadline``: for all of them. Raises as obtain() of one does, and LockLost where one was lost while this waited
        for the next: then it is for the caller to abandon it.
        """
        begun, deadline = monotonic(), deadline or self.terms.deadline()
        got, tried = yield from self._try_together(deadline, begun)
        for one in self.acquisitions[got:]:
            refusal: LockNotAcquired | None
            if tried is None:
                refusal = yield from one.obtain(deadline)
            else:
                refusal, tried = (yield from one.go_on(deadline, begun, tried)), None
            if refusal is not None:
                if refusal.__cause__ is None:
                    yield from self.exit(refusal)
                else:  # Redis is away: what is held is not to be waited for as well
                    self.abandon()
                names = shown(tuple(one.name for one in self.acquisitions))
                return refusal.in_words(f"{refusal} Of the set {names}, none was acquired.", monotonic() - begun)
        for lease in self.leases:
            if lease.lost:
                raise lease.lost_error()
        return None

    def _try_together(self, deadline: Deadline, begun: float) -> Steps[tuple[int, Tried | None]]:
        """Ask for the first locks in one round trip, in case they are free.

        Returns how many it has got, and what has come of asking for the next one (None: nothing yet). What was granted
        behind that one is given back: whoever waits holds nothing that comes later.
        """
        partition, loop = self.acquisitions[0].partition, (yield DRIVING_LOOP)
        near = [*takewhile(lambda one: one.partition is partition, self.acquisitions)]
        commands: list[Command] = []
        for one in near if len(near) > 1 else ():
            command = one.prepare_first_try(deadline, loop, queues=not commands)
            if command is None:
                break
            commands.append(command)
        if not commands:
            return 0, None
        tried = yield from _send(partition, commands, deadline.answer_by)
        got = 0
        while got < len(tried) and near[got].take_grant(tried[got]):
            got += 1
        behind = [
            (one, command)
            for one, found in zip(near[got + 1 :], tried[got + 1 :], strict=False)
            if (command := one.command_to_give_back(found)) is not None
        ]
        if behind:
            answers = yield from _send(partition, [command for _, command in behind], deadline.answer_by)
            for (one, _), answer in zip(behind, answers, strict=True):
                one.forget_try(given_back=answer[1] == RELEASED_AT_ONCE)
        for one in near[:got]:
            yield from tell_acquired(one.its_lease, monotonic() - begun)
        return got, tried[got] if got < len(tried) else None

    def release_at_once(self) -> bool:
        """See Releasable.release_at_once(): several have more to do at their end."""
        return False

    async def arelease_at_once(self) -> bool:
        """See release_at_once()."""
        return False

    def end(self, error: BaseException | None, **facts: Any) -> Steps[bool]:
        """See Releasable.end(): of all, the last one first. What goes wrong with one does not keep the others.

        What is not raised of those that Redis could not be told of is logged, with ``facts``.
        """
        lost: LockNotOwned | None = None
        unreleased = list[LockUnavailable]()
        away: LockUnavailable | None = None
        free = True
        try:
            for one in (yield from self._release_together(error)):
                lease = one.lease
                if lease is None or lease.closed:
                    one.abandon()
                    continue
                if away is not None:  # not to wait for Redis once more
                    if lease.is_last(one) and not lease.lost:
                        unreleased.append(LockUnavailable(str(away), lease.name, lease_left=lease.remaining()))
                    one.leave_to_background(error)
                    continue
                try:
                    free = (yield from one.end(error)) and free
                except LockNotOwned as found:
                    lost = lost if isinstance(lost, LockLost) else found
                    away = found.__cause__ if isinstance(found.__cause__, LockUnavailable) else None
                except LockUnavailable as trouble:
                    away = trouble
                    unreleased.append(trouble)
        except BaseException as struck:  # the cancellation that another one's loss has sent, say
            self.abandon_cancelled(struck)
            raise
        raised = lost or (unreleased.pop(0) if unreleased else None)
        for one_more in unreleased:
            log_unreleased(one_more, **facts)
        if raised is not None:
            raise raised
        return free

    def _release_together(self, error: BaseException | None) -> Steps[list[Any]]:
        """Release in one round trip those for which that is enough: of the last one's partition, at least two.

        Returns the others, the last one first. Where one was sent in vain, end() goes on with what has come of it.
        """
        last_first, sent = self.acquisitions[::-1], list[tuple[Any, Command]]()
        partition = last_first[0].partition
        if isinstance(error, GeneratorExit):  # a coroutine that is being closed must not wait
            return [*last_first]
        if error is not None:
            self.keep(0.0)  # it is for what ends well
        near = [one for one in last_first if one.partition is partition and one.lease is not None]
        for one in near if len(near) > 1 else ():
            command = one.prepare_release(HOLDER)
            if command is not None:
                sent.append((one, command))
        if not sent:
            return [*last_first]
        tried = yield from _send(partition, [command for _, command in sent], None, LEAVING)
        released = dict.fromkeys(one for (one, _), found in zip(sent, tried, strict=True) if one.let_go(found))
        for one in released:
            yield from tell_released(one.its_lease)
        return [one for one in last_first if one not in released]

    def abandon(self) -> None:
        for one in self.acquisitions:
            one.abandon()

    def abandon_after(self, block: object) -> None:
        for one in self.acquisitions:
            one.abandon_after(block)


def _send(
    partition: Partition, commands: list[Command], by: float | None, urgency: int = ENTERING
) -> Steps[list[Tried]]:
    """Send these commands in one round trip; return what has come of each."""
    sent = monotonic()
    try:
        answers, node = yield Roundtrip(partition, commands, by, urgency)
    except (*CONNECTION_ERRORS, ResponseError) as error:
        return [(sent, error, None)] * len(commands)
    return [(sent, [answer], node) for answer in answers]


def make_acquisition(
    templates: Mapping[str, str], options: Options, *, token: str | None = None, purpose: str = ""
) -> Acquisition | Several:
    """Of one lock, or of several. See Several.of()."""
    if len(templates) > 1:
        return Several.of(templates, options, purpose=purpose)
    ((name, template),) = templates.items()
    return Acquisition(name, options, token=token, purpose=purpose, template=template)


def around(acquisition: Acquisition | Several, step: Step) -> Steps[Any]:
    """Get the lock, or all of them, perform ``step``, and give back; return what the step has sent back.

    Raises LockNotAcquired, and what obtain() and exit() raise.
    """
    frame = Frame()
    acquisition.abandon_after(frame)
    try:
        refusal = yield from acquisition.obtain()
        if refusal is not None:
            raise refusal
        result = yield step
        yield from acquisition.exit(None)
        return result
    except BaseException as error:
        yield from acquisition.fail(error)
        raise
    finally:
        refusal = None  # see Enterable.__enter__()
