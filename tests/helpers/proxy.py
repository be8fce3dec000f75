"""A TCP proxy between the locks and Redis that behaves as badly as a network can."""

import socket
import threading
import time
from contextlib import AbstractContextManager, closing, suppress
from functools import partialmethod
from itertools import chain


class Trouble:
    """What happens to the next ``times`` messages that contain ``matching`` (each ``every``-th), in one direction: they
    come late, are "held", or "lost" (and the connection is cut), "torn" (the same, but the first half arrives), or
    "swallowed" (nothing tells that). ``caught`` is set when the first has met it, ``over`` when the last one's fate is
    sealed: a held or late request was answered by the server, a reply was passed on or thrown away."""

    def __init__(self, how: str, matching: str, times: int, every: int, delay: float) -> None:
        self.how, self.matching = how, matching.encode()
        self.times, self.every, self.delay = times, every, delay
        self.seen = self.met = 0
        self.caught, self.over, self._gate = threading.Event(), threading.Event(), threading.Event()
        self.let_go = self._gate.set  # lets held messages pass
        if how != "held":
            self.let_go()

    def arrive(self) -> None:
        self.let_go()
        assert self.over.wait(30)

    def end(self) -> None:
        self.times = 0
        self.let_go()

    def suffer(self) -> None:
        self.caught.set()
        time.sleep(self.delay)
        self._gate.wait()

    def done(self) -> None:
        if self.met >= self.times:
            self.over.set()


class _Link:
    """One connection through the proxy, with a thread for each direction."""

    def __init__(self, proxy: "Proxy", down: socket.socket, up: socket.socket, source: str, port: int) -> None:
        self.proxy, self.source = proxy, source
        self.down, self.up = down, up
        self.port = port  # of the client
        self.asked: list[Trouble] = []  # requests whose answer somebody waits for
        self.answers: list[Trouble] = []  # troubles of the answer to the request just sent
        self.threads = [threading.Thread(target=way, daemon=True) for way in (self._replies, self._requests)]
        for thread in self.threads:
            thread.start()

    def _requests(self) -> None:
        try:
            while data := self.down.recv(1 << 20):
                asked = self.proxy.find("requests", data)
                for trouble in asked:
                    trouble.suffer()
                self.asked += asked
                self.answers += self.proxy.find("answers", data)
                self.proxy.road.wait()
                self.up.sendall(data)
            if not self.asked:  # else its sender gave up, but the network still carries it, and the server answers
                self.up.shutdown(socket.SHUT_WR)
        except OSError:
            self.cut()
        self.threads[0].join()
        self.down.close()  # minutes of faults cut thousands
        self.up.close()

    def _replies(self) -> None:
        fates: set[str] = set()
        with suppress(OSError):
            while not fates & {"lost", "torn"} and (data := self.up.recv(1 << 20)):
                for trouble in self.asked:
                    trouble.done()
                troubles, self.answers = self.answers, []
                troubles += self.proxy.find("messages", data)
                for trouble in troubles:
                    trouble.suffer()
                self.proxy.road.wait()
                fates = {trouble.how for trouble in troubles}
                if "torn" in fates:
                    self.down.sendall(data[: len(data) // 2])
                if fates <= {"late", "held"}:
                    self.down.sendall(data)
                for trouble in troubles:  # before a cut tells its sender: who has asked again by then finds it over
                    trouble.done()
        self.cut()

    def cut(self) -> None:
        for end in (self.down, self.up):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Forwards connections to the port ``target``; see the methods for what it does to them."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.troubles: dict[str, list[Trouble]] = {"requests": [], "answers": [], "messages": []}
        self.refusing = False
        self.banned: set[str] = set()  # addresses
        self.refused = 0  # connections
        self.links: list[_Link] = []
        self.road = threading.Event()
        # nothing comes through any more, and nobody is told, until heal(); then all of it arrives
        self.partition, self.heal = self.road.clear, self.road.set
        self.heal()
        self._mutex = threading.Lock()
        self._door = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._door.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _add(
        self, where: str, how: str, matching: str, delay: float = 0.0, *, times: int = 1, every: int = 1
    ) -> Trouble:
        trouble = Trouble(how, matching, times, every, delay)
        with self._mutex:
            self.troubles[where].append(trouble)
        return trouble

    # they reach the server even when their sender has given up by then
    hold_request = partialmethod(_add, "requests", "held")
    # the request passes and is executed
    hold_answer = partialmethod(_add, "answers", "held")
    delay_answer = partialmethod(_add, "answers", "late")
    lose_answer = partialmethod(_add, "answers", "lost")
    tear_answer = partialmethod(_add, "answers", "torn")
    # whatever the server sends
    delay_message = partialmethod(_add, "messages", "late")
    hold_message = partialmethod(_add, "messages", "held")
    swallow_message = partialmethod(_add, "messages", "swallowed")

    def find(self, where: str, data: bytes) -> list[Trouble]:
        """The first that this message meets, if any."""
        with self._mutex:
            for trouble in self.troubles[where]:
                if trouble.met < trouble.times and trouble.matching in data:
                    trouble.seen += 1
                    if trouble.seen % trouble.every == 0:
                        trouble.met += 1
                        return [trouble]
        return []

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

    def close(self) -> None:
        for trouble in chain(*self.troubles.values()):
            trouble.let_go()
        self.heal()
        self._door.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._door.close()
        self.cut()
        for thread in chain(*(link.threads for link in self.links)):
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                down, (source, port) = self._door.accept()
                try:
                    if self._refuses(source):
                        self.refused += 1
                        raise ConnectionRefusedError
                    up = socket.create_connection(("127.0.0.1", self.target))
                    for end in (down, up):
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                except OSError:
                    down.close()
                    continue
                with self._mutex:  # before it carries anything, or a cut would miss it
                    link = _Link(self, down, up, source, port)
                    self.links.append(link)
                if self._refuses(source):
                    link.cut()


def proxy(port: int) -> AbstractContextManager[Proxy]:
    return closing(Proxy(port))
