"""A view's transaction and its lock: the transaction begins inside the lock (with ``ATOMIC_REQUESTS``, Django has to
begin none), and the lock is released after COMMIT, or at the end of a stream.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn

from django.db import connections, transaction
from django.http import FileResponse, HttpRequest, StreamingHttpResponse

from ..base.pace import note_held
from ..base.steps import Steps, arun, run
from ..base.times import monotonic
from ..engine.acquisition import Acquisition, Frame
from ..engine.held import hide, under
from ..engine.several import Several
from ..open_transactions import in_atomic_block


class OpenedHere:
    """Tells Django's handler to open no transaction for a view, since that is done inside the lock.

    It takes the place of the aliases that ``@non_atomic_requests`` excludes, and remembers those.
    """

    def __init__(self, view: object) -> None:
        below = getattr(view, "_non_atomic_requests", ())
        self.excluded: frozenset[str] = below.excluded if isinstance(below, OpenedHere) else frozenset(below)

    def __contains__(self, alias: object) -> bool:
        return True

    def add(self, alias: str) -> NoReturn:
        # decorators and as_view() copy the reference to this object, so it is not known which view is meant
        raise RuntimeError("Put non_atomic_requests below locked_view, which begins the transactions.")


def to_open(request: HttpRequest, view: Any) -> list[str]:
    """The aliases on which Django's handler would have begun a transaction without our mark.

    ``view``: of ours. The URL names it, or one around it: if Django found no mark there, it has begun them all.
    """
    match, ours = request.resolver_match, view._non_atomic_requests
    mark = getattr(match.func, "_non_atomic_requests", None) if match else ours
    return [
        alias
        for alias, options in connections.settings.items()
        if options["ATOMIC_REQUESTS"]
        and isinstance(mark, OpenedHere)
        and alias not in ours.excluded | mark.excluded
        and not in_atomic_block(connections[alias])
    ]


CONTENT = ""  # beside the aliases of databases


class LateRelease:
    """The release of a lock whose view has returned or raised too early for it: once, from any thread or loop.

    The lock is released when the last of these has ended: the transactions ``begun``, and the content of a streaming
    response. All of them hold on to one object, the keeper. A rollback lets go of it, and so does content that is
    dropped unsent; when nobody holds it any more, the lock is released in the background.

    Where no end is seen (with autocommit off, or inside the transaction of a test case), the lock is released when the
    response that was sent, whichever it is, is closed. With autocommit off, it is not renewed once the request is gone.
    """

    def __init__(
        self, acquisition: Acquisition | Several, request: HttpRequest, purpose: str, response: Any, begun: list[str]
    ) -> None:
        self._acquisition = acquisition
        self._purpose = purpose
        self._once = threading.Lock()
        # DRF gives views a wrapper around the request that the handler closes
        request = getattr(request, "_request", request)
        streams = isinstance(response, StreamingHttpResponse)
        self._open = {*begun, CONTENT} if streams else {*begun}  # what has not ended yet
        keeper = Frame()
        atomic = [alias for alias in begun if connections[alias].in_atomic_block]
        for alias in atomic:
            transaction.on_commit(partial(self.ended, alias, keeper), using=alias, robust=True)
        if streams:
            closers = response._resource_closers
            closers[:] = [partial(self._under, closer) for closer in closers]  # that of the content is among them
            closers.append(partial(self.ended, CONTENT, keeper))
            if not isinstance(response, FileResponse):  # servers may send that without iterating over it
                follow: Any = self._aiterate if response.is_async else self._iterate
                # not response.streaming_content, which hides the iterator that has to be closed
                response.streaming_content = follow(response._iterator, keeper)
            for one in acquisition.acquisitions:
                hide(one)
        for one in acquisition.acquisitions:
            if atomic == begun:
                one.tie_to(keeper, abandon=True)
            else:
                one.tie_to(request)
        _after_close(request, self.release)

    def ended(self, part: str, keeper: object) -> None:
        """One of the transactions has committed, or the content has ended. See release()."""
        self._open.discard(part)
        if not self._open:
            self.release()

    def release(self) -> None:
        """Release the lock, unless that is done. In the background where an event loop runs."""
        if asyncio._get_running_loop() is None:
            run(self._release())
        elif self._once.acquire(blocking=False):
            self._acquisition.abandon()

    def _release(self) -> Steps[None]:
        # the first to come releases, even what is being released in the background
        if self._once.acquire(blocking=False):
            for lease in self._acquisition.leases:
                note_held(lease.template, monotonic() - lease.since)
            yield from self._acquisition.exit_quietly(request=self._purpose)

    def _under(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call what makes the content, or cleans up after it, under the lock."""
        with under(*self._acquisition.acquisitions):
            return function(*args)

    def _iterate(self, content: Any, keeper: object) -> Iterator[Any]:
        with ExitStack() as stack:
            stack.callback(self.ended, CONTENT, keeper)
            if hasattr(content, "close"):
                stack.callback(self._under, content.close)
            while True:
                part = self._under(next, content, self)
                if part is self:
                    return
                yield part

    async def _aiterate(self, content: AsyncIterator[Any], keeper: object) -> AsyncIterator[Any]:
        try:
            try:
                while True:
                    with under(*self._acquisition.acquisitions):
                        try:
                            part = await content.__anext__()
                        except StopAsyncIteration:
                            break
                    yield part
            finally:
                if hasattr(content, "aclose"):
                    with under(*self._acquisition.acquisitions):
                        await content.aclose()
        except (GeneratorExit, asyncio.CancelledError):
            self.ended(CONTENT, keeper)  # in the background: nobody waits for more
            raise
        finally:
            self._open.discard(CONTENT)
            if not self._open:
                await arun(self._release())


def _after_close(request: HttpRequest, callback: Callable[[], None]) -> None:
    """Make ``request.close()``, which handlers call once the response was sent, call ``callback`` too."""
    close = request.close

    def closing() -> None:
        request.__dict__.pop("close", None)  # it refers to the request
        try:
            close()
        finally:
            callback()

    request.close = closing  # type: ignore[method-assign]
