"""The scripts of the last release, for tests in which processes of two versions share their locks.

``released.json`` has the files of ``lua/``. ``python -m tests.protocol.released`` writes it, right after a release.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import django_redislock
from django_redislock.store import scripts
from django_redislock.store.scripts import GROUPS, Script
from django_redislock.store.wire import Command

FILE = Path(__file__).with_name("released.json")
LUA = Path(str(files(scripts.__package__) / "lua"))

command_of = Script.command  # whatever run_released() puts in its place

Read = Callable[[str], str]
Names = tuple[str, str]  # of a script, and of the kind of storage it works on


@cache
def released() -> dict[str, Any]:
    """``version``, and ``files``: texts by path."""
    return json.loads(FILE.read_text())  # type: ignore[no-any-return]


def read_released(path: str) -> str:
    """The text of a file of ``lua/`` in the last release."""
    return str(released()["files"][path])


def make_scripts(read: Read) -> dict[Names, Script]:
    """All scripts whose files ``read`` returns."""
    made: dict[Names, Script] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "_text", read)
        for name in sorted(file.stem for file in LUA.glob("*.lua")):
            for stored in GROUPS:
                try:
                    made[name, stored] = Script(name, stored)
                except (KeyError, OSError, ValueError):
                    # not every script exists for each kind: locks stored as keys have no members to check out, for
                    # example
                    pass
    return made


def translate(now: Script, then: Script, keys: Sequence[str], args: Sequence[Any]) -> Command:
    """Translate a call of the current script into one of the released script, whose keys and arguments may be in
    another order."""
    named_keys, named_args = dict(zip(now.keys, keys, strict=False)), dict(zip(now.args, args, strict=False))
    return command_of(
        then,
        [named_keys[name] for name in then.keys if name in named_keys],
        [*(named_args[name] for name in then.args if name in named_args), *args[len(now.args) :]],
    )


def translator(now: Read, then: Read) -> Callable[[Command], Command]:
    """Translates calls of all scripts in ``now`` into those of ``then``."""
    before, after = make_scripts(now), make_scripts(then)
    known = {script.sha: (script, after[names]) for names, script in before.items() if names in after}

    def translated(command: Command) -> Command:
        if command[0] != "EVALSHA" or command[1] not in known:
            return command
        first = 3 + int(command[2])
        return translate(*known[command[1]], command[3:first], command[first:])

    return translated


def run_released() -> None:
    """From now on, this process runs the scripts of the last release."""
    translated = translator(scripts._text, read_released)

    def command(self: Script, keys: Sequence[str], args: Sequence[Any]) -> Command:
        return translated(command_of(self, keys, args))

    Script.command = command  # type: ignore[method-assign]


def main() -> None:
    texts = {str(file.relative_to(LUA)): file.read_text() for file in sorted(LUA.rglob("*.lua"))}
    FILE.write_text(json.dumps({"version": django_redislock.__version__, "files": texts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
