"""Records every command that a server runs, including those inside scripts, with MONITOR."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import NamedTuple

import redis

from redisserver import RedisServer
from tests.inside import exchange_by

from .actors import GENEROUS

_LINE = re.compile(r"\S+ \[\d+ (.*?)\] (\".*)")
# Valkey does not escape the quotes within a word
_WORD = re.compile(r'"((?:[^"\\]|\\.|"(?! "|\s*$))*)"')


class Seen(NamedTuple):
    """One command; ``words`` as MONITOR writes them, unusual characters escaped."""

    source: str  # "lua" for those of scripts, else an address
    words: list[str]

    @property
    def name(self) -> str:
        return self.words[0].lower()


class Monitor:
    """Records what happens on the server from now on."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=GENEROUS)
        self._lines = self._socket.makefile("rb")
        self._socket.sendall(b"MONITOR\r\n")
        assert self._lines.readline() == b"+OK\r\n"

    def seen(self) -> Iterator[Seen]:
        """What has happened since the last call, in order; the commands of a script follow the call of the script."""
        with self._server.client() as client:
            client.echo("the end")
        for line in iter(self._lines.readline, b""):
            found = _LINE.match(line.decode("latin-1"))
            assert found, line
            seen = Seen(found[1], _WORD.findall(found[2]))
            if seen.words == ["ECHO", "the end"]:
                return
            yield seen

    def scripts(self) -> Iterator[tuple[Seen, list[Seen]]]:
        """Each script call since the last call, with the commands that the script ran."""
        call: Seen | None = None
        inner: list[Seen] = []
        for seen in self.seen():
            if seen.source == "lua":
                inner.append(seen)
                continue
            if call:
                yield call, inner
            call, inner = (seen if seen.name in ("evalsha", "eval") else None), []
        if call:
            yield call, inner

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


class Touched:
    """Which keys commands touch, according to the server."""

    def __init__(self, server: RedisServer) -> None:
        self._connection = redis.Connection(port=server.port, protocol=2)
        self._places: dict[str, tuple[int, int, int]] = {}

    def by(self, seen: Seen) -> set[str]:
        if seen.name not in self._places:
            ((about,),) = exchange_by(self._connection, [("COMMAND", "INFO", seen.name)])
            flags, *places = about[2:6]
            assert b"movablekeys" not in flags
            self._places[seen.name] = places[0], places[1], places[2]
        first, last, step = self._places[seen.name]
        words = seen.words
        return set(words[first : len(words) + last + 1 if last < 0 else last + 1 : step]) if first else set()

    def close(self) -> None:
        self._connection.disconnect()
