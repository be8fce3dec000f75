"""The options of locks: one list for ``Lock``, the decorators, pools and commands. Terms: with the settings in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache, partial
from typing import Any, Literal, TypedDict, get_type_hints

from django.db import connections
from redis.backoff import AbstractBackoff

from .base.display import did_you_mean, shown
from .base.pace import POLLING
from .base.steps import is_async
from .base.times import NEVER, Deadline, Seconds, seconds, ttl_seconds
from .conf import Conf, check_count, check_flag, conf
from .exceptions import LockLost

MAX_NOTE_BYTES = 1000
ANY_NUMBER = 10**9  # of waiters, whatever MAX_WAITERS says
MOST_PERMITS = 10**9  # Lua would write a much higher number as no whole one

OnLost = Callable[[LockLost], object]


class HoldOptions(TypedDict, total=False):
    """The options of every acquisition, however long it may wait."""

    ttl: Seconds | None
    max_hold: Seconds | None
    on_lost: OnLost | Literal["cancel"] | None
    poll: bool | None
    backoff: AbstractBackoff | None
    replicas: int | None
    note: str
    purpose: str
    template: str


class LeaderOptions(HoldOptions, total=False):
    """The options of a leader, which waits without end and is always renewed."""

    using: str | None
    fenced: bool | str | Sequence[str] | None


class AcquireOptions(HoldOptions, total=False):
    """The options of every acquisition, of a pool's members too."""

    blocking_timeout: Seconds | None
    auto_renew: bool | None
    attempts: int | None
    slow_wait: Seconds | Literal[False] | None


class SemaphoreOptions(AcquireOptions, total=False):
    """The options of a semaphore, besides its limit."""

    blocking: bool
    max_waiters: int | None
    using: str | None


class LimitedOptions(SemaphoreOptions, total=False):
    """The same, with the limit."""

    limit: int


class SetOptions(SemaphoreOptions, total=False):
    """The options of several locks at once."""

    reentrant: bool
    fenced: bool | str | Sequence[str] | None
    fence_timeout: Seconds | None


class LockOptions(SetOptions, total=False):
    """The options of a lock."""

    adopt: bool


class SectionOptions(LockOptions, total=False):
    """The options of ``@locked``: of a lock, or with a limit of a semaphore."""

    limit: int | None


class JobOptions(SectionOptions, total=False):
    """The options of a job: those of ``@locked``, and what only jobs have."""

    lock_from: str
    busy: str
    at_least: Seconds
    queued_ttl: Seconds


def check_timeout(value: Seconds | None) -> float | None:
    return None if value is None else seconds(value, "blocking_timeout", least=0)


def check_limit(value: object, what: str = "limit") -> int:
    number = check_count(value, what, 1)
    if number > MOST_PERMITS:
        raise ValueError(f"{what} must be at most {MOST_PERMITS}, not {shown(value)}.")
    return number


def check_fenced(value: Any, what: str) -> bool | tuple[str, ...]:
    """``value`` if it is True or False; one alias in ``DATABASES`` or several as a tuple."""
    if isinstance(value, bool):
        return value
    aliases = check_databases(value, what, "True, False, ")
    return tuple(check_database(alias, what) for alias in aliases)


def check_database(alias: str, what: str) -> str:
    """Return an alias that is in DATABASES, or raise ValueError."""
    if alias not in connections:
        raise ValueError(
            f"{what} names {shown(alias)}, which is not in DATABASES. The aliases are: {', '.join(connections)}."
        )
    return alias


def check_databases(value: Any, what: str, others: str = "") -> tuple[str, ...]:
    """One alias or several, as a tuple. They may be unknown yet."""
    aliases = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else ()
    if not aliases or not all(isinstance(alias, str) for alias in aliases):
        raise TypeError(f"{what} must be {others}an alias in DATABASES or a list of aliases, not {shown(value)}.")
    return aliases


def check_note(note: str, what: str = "note") -> str:
    """Return ``note`` when it can be one, else raise ``TypeError`` or ``ValueError``."""
    try:
        size = len(_check_text(note, what).encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"note must be encodable as UTF-8: {error}.") from None
    if size > MAX_NOTE_BYTES:
        raise ValueError(f"note must have at most {MAX_NOTE_BYTES} bytes, not {size}. It begins with {note[:80]!r}.")
    return note


def _check_text(value: str, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {shown(value)} ({type(value).__name__}).")
    return value


def _check_on_lost(value: Any, what: str) -> Any:
    if value != "cancel" and (not callable(value) or is_async(value)):
        raise TypeError(f"{what} must be a plain function, 'cancel' or None, not {shown(value)}.")
    return value


def _slow_wait(value: Any, what: str) -> Any:
    return value if value is False else seconds(value, f"{what}, unless it is False,")


def _option(default: Any, check: Callable[[Any, str], Any]) -> Any:
    """The field of an option that ``check`` returns as it is kept, unless it is the default."""
    return field(default=default, metadata={"check": check})


@dataclass(slots=True, kw_only=True)
class Options:
    """The same, checked: durations in seconds; None takes the setting."""

    ttl: float | None = _option(None, ttl_seconds)
    blocking: bool = _option(True, check_flag)
    blocking_timeout: float | None = _option(None, partial(seconds, least=0))
    auto_renew: bool | None = _option(None, partial(check_flag, none=True))
    max_hold: float | None = _option(None, seconds)
    reentrant: bool = _option(False, check_flag)
    adopt: bool = _option(False, check_flag)
    max_waiters: int | None = _option(None, check_count)
    on_lost: Any = _option(None, _check_on_lost)  # noqa: RUF009
    using: str | None = None
    poll: bool | None = None
    backoff: AbstractBackoff | None = None
    attempts: int | None = None
    replicas: int | None = _option(None, check_count)
    slow_wait: float | None = _option(None, _slow_wait)  # False: never
    # True, False or a tuple of aliases in DATABASES
    fenced: Any = _option(None, check_fenced)  # noqa: RUF009
    fence_timeout: float | None = _option(None, seconds)
    limit: int | None = _option(None, check_limit)  # of a semaphore
    note: str = _option("", check_note)
    purpose: str = _option("", _check_text)
    template: str = _option("", _check_text)
    stands_by: bool = False  # a leader's: waits in silence for as long as it takes, whatever happens to Redis
    # where they are the same for all names; see terms_of()
    terms: Terms | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, default, check in _CHECKED:
            value = getattr(self, name)
            if value is not default:
                setattr(self, name, check(value, name))
        if self.poll is not None or self.backoff is not None or self.attempts is not None:
            _check_polling(self.poll, self.backoff, self.attempts)
        if self.limit is not None:
            for name in ("reentrant", "adopt", "fenced"):
                if getattr(self, name):
                    raise ValueError(f"{name} is an option of locks: with limit={self.limit}, this is a semaphore.")

    def with_note(self, note: str) -> Options:
        """The same with this note, cut if too long."""
        if note == self.note:
            return self
        other = copy(self)
        other.note = cut_note(note)
        return other


class Terms:
    """Those of all acquisitions with the same options; where settings go by name, of one name. Times in seconds."""

    def __init__(self, options: Options, settings: Conf, name: str) -> None:
        timeout, renew, poll = options.blocking_timeout, options.auto_renew, options.poll
        self.settings: Conf = settings
        self.ttl: float = settings.ttl_of(name) if options.ttl is None else options.ttl
        self.blocking: bool = options.blocking
        self.blocking_timeout: float | None = settings.BLOCKING_TIMEOUT if timeout is None else timeout
        self.backoff: AbstractBackoff = options.backoff or POLLING
        # at most so many tries
        self.attempts: float = math.inf if options.attempts is None else options.attempts
        self.auto_renew: bool = settings.AUTO_RENEW if renew is None else renew
        self.max_hold: float | None = settings.MAX_HOLD if options.max_hold is None else options.max_hold
        # how many others may wait already; None: any number
        most = settings.max_waiters_of(name) if options.max_waiters is None else options.max_waiters
        self.most: int | None = None if most == ANY_NUMBER else most
        self.replicas: int = settings.REPLICAS if options.replicas is None else options.replicas
        self.listens: bool = not (settings.POLL if poll is None else poll)
        slow = settings.SLOW_WAIT if options.slow_wait is None else options.slow_wait
        self.slow_wait: float = slow or math.inf
        fenced = settings.is_fenced(name) if options.fenced is None else options.fenced
        self.fenced: bool | tuple[str, ...] = options.limit is None and fenced
        self.fence_timeout: float | None = (
            settings.FENCE_TIMEOUT if options.fence_timeout is None else options.fence_timeout
        )
        self.cancels: bool = options.on_lost == "cancel"
        self.on_lost: OnLost | None = None if self.cancels else options.on_lost
        self.stands_by: bool = options.stands_by
        # seconds before the end of a lease at which it counts as over
        self.early_by: float = self.ttl / 3 if self.stands_by else 0.0
        if self.stands_by:
            self.blocking_timeout, self.auto_renew, self.most, self.slow_wait = None, True, None, math.inf
        # until when to wait, where that is without end
        self.no_deadline: Deadline | None = NEVER if self.blocking and self.blocking_timeout is None else None
        self.place: object = None  # where such locks are, as the engine has found out
        # one command is all that it takes to get such a lock, if it is free
        moves = settings.ALSO_LOCK is not None and options.limit is None
        self.plain: bool = self.listens and not (
            self.replicas or self.cancels or options.adopt or self.stands_by or moves
        )

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """They are made anew for a copy of the options, which may be in another process."""
        return type(None), ()

    def deadline(self, blocking: bool | None = None, blocking_timeout: float | None = None) -> Deadline:
        """Return until when to wait. The arguments, if given, override the options."""
        if blocking is None:
            blocking = self.blocking or blocking_timeout is not None
        if blocking is not True and not check_flag(blocking, "blocking", none=True):
            return Deadline.after(0.0)
        timeout = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        return NEVER if timeout is None else Deadline.after(timeout)


def terms_of(options: Options, name: str) -> Terms:
    """Return the terms of an acquisition of the lock ``name``. They are kept with the options while settings stay."""
    settings = conf()
    found = options.terms
    if found is None or found.settings is not settings:
        found = Terms(options, settings, name)
        if not (settings.TTLS or settings.MAX_WAITERS or settings.FENCED):
            options.terms = found
    return found


def choose_waiting(options: Mapping[str, object]) -> bool:
    """Return whether these options are about waiting. Then whoever tries once by default waits."""
    return not options.keys().isdisjoint({"attempts", "backoff", "blocking"})


def check_kind(function: object, options: Options, decorator: str, *, is_async: bool) -> None:
    """Raise TypeError where a coroutine function is to claim its lock, or sync code to be cancelled."""
    if is_async and options.fenced:
        raise TypeError(
            f"{decorator}(fenced=...) cannot decorate {function!r}: coroutines have no transactions. Await aclaim() "
            f"where one is open."
        )
    if options.on_lost == "cancel" and not is_async:
        raise TypeError(
            f"{decorator} was given on_lost='cancel', which cancels the task of a coroutine, and {function!r} is sync "
            f"code: give a function that is to be called."
        )


def cut_note(text: str) -> str:
    """Any ``text`` as a note, cut if too long."""
    return text.encode(errors="replace")[:MAX_NOTE_BYTES].decode(errors="ignore")


def read_options(
    keywords: Mapping[str, Any], what: str, known: type = LockOptions, *, beside: Sequence[str] = ()
) -> Options:
    """``keywords`` as options; an unknown one is a TypeError that names the choices, those ``beside`` them too."""
    if not keywords.keys() <= _names(known):
        unknown, choices = min(keywords.keys() - _names(known)), sorted({*_names(known), *beside})
        hint = did_you_mean(unknown, choices)
        raise TypeError(f"{what} takes no option {unknown!r}.{hint} The options are: {', '.join(choices)}.")
    if not keywords:
        return DEFAULTS
    if keywords.keys() <= _KEPT and all(type(value) in _PLAIN for value in keywords.values()):
        return _kept(**keywords)
    return Options(**keywords)


# code makes a new lock each time, with the same options. Kept are those whose check depends on no setting
_KEPT = frozenset(
    ["ttl", "blocking", "blocking_timeout", "auto_renew", "max_hold", "max_waiters", "reentrant", "limit", "using"]
)
_PLAIN = (int, float, bool, str, type(None))


@lru_cache(maxsize=256, typed=True)
def _kept(**keywords: Any) -> Options:
    return Options(**keywords)


@cache
def _names(known: type) -> frozenset[str]:
    return frozenset(get_type_hints(known))


def _check_polling(poll: bool | None, backoff: AbstractBackoff | None, attempts: int | None) -> None:
    """Check that all three fit together: only a waiter that polls has a pace and counts its tries."""
    check_flag(poll, "poll", none=True)
    if backoff is not None and not isinstance(backoff, AbstractBackoff):
        raise TypeError(
            f"backoff must be an instance of one of redis-py's classes in redis.backoff, such as "
            f"EqualJitterBackoff(cap=0.5, base=0.02), not {shown(backoff)}."
        )
    if attempts is not None:
        check_count(attempts, "attempts", 1)
    given = [name for name, value in (("backoff", backoff), ("attempts", attempts)) if value is not None]
    if given and not (conf().POLL if poll is None else poll):
        raise ValueError(
            f"{' and '.join(given)} can only be given with poll=True: other waiters are woken, and do not poll. "
            f"(poll is {poll!r}, REDISLOCK['POLL'] is {conf().POLL!r}.)"
        )


_CHECKED = [(each.name, each.default, each.metadata["check"]) for each in fields(Options) if each.metadata]

DEFAULTS = Options()
