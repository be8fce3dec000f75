"""Dramatiq: actors of which one message at a time is queued or runs. What it does not do: docs/jobs-dramatiq.rst."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from dramatiq import Actor, GenericActor, Message, Retry
from dramatiq.middleware import CurrentMessage, MiddlewareError, Retries, SkipMessage

from ..call_names import signature_of
from ..exceptions import LockError
from .job_lock import OPTIONS, JobLock, running_job

SKIPPED = "redislock_skipped"  # among the options of a message: it did not run, and has no lock to give back


class LockedActor(Actor):  # type: ignore[type-arg]
    """The class of an actor that runs under a lock; its broker needs the middleware :class:`RedisLock`.

        @dramatiq.actor(actor_class=LockedActor, lock="report:{year}", lock_from="enqueue", busy="skip")
        def build(year): ...

    ``lock`` is its name, and all else is described at :class:`~django_redislock.jobs.job_lock.JobLock`; options of
    Dramatiq go beside these.

    With ``lock_from="enqueue"``, ``send()`` and ``send_with_options()`` acquire the lock. If it is busy, they return a
    message with the id, and so the result, of the one that has it, or None where no message has it.

    An actor that is called like a function acquires the lock, too, and raises LockNotAcquired if it is busy.
    """

    _job_lock: JobLock

    def __init__(self, fn: Callable[..., Any], *, actor_name: str, options: dict[str, Any], **kwargs: Any) -> None:
        what = f"The actor {actor_name}"
        if options.get("lock") is None:
            raise TypeError(f'{what} is a LockedActor and has no lock: give lock="report:{{year}}", say.')
        own = {name: options[name] for name in OPTIONS & options.keys()}
        body: Any = fn.perform if isinstance(fn, GenericActor) else fn
        function, awaits = getattr(body, "__func__", body), body is fn  # Dramatiq awaits no perform()
        self._job_lock = JobLock(function, signature_of(body), options["lock"], what=what, awaits=awaits, **own)
        super().__init__(fn, actor_name=actor_name, options=options, **kwargs)

    def send_with_options(
        self,
        *,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        delay: timedelta | int | None = None,
        **options: Any,
    ) -> Any:
        lock, send = self._job_lock, super().send_with_options
        if not lock.from_enqueue:
            return send(args=args, kwargs=kwargs, delay=delay, **options)
        if isinstance(delay, timedelta):
            delay = round(delay.total_seconds() * 1000)
        message = self.message_with_options(args=args, kwargs=kwargs, **options)
        return lock.enqueue(
            *_as_delivered(message),
            message.message_id,
            lambda taken: self.broker.enqueue(message, delay=delay),
            lambda other: message.copy(message_id=other),
            wait=(delay or 0) / 1000,
        )

    def release_lock(self, message: Any) -> None:
        """Release the lock of a message that will not run to its end."""
        if self._job_lock.from_enqueue:
            self._job_lock.release(_Delivery(self, message), message.args, message.kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it under its lock."""
        call = partial(super().__call__, *args, **kwargs)
        message: Any = CurrentMessage.get_current_message()
        if message is None or message.actor_name != self.actor_name or running_job(message.message_id) is not None:
            try:  # like a function, by itself even, under the lock of an equal message
                lock = self._job_lock.make(*_as_delivered(self.message_with_options(args=args, kwargs=kwargs)))
            except Exception:  # of any encoder, or for the name of what it makes: no equal message can be sent
                lock = self._job_lock.make(args, kwargs)
            return self._job_lock.call(lock, call)
        return self._job_lock.run(_Delivery(self, message), args, kwargs, call)


def _as_delivered(message: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the worker will find them, and name the lock: a list in place of a tuple, say."""
    found: Any = Message.decode(message.encode())
    return found.args, found.kwargs


class _Delivery:
    """A message that a worker processes: see Job."""

    def __init__(self, actor: LockedActor, message: Any) -> None:
        self._actor, self._message = actor, message
        self.id: str = message.message_id

    def later(self, pause: float, refusal: LockError, *, is_copy: bool) -> Any:
        self._actor.broker.enqueue(self._message.copy(), delay=round(pause * 1000))
        self._skip(str(refusal))

    def repeated(self) -> Any:
        self._skip("It has ended already.")

    def _skip(self, reason: str) -> NoReturn:
        """End without a result, since another run of this message has it, or will have it."""
        self._message.options.update({SKIPPED: True, "store_results": False})
        raise SkipMessage(reason)

    def again(self) -> None:
        self._actor.send_with_options(args=self._message.args, kwargs=self._message.kwargs)

    def comes_back_in(self, error: BaseException) -> float | None:
        """If it does not after all, RedisLock hears of that."""
        retries = next((each for each in self._actor.broker.middleware if isinstance(each, Retries)), None)
        if retries is None:
            return None
        delay = error.delay if isinstance(error, Retry) else None
        if delay is None:  # Dramatiq draws one, which is at most this
            least, most = (self._option(name, getattr(retries, name)) for name in ("min_backoff", "max_backoff"))
            delay = min(least * 2 ** (1 + self._message.options.get("retries", 0)), most)
        return float(delay / 1000)

    def _option(self, name: str, default: Any) -> Any:
        return self._message.options.get(name, self._actor.options.get(name, default))


class RedisLock(CurrentMessage):
    """The middleware that LockedActor needs: ``broker.add_middleware(RedisLock())``, before any actor is declared.

    It knows the options of locks and which message runs, and releases the locks of messages that end without a run:
    those that are too old, or fail for good.
    """

    @property
    def actor_options(self) -> set[str]:
        return {"lock", *OPTIONS}

    def before_declare_actor(self, broker: Any, actor: Any) -> None:
        if not isinstance(actor, LockedActor) and (given := sorted(self.actor_options & actor.options.keys())):
            what = f"The actor {actor.actor_name} has {', '.join(given)}"
            raise MiddlewareError(f"{what}, but is no LockedActor: give actor_class=LockedActor.")

    def after_skip_message(self, broker: Any, message: Any) -> None:
        if SKIPPED not in message.options:
            self.after_nack(broker, message)

    def after_nack(self, broker: Any, message: Any) -> None:
        if isinstance(actor := broker.actors.get(message.actor_name), LockedActor):
            actor.release_lock(message)
