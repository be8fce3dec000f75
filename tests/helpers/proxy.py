"""A TCP proxy between the locks and Redis that behaves as badly as a network can."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Trouble:
    """What happens to the next ``times`` messages that contain ``matching`` (each ``every``-th), in one direction.

    ``caught`` is set when the first has met it, ``over`` when the last one's fate is sealed: a held or late request was
    answered by the server, a reply was passed on or thrown away.
    """

    def __init__(
        self,
        matching: bytes,
        *,
        times: int,
        every: int = 1,
        delay: float = 0.0,
        held: bool = False,
        lost: bool = False,
        torn: bool = False,
        swallowed: bool = False,
    ) -> None:
        self.matching = matching
        self.times = times
        self.every = every
        self.seen = 0
        self.met = 0
        self.delay = delay
        self.lost = lost
        self.torn = torn
        self.swallowed = swallowed
        self.caught = threading.Event()
        self.over = threading.Event()
        self._gate = threading.Event()
        if not held:
            self._gate.set()

    def let_go(self) -> None:
        """Let held messages pass."""
        self._gate.set()

    def end(self) -> None:
        """No more messages meet it."""
        self.times = 0
        self._gate.set()

    def suffer(self) -> None:
        self.caught.set()
        time.sleep(self.delay)
        self._gate.wait()

    def done(self) -> None:
        if self.met >= self.times:
            self.over.set()


class _Link:
    """One connection through the proxy, with a thread for each direction."""

    def __init__(self, proxy: Proxy, down: socket.socket, up: socket.socket, source: str) -> None:
        self.proxy = proxy
        self.source = source
        self.down, self.up = down, up
        self.asked: list[Trouble] = []  # requests whose answer somebody waits for
        self.answers: list[Trouble] = []  # troubles of the answer to the request just sent
        ways = (self._requests, self._replies)
        self.threads = [threading.Thread(target=self._carry, args=(way,), daemon=True) for way in ways]
        self._mutex = threading.Lock()
        self._open = len(ways)
        for thread in self.threads:
            thread.start()

    def _carry(self, way: Callable[[], None]) -> None:
        """In one direction, to the end; whoever comes to it last closes both ends: minutes of faults cut thousands."""
        way()
        with self._mutex:
            self._open -= 1
            over = self._open == 0
        if over:
            self.down.close()
            self.up.close()

    def _requests(self) -> None:
        try:
            while data := self.down.recv(1 << 20):
                trouble = self.proxy.find(self.proxy.requests, data)
                if trouble is not None:
                    trouble.suffer()
                    self.asked.append(trouble)
                answer = self.proxy.find(self.proxy.answers, data)
                if answer is not None:
                    self.answers.append(answer)
                self.proxy.road.wait()
                self.up.sendall(data)
            if self.asked:
                return  # its sender gave up, but the network still carries it, and the server answers
            self.up.shutdown(socket.SHUT_WR)
        except OSError:
            self.cut()

    def _replies(self) -> None:
        try:
            while data := self.up.recv(1 << 20):
                for trouble in self.asked:
                    trouble.done()
                troubles, self.answers = self.answers, []
                message = self.proxy.find(self.proxy.messages, data)
                if message is not None:
                    troubles.append(message)
                for trouble in troubles:
                    trouble.suffer()
                self.proxy.road.wait()
                torn = any(trouble.torn for trouble in troubles)
                lost = torn or any(trouble.lost for trouble in troubles)
                if torn:
                    self.down.sendall(data[: len(data) // 2])
                if lost or any(trouble.swallowed for trouble in troubles):
                    # before its sender can know: who has asked again, with an answer by now, finds it over
                    for trouble in troubles:
                        trouble.done()
                if lost:
                    self.cut()
                    return
                if not any(trouble.swallowed for trouble in troubles):
                    self.down.sendall(data)
                    for trouble in troubles:
                        trouble.done()
            self.cut()
        except OSError:
            self.cut()

    def cut(self) -> None:
        for end in (self.down, self.up):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Proxy:
    """Forwards connections to ``port``; see the methods for what it does to them."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.requests: list[Trouble] = []
        self.answers: list[Trouble] = []
        self.messages: list[Trouble] = []
        self.refusing = False
        self.banned: set[str] = set()  # addresses
        self.refused = 0  # connections
        self.road = threading.Event()
        self.road.set()
        self.links: list[_Link] = []
        self._mutex = threading.Lock()
        self._door = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._door.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def hold_request(self, matching: str, times: int = 1) -> Trouble:
        """Keep requests back until ``let_go()``; they reach the server even when their sender has given up by then."""
        return self._add(self.requests, Trouble(matching.encode(), times=times, held=True))

    def hold_answer(self, matching: str, times: int = 1) -> Trouble:
        """The request passes and is executed; its answer is kept back until ``let_go()``."""
        return self._add(self.answers, Trouble(matching.encode(), times=times, held=True))

    def delay_answer(self, matching: str, delay: float, times: int = 1, every: int = 1) -> Trouble:
        """The same for ``delay`` seconds."""
        return self._add(self.answers, Trouble(matching.encode(), times=times, every=every, delay=delay))

    def lose_answer(self, matching: str, times: int = 1, every: int = 1) -> Trouble:
        """The request passes and is executed; its answer is lost and the connection cut."""
        return self._add(self.answers, Trouble(matching.encode(), times=times, every=every, lost=True))

    def tear_answer(self, matching: str, times: int = 1, every: int = 1) -> Trouble:
        """The same, but the first half of the answer arrives."""
        return self._add(self.answers, Trouble(matching.encode(), times=times, every=every, torn=True))

    def delay_message(self, matching: str, delay: float, times: int = 1) -> Trouble:
        """What the server sends and contains ``matching`` comes late by ``delay`` seconds."""
        return self._add(self.messages, Trouble(matching.encode(), times=times, delay=delay))

    def hold_message(self, matching: str, times: int = 1) -> Trouble:
        """What the server sends and contains ``matching`` is kept back until ``let_go()``."""
        return self._add(self.messages, Trouble(matching.encode(), times=times, held=True))

    def swallow_message(self, matching: str, times: int = 1) -> Trouble:
        """What the server sends and contains ``matching`` never arrives, and nothing tells that."""
        return self._add(self.messages, Trouble(matching.encode(), times=times, swallowed=True))

    def partition(self) -> None:
        """Nothing comes through any more, and nobody is told, until :meth:`heal`; then all of it arrives."""
        self.road.clear()

    def heal(self) -> None:
        self.road.set()

    def cut(self, *sources: str) -> None:
        """Cut every connection, or only those from these addresses, and take no new ones until :meth:`mend`."""
        self.banned.update(sources)
        self.refusing = self.refusing or not sources
        with self._mutex:
            links = list(self.links)
        for link in links:
            if self._refuses(link.source):
                link.cut()

    def mend(self) -> None:
        self.banned.clear()
        self.refusing = False

    def _refuses(self, source: str) -> bool:
        return self.refusing or source in self.banned

    def find(self, troubles: list[Trouble], data: bytes) -> Trouble | None:
        with self._mutex:
            for trouble in troubles:
                if trouble.met < trouble.times and trouble.matching in data:
                    trouble.seen += 1
                    if trouble.seen % trouble.every == 0:
                        trouble.met += 1
                        return trouble
        return None

    def close(self) -> None:
        for trouble in (*self.requests, *self.answers, *self.messages):
            trouble.let_go()
        self.heal()
        self._door.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._door.close()
        self.cut()
        for link in self.links:
            for thread in link.threads:
                thread.join()

    def _add(self, troubles: list[Trouble], trouble: Trouble) -> Trouble:
        with self._mutex:
            troubles.append(trouble)
        return trouble

    def _accept(self) -> None:
        while True:
            try:
                down, (source, _) = self._door.accept()
            except OSError:
                return
            if self._refuses(source):
                self.refused += 1
                down.close()
                continue
            try:
                up = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                down.close()
                continue
            for end in (down, up):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._mutex:  # before it carries anything, or a cut would miss it
                link = _Link(self, down, up, source)
                self.links.append(link)
            if self._refuses(source):
                link.cut()


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """A proxy before the server on ``port``, for the time of a block."""
    running = Proxy(port)
    try:
        yield running
    finally:
        running.close()
