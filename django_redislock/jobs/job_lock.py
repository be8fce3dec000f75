"""What the lock of a background job does, whatever queue it goes through. One adapter for each queue is beside this.

The token of the lock is the job's id. So a job that was delivered again, or tries again, goes on with its own lock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from hashlib import sha256
from inspect import Signature
from logging import INFO
from time import sleep
from typing import Any, Protocol

from ..base.display import shown
from ..base.log import log_event
from ..base.names import capped_name, lock_name
from ..base.pace import note_held, usually_held_for
from ..base.steps import is_async, run
from ..base.times import Seconds, monotonic, seconds
from ..call_names import CallTexts, Name, are_several, refuse_body, refuse_generators, template_of
from ..engine.extension import detach
from ..engine.release import log_unreleased, release_detached
from ..exceptions import LockError, LockNotAcquired, LockUnavailable
from ..lock import Lock
from ..options import JobOptions, Options, SectionOptions, check_kind, cut_note, read_options
from ..semaphore import Semaphore
from ..store.calls import read_holder
from ..store.stores import get_partition
from ..values import Counter

OPTIONS = frozenset(JobOptions.__annotations__)
REMEMBERED = 3600.0  # seconds for which it is known that a job has ended, for copies of it that are still delivered
ASKED = 86400.0  # seconds for which it is known that a job is to run once more, where its run takes that long
LONGEST_PAUSE = 600.0  # seconds after which a job that met a busy lock comes again, at most


class Job(Protocol):
    """One run of a job, as its queue knows it."""

    id: str  # the same for every delivery and every retry

    @property
    def repeated(self) -> Callable[[], Any] | None:
        """What a copy does that is delivered when the job has ended; None: its queue delivers no copies."""

    def later(self, pause: float, refusal: LockError, *, is_copy: bool) -> Any:
        """Have this same job run ``pause`` seconds from now, without using up its retries.

        Raise what ends this run, or return its result. ``is_copy``: the same job runs elsewhere.
        """

    def again(self) -> None:
        """Queue a new job with the same arguments."""

    def comes_back_in(self, error: BaseException) -> float | None:
        """Return the seconds until this job runs again, by a retry or another delivery, after this error.

        None: it does not, or the lock has been left to the next run already.
        """


_once_more: ContextVar[bool] = ContextVar("django_redislock.once_more", default=False)  # what is queued was merged


class JobLock:
    """The lock of one kind of job, ``function``, whose arguments ``signature`` describes.

    ``name``
        As for :func:`locked`: a template over the arguments, or a callable; not a list.
    ``lock_from``
        ``"start"`` (the default): the lock is acquired when a worker starts the job. ``"enqueue"``: when the job is
        queued; it stays held while the job waits there, and is the worker's from then on. Retries keep it.
    ``busy``
        What happens to a job that finds the lock busy. ``"skip"`` (the default): it is dropped. ``"retry"``: it comes
        again, after the time that such jobs usually take, as often as it takes; the queue's own count of retries is
        left alone. ``"raise"``: LockNotAcquired. ``"merge"``: it is dropped, and if a job of that name runs already,
        one more is queued when that one has ended, with the arguments of the one that ran; so whatever changed
        meanwhile is seen.
    ``queued_ttl``
        With ``lock_from="enqueue"``: seconds that a job may wait in the queue, after its countdown, before its lock
        ends. If it starts later, it acquires the lock like a new one.
    ``at_least``
        As for :func:`locked`: seconds for which the lock stays held if the job ends well before.

    The other options are those of :class:`Lock`, or with a ``limit`` those of :class:`Semaphore`, except ``token`` and
    ``adopt``; ``blocking_timeout`` is 0 unless it is given, and counts in the worker. With a ``limit``, a lock cannot
    wait in a queue, so that ``lock_from`` is ``"start"``.

    That a job has ended is remembered for an hour where its queue may deliver it again: a copy that comes later does
    not run. A copy of a job that still runs comes again later, until that one has ended, or its process is dead.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        name: Name,
        *,
        what: str,
        awaits: bool = False,  # the queue runs a coroutine function to its end
        lock_from: str = "start",
        busy: str = "skip",
        at_least: Seconds = 0,
        queued_ttl: Seconds = 3600.0,
        **options: Any,
    ) -> None:
        _check_choice("lock_from", lock_from, ("start", "enqueue"))
        _check_choice("busy", busy, ("skip", "retry", "raise", "merge"))
        if are_several(name):
            raise TypeError(f"{what} locks one name, not the list {shown(name)}.")
        options.setdefault("blocking_timeout", 0)
        options.setdefault("template", template_of(name))
        checked: Options = read_options(options, what, SectionOptions, beside=[*OPTIONS])
        if checked.adopt:
            raise ValueError(f"{what} takes no adopt: a job adopts its own lock by itself.")
        self.from_enqueue: bool = lock_from == "enqueue"
        self.busy: str = busy
        self.queued_ttl: float = seconds(queued_ttl, "queued_ttl")
        self.at_least: float = seconds(at_least, "at_least", least=0)
        if checked.limit is not None and self.from_enqueue:
            raise ValueError(f"{what} was given a limit, and lock_from='enqueue': a permit cannot wait in a queue.")
        if self.at_least and busy == "merge":
            raise ValueError(f"{what} was given at_least and busy='merge': what is asked meanwhile would be forgotten.")
        refuse_generators(function, what)
        if is_async(function) and not awaits:  # nobody would await it before the lock is free
            raise TypeError(f"{what} cannot lock {function!r}: write a plain function that calls asyncio.run().")
        check_kind(function, checked, what, is_async=False)
        self._function, self._signature, self._what = function, signature, what
        self._texts = CallTexts(name, checked.note)
        self._texts.check(function, signature)
        self._limit: int | None = options.pop("limit", None)
        self._options: dict[str, Any] = options
        self._using, self._template = checked.using, checked.template

    def make(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], id: str | None = None, **options: Any) -> Lock:
        """The lock of a job with these arguments; ``id``: None for a call that goes through no queue."""
        names, note, _ = self._texts.fill(self._function, self._signature, args, kwargs)
        (name,), every = names, {**self._options, "note": cut_note(note), **options}
        if self._limit is not None:
            return Semaphore(name, limit=self._limit, **every)
        return Lock(name, token=None if id is None else _token_of(id), **every)

    def call(self, lock: Lock, body: Callable[[], Any]) -> Any:
        """Run ``body`` under the lock where it is called like a function, and return what it returns."""
        with lock:
            return self._ran(body)

    def _ran(self, body: Callable[[], Any]) -> Any:
        result = body()
        refuse_body(self._function, result, self._what)
        return result

    # -- when it is queued --------------------------------------------------------------------------------------------

    def enqueue(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        id: str,
        publish: Callable[[bool], Any],
        find: Callable[[str], Any],
        *,
        wait: float = 0.0,
        most: float = math.inf,
        awaited: bool = False,
        sends_anyway: bool = False,
    ) -> Any:
        """Acquire the lock for a job and call ``publish``, which queues it; return what that returns.

        Where the lock is busy, and the job is not to come again later, return instead what ``find`` makes of the id of
        the job that has it; None where no job has it. A job that is ``awaited`` by others is queued all the same, with
        busy="raise" too: it may be queued by the job before it, which would fail for that. So is one that has the lock
        itself: its queue queues it again while it runs, or before its release has reached Redis.
        ``publish`` is told whether the job has the lock. It may start in ``wait`` seconds, and is dropped by the queue
        after ``most``. ``sends_anyway``: where Redis is away, queue it without its lock.
        """
        # poll: nobody has to be told here. Not reentrant: it would leave the lock of the code around to a job whose
        # token that lock does not have
        lock = self.make(args, kwargs, id, poll=True, blocking=False, blocking_timeout=0, reentrant=False)
        ttl = min(wait + self.queued_ttl, most)
        try:
            refusal, token = self._take(lock, ttl)
            if refusal is not None and self.busy == "merge" and token != lock.token:
                self._asked(lock).incr(ttl=ASKED)
                token = self._holder(lock)  # maybe another one
                if token is None:  # the other has ended before it could see that
                    refusal, token = self._take(lock, ttl)
        except LockUnavailable:
            if sends_anyway or _once_more.get():  # of what was merged, nobody would ask once more
                return publish(False)
            raise
        if refusal is None:
            return self.publish_with(lock, publish)
        log_event(INFO, "job-busy", name=lock.name, job=id, busy=self.busy, error=refusal)
        if self.busy == "retry" or awaited or token == lock.token:
            return publish(False)
        if self.busy == "raise":
            raise refusal
        return find(token.removeprefix("job-")) if token and token.startswith("job-") else None  # else none has it

    def publish_with(self, lock: Lock, publish: Callable[[bool], Any]) -> Any:
        """Queue the job for which the lock was detached; give the lock back if that cannot be done."""
        try:
            return publish(True)
        except BaseException:
            run(release_detached(lock._latest))
            raise

    def _take(self, lock: Lock, ttl: float) -> tuple[LockNotAcquired | None, str | None]:
        """Take the lock; or return the refusal, and the holder."""
        try:
            with lock:
                lock.detach(ttl=ttl)
        except LockNotAcquired as refusal:
            return refusal, self._holder(lock)
        return None, None

    def _holder(self, lock: Lock) -> str | None:
        """The token of who has the lock, empty where nobody knows it; None where nobody has it."""
        is_held, holder = run(read_holder(get_partition(self._using, lock.name), lock.name))
        return holder.token if holder is not None else "" if is_held else None

    def release(self, job: Job, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Release the lock of a job that has ended without running to its end, unless somebody alive uses it."""
        if self._limit is not None:
            return  # permits do not wait in queues
        # it does not wait for whoever uses the lock, but for Redis, as long as RETRY_FOR says
        lock = self.make(args, kwargs, job.id, adopt=True, blocking=True, blocking_timeout=None)
        try:
            if self.at_least and self._has_ended(job):
                return  # this is a copy, and the lock is to stay
            if not lock.acquire():
                return
            run(lock._held("release").exit_quietly())  # whatever transaction is open: nothing was done under it here
        except LockUnavailable as trouble:
            log_unreleased(trouble)  # it ends by itself
            return
        except LockError:
            pass  # it is gone already
        self._run_once_more(lock, job)

    # -- when it runs -------------------------------------------------------------------------------------------------

    def run(self, job: Job, args: tuple[Any, ...], kwargs: Mapping[str, Any], body: Callable[[], Any]) -> Any:
        """Run ``body`` under the lock, and return what it returns; None where it did not run."""
        lock = self.make(args, kwargs, job.id)
        try:
            return self._run(job, lock, body)
        except _NotRun as end:
            error: Any = end.__cause__
        is_copy = is_free = False
        try:
            if isinstance(error, LockNotAcquired):
                is_copy = lock.owned()  # it is held by the same job
                if self.busy == "merge" and not is_copy:
                    self._asked(lock).incr(ttl=ASKED)
                    is_free = not lock.locked()  # the other has ended before it could see that
        except LockUnavailable as trouble:
            error = trouble
        if is_copy:
            return job.later(min(lock.ttl, LONGEST_PAUSE), error, is_copy=True)
        if is_free:
            try:
                return self._run(job, lock, body)
            except _NotRun as end:  # pragma: no cover (somebody else has taken it in between)
                error = end.__cause__
        if isinstance(error, LockNotAcquired):
            log_event(INFO, "job-busy", name=lock.name, job=job.id, busy=self.busy, error=error)
            if self.busy in ("skip", "merge"):
                return None
        if self.busy == "raise":
            raise error
        return job.later(min(max(usually_held_for(self._template), 1.0), LONGEST_PAUSE), error, is_copy=False)

    def _run(self, job: Job, lock: Lock, body: Callable[[], Any]) -> Any:
        running: Running | None = None
        try:
            try:
                if self.at_least and self._has_ended(job):
                    return self._repeat(job, lock)  # first, as the lock may be kept for that long
                with lock:
                    running = Running(self, job.id, lock)
                    return self._run_inside(job, running, body)
            finally:
                if running is not None and not running.kept:
                    self._run_once_more(lock, job)
        except BaseException as error:
            if running is None and isinstance(error, (LockNotAcquired, LockUnavailable)):
                raise _NotRun from error
            if running is not None and running.marked:  # it has not ended well after all
                with suppress(LockUnavailable):
                    self._ended(job.id).reset()
            raise

    def _run_inside(self, job: Job, running: Running, body: Callable[[], Any]) -> Any:
        lock, began = running.lock, monotonic()
        try:
            if self._has_ended(job):
                if self.at_least:
                    _leave(lock, self.at_least)  # it has ended while this one waited
                return self._repeat(job, lock)
            if self.busy == "merge":
                self._asked(lock).reset()  # what was asked for until now, this run does
        except LockUnavailable as error:
            raise _NotRun from error
        before = _running.set(running)
        try:
            result = self._ran(body)
        except BaseException as error:
            wait = job.comes_back_in(error)
            if wait is not None:
                running.keep_for_next(wait)
            raise
        finally:
            _running.reset(before)
            note_held(self._template, monotonic() - began)
        if not running.kept:
            lock._held("keep").keep(self.at_least)
            if job.repeated is not None:
                running.marked = True
                with suppress(LockUnavailable):  # then a copy would run again, if there is one
                    self._ended(job.id).incr(ttl=REMEMBERED)
        return result

    def _has_ended(self, job: Job) -> bool:
        """Return whether this is a copy of a job that has ended well."""
        return job.repeated is not None and self._ended(job.id).get() > 0

    def _repeat(self, job: Job, lock: Lock) -> Any:
        assert job.repeated is not None
        log_event(INFO, "job-repeated", name=lock.name, job=job.id)
        return job.repeated()

    def _run_once_more(self, lock: Lock, job: Job) -> None:
        """Queue another run if one was asked for, which only one is told; or if nobody can tell."""
        if self.busy != "merge":
            return
        _wait_for_release(lock)
        with suppress(LockUnavailable):
            if not self._asked(lock).reset():
                return
        before = _once_more.set(True)
        try:
            job.again()
        finally:
            _once_more.reset(before)

    def _ended(self, id: str) -> Counter:
        return Counter(capped_name(lock_name("job-ended", id)), using=self._using)

    def _asked(self, lock: Lock) -> Counter:
        return Counter(capped_name(f"job-again:{lock.name}"), using=self._using)


class Running:
    """A job that holds its lock in this context."""

    def __init__(self, kind: JobLock, id: str, lock: Lock) -> None:
        self.kind, self.id, self.lock = kind, id, lock
        self.kept = False  # the lock, for the next run
        self.marked = False  # as ended

    def keep_for_next(self, wait: float = 0.0, most: float = math.inf) -> None:
        """Leave the lock to the next run of the same job. See JobLock.enqueue()."""
        if self.kind.from_enqueue and not self.kept:
            with suppress(LockError):  # it is lost, or Redis away: then the next run acquires it like a new one
                _leave(self.lock, min(wait + self.kind.queued_ttl, most))
                self.kept = True


_running: ContextVar[Running | None] = ContextVar("django_redislock.running_job", default=None)


def running_job(id: str | None) -> Running | None:
    """The job of this id, if it runs in this context."""
    found = _running.get()
    return found if found is not None and found.id == id else None


def _leave(lock: Lock, seconds: float) -> None:
    """Leave the lock to the next run. Nobody is told that it is held, so no replica has to acknowledge that."""
    run(detach(lock._held("detach"), seconds, acknowledged=False))


def _wait_for_release(lock: Lock) -> None:
    """Wait until Redis has heard that the lock was released, or it has ended: until then, others count on this run."""
    lease = lock._latest
    end = monotonic() + (lease.left_with(0.0) if lease is not None and lease.tried_release else 0.0)
    while monotonic() < end:
        with suppress(LockUnavailable):
            if not lock.owned():
                return
        sleep(0.05)


class _NotRun(Exception):
    """The lock was not acquired; its cause says why."""


_BARE = re.compile("[A-Za-z0-9_-]{18,120}")


def _token_of(id: str) -> str:
    return f"job-{id}" if _BARE.fullmatch(id) else f"digest-{sha256(id.encode()).hexdigest()}"


def _check_choice(what: str, given: object, choices: Sequence[str]) -> None:
    if given not in choices:
        raise ValueError(f"{what} must be one of {', '.join(map(repr, choices))}, not {shown(given)}.")
