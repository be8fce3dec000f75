"""Loads the Lua scripts.

A script is a file in ``lua/``. Its header names what it is called with, and its text uses these names: ``KEYS.queue``
becomes ``KEYS[2]``. ``--#include name`` brings in what follows ``--#piece name`` in a file of ``lua/pieces/``, and only
where it is needed: each function that a script makes costs time.

A script on one lock exists three times, as locks are stored in three ways (docs/protocol.rst): ``key``, ``member`` and
``permits``. ``@lock`` in the header stands for the keys of that way, and ``--#include @lock`` for a piece such as
``lock_key``. What only some of the three have (``release_fast_key``) is left out for the others. A piece is brought in
once, where it is first asked for; inside an ``if``, it is there for that block alone.

Parts of a script that keep a rule of docs/protocol.rst have its name, so that tests can leave the rule out and see what
breaks: ``--@name`` at the end of a line, or ``--[[@name]]text--[[@or]]instead--[[@]]`` within one. Nothing of that is
sent to Redis.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import Any

from django.utils.functional import cached_property
from redis.exceptions import NoScriptError, ResponseError

from .wire import Command

# what @lock (or @pool) in a header stands for, by the way in which the lock is stored
KEYS_OF_LOCK = {
    "key": ["lock"],
    "member": ["members", "fresh", "free", "held", "busy", "took", "wanted", "line", "line_waiters"],
    "permits": ["permits", "ends"],
}

# what Redis says to a user without the right to it, or where it was renamed away
_NO_EVALSHA = re.compile("(?i)(run the|unknown command) ['`]evalsha['`]")

# the names of rules, and what stands there instead of a rule that is left out
_MARKS = re.compile(r"--\[\[@or\]\].*?--\[\[@\]\]|--\[\[@[\w-]*\]\]| *--@[\w-]+$", re.M)

_PIECES = ("lock", "key", "permits", "queue", "pool")  # files
_PIECE = re.compile(r"(?m)^--#piece (\w+)\n")

_by_sha: dict[str, Script] = {}


@dataclass(eq=False)
class Script:
    """One Lua script, put together when it is first called. ``stored``: how the locks that it works on are stored."""

    name: str
    stored: str = "key"

    @cached_property
    def source(self) -> str:
        return assemble(self.name, self.stored)

    @cached_property
    def sha(self) -> str:
        """The hash of its text, by which it is known, here and in Redis."""
        sha = sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        _by_sha[sha] = self
        return sha

    def command(self, keys: Sequence[str], args: Sequence[Any]) -> Command:
        """The command that calls it by its hash."""
        return ("EVALSHA", self.sha, str(len(keys)), *keys, *args)


def wants_source(command: Command, answer: object) -> bool:
    """Return whether the server refuses a call by hash: it does not know the script, or allows no EVALSHA."""
    return isinstance(answer, NoScriptError) or (
        isinstance(answer, ResponseError) and command[0] == "EVALSHA" and _NO_EVALSHA.search(str(answer)) is not None
    )


def with_source(command: Command) -> Command:
    """The same call with the script's text, which also loads it."""
    return ("EVAL", _by_sha[command[1]].source, *command[2:])


def keys_of(command: Command) -> Sequence[str]:
    """The keys that a command touches."""
    return command[3 : 3 + int(command[2])] if command[0] in ("EVALSHA", "EVAL") else command[1:2]


def assemble(name: str, stored: str) -> str:
    """The text of a script as it is sent to Redis."""
    text = _text(f"{name}.lua")
    keys = [key for word in _header(text, "KEYS") for key in (KEYS_OF_LOCK[stored] if word[0] == "@" else [word])]
    names = {"KEYS": keys, "ARGV": [word.removesuffix("...") for word in _header(text, "ARGV")]}

    def index(found: re.Match[str]) -> str:
        array, word = found.groups()
        return f"{array}[{names[array].index(word) + 1}]"

    try:
        source = re.sub(r"\b(KEYS|ARGV)\.(\w+)", index, _MARKS.sub("", _include(text, stored, _pieces())))
    except ValueError:
        raise ValueError(f"The script {name} ({stored}) uses a name that its header does not have") from None
    # without the remaining comments, which would be sent and hashed for nothing
    return re.sub(r"(?m)^ *--.*\n", "", source)


def _header(text: str, array: str) -> list[str]:
    found = re.search(rf"(?m)^-- {array} +(.*)$", text)
    return found[1].split() if found else []


def _include(text: str, stored: str, pieces: dict[str, str]) -> str:
    """``text`` with its pieces, each where it is first asked for."""

    def piece(found: re.Match[str]) -> str:
        name = f"{found[2]}_{stored}" if found[1] else found[2]
        if found[1] and name not in pieces and any(f"{found[2]}_{each}" in pieces for each in KEYS_OF_LOCK):
            return ""
        text, pieces[name] = pieces[name], ""
        return _include(text, stored, pieces)

    return re.sub(r"(?m)^--#include (@?)(\w+)\n", piece, text)


def _pieces() -> dict[str, str]:
    """The text of each piece, by its name."""
    pieces: dict[str, str] = {}
    for file in _PIECES:
        _, *parts = _PIECE.split(_text(f"pieces/{file}.lua"))
        pieces.update(zip(parts[::2], parts[1::2], strict=True))
    return pieces


_LUA = Path(__file__).parent / "lua"
# the text of each file, read now: later, it may be that of another version, or a test of the site may fake files
_text = {file.relative_to(_LUA).as_posix(): file.read_text("utf-8") for file in _LUA.rglob("*.lua")}.__getitem__
