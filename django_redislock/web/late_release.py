"""The release of a view's lock when the view has returned too early for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

from django.db import connections, transaction
from django.http import FileResponse, HttpRequest, StreamingHttpResponse

from ..engine import Acquisition, current_owner, release_surely
from ..exceptions import LockNotOwned
from ..steps import Steps, arun, run


class LateRelease:
    """The release of a lock whose view has returned or raised too early for it: once, from any thread or loop.

    The lock is released when the last of the transactions ``begun`` has committed, or when the content of a streaming
    response ends. Where neither is seen (a rollback, a middleware that replaces the response), it is released when
    the response that was sent, whichever it is, is closed. If nothing of this happens, the lease ends: it is no longer
    renewed, unless a streaming response is alive.
    """

    def __init__(self, section: Acquisition, request: HttpRequest, response: Any, begun: list[str]) -> None:
        self._section = section
        self._once = threading.Lock()
        self._open = len(begun)
        streams = isinstance(response, StreamingHttpResponse)
        # DRF gives views a wrapper around the request that the handler closes
        request = getattr(request, "_request", request)
        section.held.follow(section, response if streams or response is None else request)
        section.disown(known=not streams)
        _after_close(request, self.release)
        if hasattr(response, "_resource_closers"):
            response._resource_closers.append(self)
        if streams:
            if not isinstance(response, FileResponse):  # servers may send that without iterating over it
                response.streaming_content = self._follow(response)
        else:
            for alias in begun:
                if connections[alias].in_atomic_block:
                    transaction.on_commit(self.committed, using=alias, robust=True)

    def __call__(self) -> None:
        self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        # a page in a cache is a copy: it has nothing to release, and must outlive the names of this module
        return partial, (bool,)

    def committed(self) -> None:
        """One of the transactions has committed."""
        self._open -= 1
        if not self._open:
            self.release()

    def release(self) -> None:
        """Release the lock, unless that is done. In the background where an event loop runs."""
        if self._is_due():
            if asyncio._get_running_loop() is not None:
                self._section.undo()
            else:
                run(self._release())

    async def arelease(self) -> None:
        """See release(); not in the background."""
        if self._is_due():
            await arun(self._release())

    def _is_due(self) -> bool:
        """Whether nobody has come here before. The caller releases."""
        return self._once.acquire(blocking=False) and not self._section.held.closed

    def _release(self) -> Steps[None]:
        try:
            yield from release_surely(self._section, request=self._section.purpose)
        except LockNotOwned:
            pass  # a loss, which was reported already; or this process was forked from the one that holds it

    def _follow(self, response: Any) -> Iterator[Any] | AsyncIterator[Any]:
        # not response.streaming_content, which hides the iterator that has to be closed
        content = response._iterator
        return self._aiterate(content) if response.is_async else self._iterate(content)

    def _iterate(self, content: Iterator[Any]) -> Iterator[Any]:
        try:
            try:
                while True:
                    with current_owner().under(self._section.held):
                        part = next(content, self)
                    if part is self:
                        return
                    yield part
            finally:
                if hasattr(content, "close"):
                    content.close()  # its cleanup still runs under the lock
        finally:
            self.release()

    async def _aiterate(self, content: AsyncIterator[Any]) -> AsyncIterator[Any]:
        try:
            try:
                while True:
                    with current_owner().under(self._section.held):
                        try:
                            part = await content.__anext__()
                        except StopAsyncIteration:
                            break
                    yield part
            finally:
                if hasattr(content, "aclose"):
                    await content.aclose()  # its cleanup still runs under the lock
        except (GeneratorExit, asyncio.CancelledError):
            self.release()  # in the background: nobody waits for more
            raise
        finally:
            await self.arelease()


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
