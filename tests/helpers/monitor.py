"""Records every command that a server runs, including those inside scripts, with MONITOR."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import NamedTuple

from redisserver import RedisServer

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
        calls: list[tuple[Seen, list[Seen]]] = []
        for seen in self.seen():
            if seen.source == "lua":
                calls[-1][1].append(seen)
            else:
                calls.append((seen, []))
        return (call for call in calls if call[0].name in ("evalsha", "eval"))

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


class Touched:
    """Which keys (and channels of shards) commands touch, according to the server."""

    def __init__(self, server: RedisServer) -> None:
        self._client = server.client()
        self.close = self._client.close
        self._places: dict[str, tuple[int, int, int]] = {}

    def by(self, seen: Seen) -> set[str]:
        words, name = seen.words, seen.name
        if name not in self._places:
            about = self._client.execute_command("COMMAND", "INFO", name)[name]
            assert "movablekeys" not in about["flags"]
            self._places[name] = about["first_key_pos"], about["last_key_pos"], about["step_count"]
        first, last, step = self._places[name]
        return set(words[first : len(words) + last + 1 if last < 0 else last + 1 : step]) if first else set()
