"""A question that is asked once for all who need the answer, in a thread of its own.

So it goes on whatever happens to those who wait. It is not a thread of an event loop's executor, as all of these may be
waiting for a lock that a task of this loop holds.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import threading
from collections.abc import Callable

from redis.exceptions import ConnectionError

from ..base.processes import try_start
from ..base.times import Alarm, monotonic
from .wire import NotAsked


class Question:
    """Calls ``ask`` with itself, and is done when that returns or raises; all who wait get its error.

    ``begun`` is set by ``ask``: the answer is at least as recent as that (monotonic).
    """

    def __init__(self, ask: Callable[[Question], object]) -> None:
        self._ask = ask
        self.begun: float = math.inf  # not yet
        self._done: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="redislock-question", daemon=True)

    def begin(self) -> None:
        if not try_start(self._thread):
            self._run()

    def _run(self) -> None:
        try:
            self._ask(self)
        except BaseException as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(None)

    @property
    def pending(self) -> bool:
        """Whether the answer is still to come. False as well where begin() was interrupted."""
        return self._thread.is_alive() and not self._done.done()

    def answer(self, by: float | None) -> None:
        """Wait until it is done. Raises NotAsked at ``by`` (monotonic)."""
        try:
            error = self._done.exception(None if by is None else max(0.0, by - monotonic()))
        except concurrent.futures.TimeoutError:
            raise NotAsked(_LATE) from None
        _raise(error)

    async def aanswer(self, by: float | None) -> None:
        """The same in an event loop."""
        loop, told = asyncio.get_running_loop(), asyncio.Event()

        def tell(done: object) -> None:
            try:
                loop.call_soon_threadsafe(told.set)
            except RuntimeError:
                pass  # the loop was closed

        self._done.add_done_callback(tell)
        alarm = None if by is None else Alarm(loop, by - monotonic(), told.set)
        try:
            await told.wait()
        finally:
            if alarm is not None:
                alarm.cancel()
        if not self._done.done():
            raise NotAsked(_LATE)
        _raise(self._done.exception())


_LATE = "the cluster did not say in time where its slots are"


def _raise(error: BaseException | None) -> None:
    if isinstance(error, ConnectionError):
        raise ConnectionError(str(error)) from error  # a new one for each who waits: it keeps its own traceback
    if error is not None:
        raise error
