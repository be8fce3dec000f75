"""Terms: what is asked for with a lock, by its options and, where these are None, the settings."""

from __future__ import annotations

import math

from redis.backoff import AbstractBackoff

from ..base.pace import POLLING
from ..base.times import NEVER, Deadline
from ..conf import Conf, check_flag, conf
from ..options import OnLost, Options


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
        self.most: int | None = settings.max_waiters_of(name) if options.max_waiters is None else options.max_waiters
        self.replicas: int = settings.REPLICAS if options.replicas is None else options.replicas
        self.listens: bool = not (settings.POLL if poll is None else poll)
        slow = settings.SLOW_WAIT if options.slow_wait is None else options.slow_wait
        self.slow_wait: float = slow or math.inf
        self.fenced: bool | tuple[str, ...] = settings.is_fenced(name) if options.fenced is None else options.fenced
        self.fence_timeout: float | None = (
            settings.FENCE_TIMEOUT if options.fence_timeout is None else options.fence_timeout
        )
        self.cancels: bool = options.on_lost == "cancel"
        self.on_lost: OnLost | None = None if self.cancels else options.on_lost
        self.template: str = options.template
        # one command is all that it takes to get such a lock, if it is free
        self.plain: bool = self.listens and not (self.replicas or self.cancels or options.adopt)

    def deadline(self, blocking: bool | None = None, blocking_timeout: float | None = None) -> Deadline:
        """Return until when to wait. The arguments, if given, override the options."""
        if blocking is None:
            blocking = self.blocking or blocking_timeout is not None
        if blocking is not True and not check_flag(blocking, "blocking", None):
            return Deadline.after(0.0)
        timeout = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        return NEVER if timeout is None else Deadline.after(timeout)


def terms_of(options: Options, name: str) -> Terms:
    """Return the terms of an acquisition of the lock ``name``. They are kept with the options while settings stay."""
    settings = conf()
    found: Terms | None = options.terms
    if found is None or found.settings is not settings:
        found = Terms(options, settings, name)
        if not (settings.TTLS or settings.MAX_WAITERS or settings.FENCED):
            options.terms = found
    return found
