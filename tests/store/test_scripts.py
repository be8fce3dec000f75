"""The texts of the Lua scripts, and how they are put together."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest

from django_redislock import counter, pool, values  # noqa: F401 (load what has scripts)
from django_redislock.store import calls, pool_calls, probe, scripts
from django_redislock.store.scripts import GROUPS, Script, keys_of, with_source

LUA = files("django_redislock.store") / "lua"
TEXTS = {path.name.removesuffix(".lua"): path.read_text("utf-8") for path in LUA.iterdir() if path.is_file()}
PIECES = {path.name.removesuffix(".lua"): path.read_text("utf-8") for path in (LUA / "pieces").iterdir()}

PAIRS = [calls._ACQUIRE, calls._RELEASE, calls._RENEW, calls._FORCE, calls._INFO, calls._SUSPEND]
ALONE = [calls._CHECKOUT, calls._LEAVE, pool_calls._MEMBERS, values._COMPARE, counter._COUNTER, probe._PROBE]
SCRIPTS = {f"{script.name} {stored}": script for pair in PAIRS for stored, script in pair.items()}
SCRIPTS |= {script.name: script for script in ALONE}
EVERY_SCRIPT = pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)

# fakeredis has these, and no cmsgpack, bit or struct
PROVIDED = "KEYS ARGV redis string table math cjson tonumber tostring type unpack pairs ipairs"
KEYWORDS = "and break do else elseif end false for function if in local nil not or repeat return then true until while"


def code_of(source: str) -> str:
    """The script without comments and texts."""
    return re.sub(r"'[^'\n]*'", "''", re.sub(r"--.*", "", source))


def test_every_file_is_a_script_that_is_used_or_a_piece_that_is_included() -> None:
    assert set(TEXTS) == {script.name for script in SCRIPTS.values()}
    included = re.findall(r"(?m)^--#include (@?)(\w+)$", "\n".join([*TEXTS.values(), *PIECES.values()]))
    assert set(PIECES) == {name + stored for at, name in included for stored in (("_key", "_member") if at else ("",))}


@pytest.mark.parametrize("name", TEXTS)
def test_a_script_begins_with_its_keys_arguments_and_answer(name: str) -> None:
    head = re.match(r"(--(?!#).*\n)+", TEXTS[name])
    assert head is not None
    lines = head.group().splitlines()
    assert lines[0].startswith(f"-- {name}: ")
    words = [line.split()[1] for line in lines if re.match(r"-- (KEYS|ARGV|returns) ", line)]
    assert words == ["KEYS", "ARGV", "returns"]


@pytest.mark.parametrize("name", PIECES)
def test_a_piece_says_that_it_is_one(name: str) -> None:
    assert PIECES[name].startswith("-- (piece) ")


@pytest.mark.parametrize("name", TEXTS)
def test_a_script_uses_every_key_and_argument_that_its_header_names(name: str) -> None:
    """In one of its variants at least. What belongs to a lock or a pool comes as a whole, used or not."""
    for array, words in re.findall(r"(?m)^-- (KEYS|ARGV) +(.*)$", TEXTS[name]):
        named = {word.removesuffix("...") for word in words.split() if not word.startswith("@")}
        used: set[str] = set()
        for script in SCRIPTS.values():
            if script.name == name:
                stores = script.keys if array == "KEYS" else script.args
                numbers = re.findall(rf"\b{array}\[(\d+)\]", script.source)
                loops = re.findall(rf"(?m)^for i = (\d+), .*#{array}", script.source)  # through all from this one on
                used |= {stores[int(number) - 1] for number in (*numbers, *loops)}
        if (name, array) == ("probe", "KEYS"):
            used.add("fence")  # which is not touched: every script has a key, see test_declared_keys.py
        assert named <= used


@EVERY_SCRIPT
def test_a_script_contains_the_pieces_that_it_includes(script: Script) -> None:
    assert "#include" not in script.source
    assert "--" not in code_of(script.source)
    assert not re.search(r"\b(KEYS|ARGV)\.\w", script.source)
    assert not re.search(r"(?m)^ *--", script.source)


@EVERY_SCRIPT
def test_a_script_includes_what_it_calls_and_each_piece_once(script: Script) -> None:
    functions = re.findall(r"(?m)^local function (\w+)", script.source)
    assert len(functions) == len(set(functions))
    parameters = set(re.findall(r"\w+", " ".join(re.findall(r"function \w+\(([^)]*)\)", script.source))))
    for text in PIECES.values():
        for defined in re.findall(r"(?m)^local function (\w+)", text):
            if re.search(rf"(?<!function )(?<![\w.]){defined}\(", code_of(script.source)):
                assert defined in functions or defined in parameters


@EVERY_SCRIPT
def test_a_script_knows_no_globals_but_those_that_every_server_provides(script: Script) -> None:
    """Nor sets any: a server would refuse it in the middle of its work."""
    code = code_of(script.source)
    known = {*KEYWORDS.split(), *PROVIDED.split()}
    for pattern in (r"local function (\w+)", r"local ((?!function)\w+(?:, *\w+)*)", r"for (\w+(?:, *\w+)*)"):
        for names in re.findall(pattern, code):
            known.update(re.split(r", *", names))
    for names in re.findall(r"function(?: \w+)?\(([^)]*)\)", code):
        known.update(re.split(r", *", names))
    assert set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", code)) <= known


def test_every_script_has_an_identity_of_its_own() -> None:
    assert len({script.sha for script in SCRIPTS.values()}) == len(SCRIPTS)
    for script in SCRIPTS.values():
        command = script.command(("k1", "k2"), ("1", "b"))
        assert command == ("EVALSHA", script.sha, "2", "k1", "k2", "1", "b")
        assert with_source(command) == ("EVAL", script.source, "2", "k1", "k2", "1", "b")
        assert keys_of(command) == keys_of(with_source(command)) == ("k1", "k2")
    assert keys_of(("GET", "k1")) == ("k1",)


@pytest.mark.parametrize("stored", GROUPS)
def test_names_in_the_text_stand_for_positions_in_the_call(stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: dict[str, Any] = {
        "made.lua": "-- made: up\n-- KEYS @lock index\n-- ARGV name more...\n--#include @kind\n--#include @kind\n"
        "return {KEYS.index, ARGV.more, kind}\n",
        "pieces/kind_key.lua": "-- (piece) this\nlocal kind = KEYS.lock\n",
        "pieces/kind_member.lua": "-- (piece) that\nlocal kind = KEYS.held\n",
    }
    monkeypatch.setattr(scripts, "_text", texts.__getitem__)
    keys, args, source = scripts.assemble("made", stored)
    assert (keys[-1], args) == ("index", ("name", "more"))
    index = {"key": 1, "member": 4}[stored]
    assert source == f"local kind = KEYS[{index}]\nreturn {{KEYS[{len(keys)}], ARGV[2], kind}}\n"


@pytest.mark.parametrize("name", ["KEYS.queue", "ARGV.ttl"])
def test_a_name_that_the_header_does_not_have_is_a_clear_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"-- made: up\n-- KEYS index\n-- ARGV name\nreturn {name}\n"
    monkeypatch.setattr(scripts, "_text", lambda path: text)
    with pytest.raises(ValueError, match=r"The script made \(key\) uses a name that its header does not have"):
        scripts.assemble("made", "key")
