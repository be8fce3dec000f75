"""A view's transaction and its lock: the transaction begins inside the lock (with ``ATOMIC_REQUESTS``, Django has to
begin none), and the lock is released after COMMIT, or at the end of a stream.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import Any

from django.db import connections, transaction
from django.http import FileResponse, HttpRequest, StreamingHttpResponse

from ..base.steps import Steps, arun, run
from ..engine import Acquisition, Frame, hide, release_quietly, under
from ..open_transactions import in_atomic_block
from .responses import note_held


def to_open(request: HttpRequest, *views: object) -> list[str]:
    """The aliases on which Django's handler would have begun a transaction without our mark."""
    match = request.resolver_match
    places = (*views, match and match.func, *map(instance_of, views))
    excluded = frozenset[str]().union(*map(excluded_by, places))
    return [
        alias
        for alias, options in connections.settings.items()
        if options["ATOMIC_REQUESTS"] and alias not in excluded and not in_atomic_block(connections[alias])
    ]


class OpenedHere:
    """Tells Django's handler to open no transaction for a view, since that is done inside the lock.

    It takes the place of the aliases that ``@non_atomic_requests`` excludes, and remembers those really excluded.
    """

    def __init__(self, excluded: Iterable[str]) -> None:
        self.excluded: frozenset[str] = frozenset(excluded)

    def __contains__(self, alias: object) -> bool:
        return True

    def add(self, alias: str) -> None:
        """Exclude ``alias``: ``non_atomic_requests`` is above ``locked_view``.

        Decorators and ``as_view()`` copy the reference to this object from view to view, and what is excluded for one
        must not be for another. So the view that is meant, which Django does not pass on, gets a mark of its own.
        """
        view = sys._getframe(1).f_locals.get("view")
        instance = instance_of(view)
        if view is None:  # not Django's decorator
            self.excluded |= {alias}
        elif instance is None:
            view._non_atomic_requests = OpenedHere({*self.excluded, alias})
        else:  # method_decorator binds the method anew for each request
            instance._non_atomic_requests = OpenedHere({*excluded_by(instance), alias})


def excluded_by(view: object) -> frozenset[str]:
    excluded = getattr(view, "_non_atomic_requests", ())
    return excluded.excluded if isinstance(excluded, OpenedHere) else frozenset(excluded)


def instance_of(view: object) -> Any:
    """The instance of a class-based view whose method ``method_decorator`` hands over."""
    return getattr(getattr(view, "func", view), "__self__", None)


CONTENT = ""  # beside the aliases of databases


class LateRelease:
    """The release of a lock whose view has returned or raised too early for it: once, from any thread or loop.

    The lock is released when the last of these has ended: the transactions ``begun``, and the content of a streaming
    response. All of them hold on to one object, the keeper. A rollback lets go of it, and so does content that is
    dropped unsent; when nobody holds it any more, the lock is released in the background.

    Where no end is seen (with autocommit off, or inside the transaction of a test case), the lock is released when the
    response that was sent, whichever it is, is closed. With autocommit off, it is not renewed once the request is gone.
    """

    def __init__(self, section: Acquisition, request: HttpRequest, response: Any, begun: list[str]) -> None:
        self._section = section
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
            response._resource_closers.append(partial(self.ended, CONTENT, keeper))
            if not isinstance(response, FileResponse):  # servers may send that without iterating over it
                response.streaming_content = self._follow(response, keeper)
        if streams:
            hide(section)
        if atomic == begun:
            section.keep_for(keeper, undo=True)
        else:
            section.keep_for(request)
        _after_close(request, self.release)

    def ended(self, part: str, keeper: object) -> None:
        """One of the transactions has committed, or the content has ended. See release()."""
        self._open.discard(part)
        if not self._open:
            self.release()

    async def aended(self, part: str, keeper: object) -> None:
        """See ended(); not in the background."""
        self._open.discard(part)
        if not self._open and self._is_due():
            await arun(self._release())

    def release(self) -> None:
        """Release the lock, unless that is done. In the background where an event loop runs."""
        if self._is_due():
            if asyncio._get_running_loop() is not None:
                self._section.undo()
            else:
                run(self._release())

    def _is_due(self) -> bool:
        """Whether nobody has come here before. The caller releases, even what is being released in the background."""
        return self._once.acquire(blocking=False)

    def _release(self) -> Steps[None]:
        note_held(self._section.held)
        return release_quietly(self._section, request=self._section.purpose)

    def _follow(self, response: Any, keeper: object) -> Iterator[Any] | AsyncIterator[Any]:
        # not response.streaming_content, which hides the iterator that has to be closed
        content = response._iterator
        return self._aiterate(content, keeper) if response.is_async else self._iterate(content, keeper)

    def _iterate(self, content: Iterator[Any], keeper: object) -> Iterator[Any]:
        try:
            try:
                while True:
                    with under(self._section):
                        part = next(content, self)
                    if part is self:
                        return
                    yield part
            finally:
                if hasattr(content, "close"):
                    content.close()  # its cleanup still runs under the lock
        finally:
            self.ended(CONTENT, keeper)

    async def _aiterate(self, content: AsyncIterator[Any], keeper: object) -> AsyncIterator[Any]:
        try:
            try:
                while True:
                    with under(self._section):
                        try:
                            part = await content.__anext__()
                        except StopAsyncIteration:
                            break
                    yield part
            finally:
                if hasattr(content, "aclose"):
                    await content.aclose()  # its cleanup still runs under the lock
        except (GeneratorExit, asyncio.CancelledError):
            self.ended(CONTENT, keeper)  # in the background: nobody waits for more
            raise
        finally:
            await self.aended(CONTENT, keeper)


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
