"""README and the documentation: their code, settings, links and lists agree with the package."""

import ast
import asyncio
import builtins
import inspect
import re
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from textwrap import dedent, indent
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from django.core.management import call_command, load_command_class
from django.core.management.base import BaseCommand
from django.db import models
from django.test import TestCase
from django.test.utils import isolate_apps

import django_redislock
from django_redislock import list_locks
from django_redislock.testing import OwnLocksMixin
from tests import inside
from tests.checks.conftest import check
from tests.helpers.docs import PAGES, README, ROOT, blocks, page

TEXTS = [README, *PAGES]

each_text = pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)


def as_function(block: str) -> str:
    """The block as a function, since it may be taken from a view or a coroutine, and so return or await."""
    function = f"def block():\n{indent(block, '    ')}"
    try:
        compile(function, "block", "exec")
        return function
    except SyntaxError:
        return f"async {function}"


def options_of(name: str) -> set[str]:
    takes = getattr(django_redislock, name)
    if name not in ("Lock", "FairLock", "LockSet", "locked", "locked_view", "locked_atomic"):
        return {*inspect.signature(takes).parameters}
    with pytest.raises(TypeError, match="The options are: ") as caught:
        takes("a", no_such_option=1)
    return {"name", *re.findall(r"\w+", str(caught.value).partition("The options are: ")[2])}


@each_text
def test_all_code_compiles_and_its_imports_and_options_exist(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(blocks(text)) == text.count(".. code-block:: python")
    for part in (part for block in blocks(text) for part in ast.walk(ast.parse(as_function(block)))):
        if isinstance(part, ast.ImportFrom) and (part.module or "").startswith("django_redislock"):
            exec(ast.unparse(part), {})
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in django_redislock.__all__:
            given = {keyword.arg for keyword in part.keywords}
            assert given <= options_of(part.func.id), ast.unparse(part)


class Names(dict[str, Any]):
    """Names that a block may use: those of the package, and any other, which stands for the site's own code."""

    def __missing__(self, name: str) -> Any:
        if name in OWN or hasattr(builtins, name):
            raise KeyError(name)
        return getattr(django_redislock, name) if name in django_redislock.__all__ else MagicMock(name=name)


# where anything will not do
OWN = {"models": models, "batches": [], "build_report": str, "abuild_report": AsyncMock(return_value="a report")}
OWN |= {"cache": MagicMock(**{"lock.return_value.name": "stock:7"}), "connection": SimpleNamespace(schema_name="a")}
OWN |= {"TestCase": TestCase, "OwnLocksMixin": OwnLocksMixin, "__name__": "django.contrib.auth.models"}
# a view beside a worker, and a part of a function; the tutorial's are run by tests/project/test_sites.py
EVERY = [
    pytest.param(path, block, id=f"{path.stem}-{number}")
    for path in TEXTS
    for number, block in enumerate(blocks(path.read_text("utf-8")))
    if (path.stem, number) not in (("functions", 3), ("values", 0)) and path.stem != "tutorial"
]


@pytest.mark.parametrize(("path", "block"), EVERY)
@isolate_apps("django.contrib.auth")
def test_every_block_runs(path: Path, block: str, transactional_db: None, fresh: None) -> None:
    """Statement by statement, as some await. What a block only defines is not called."""
    names, known = Names(), dict(OWN)  # bodies of classes and functions look into the second one alone
    for statement in ast.parse(block).body:
        code = compile(ast.Module([statement], []), str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        awaits = eval(code, known, names)
        known.update(names)
        if awaits is not None:
            asyncio.run(awaits)


def test_the_command_of_the_page_of_commands_runs_as_it_is_written(fresh: None) -> None:
    names: dict[str, Any] = {"rows": [1]}
    exec(blocks(page("commands"))[0], names)
    call_command(names["Command"](), "2024")
    assert [lock.name for lock in list_locks()] == ["report:2024"]  # kept for lock_at_least


def assigned(block: str, name: str) -> ast.expr | None:
    for node in ast.parse(as_function(block)).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return node.value
    return None


@each_text
def test_all_settings_are_such_as_can_be_given(path: Path) -> None:
    text = path.read_text("utf-8")
    for block in blocks(text):
        value = assigned(block, "REDISLOCK")
        if value is not None:
            inside.settings(REDISLOCK=ast.literal_eval(value))
    for name, literal in re.findall(r'``(?:"|REDISLOCK\[")([A-Z_]+)"(?:: |\] = )(.*?)``', text):
        inside.settings(REDISLOCK={name: ast.literal_eval(literal)})
    assert {*re.findall(r'``REDISLOCK\["([A-Z_]+)"\]', text)} <= {*inside.settings()}


def settings_of(name: str) -> list[str]:
    """The code of a page, or of the README's first steps, that sets both."""
    if name != "README":
        return [block for block in blocks(page(name)) if assigned(block, "CACHES") and assigned(block, "REDISLOCK")]
    install = README.read_text("utf-8").partition("\nInstall\n")[2]
    return [dedent(found) for found in re.findall(r"\n    INSTALLED_APPS.*?\n(?=\S)", install, re.S)]


@pytest.mark.parametrize(("name", "number"), [("README", 1), ("install", 1), ("cluster", 2), ("tutorial", 1)])
def test_the_settings_of_caches_pass_all_checks(name: str, number: int, settings: Any) -> None:
    found = settings_of(name)
    assert len(found) == number
    for block in found:
        given: dict[str, Any] = {}
        exec(block, given)
        for key in {"CACHES", "REDISLOCK", "DJANGO_REDIS_CONNECTION_FACTORY"} & {*given}:
            setattr(settings, key, given[key])
        assert check() == []


def test_the_page_of_settings_has_all_of_them_with_their_defaults() -> None:
    value = assigned(blocks(page("settings"))[0], "REDISLOCK")
    assert value is not None
    told = inside.settings(REDISLOCK=ast.literal_eval(value))
    assert {ast.literal_eval(key) for key in value.keys} == {*told}  # type: ignore[attr-defined]
    assert {**told, "TTLS": {}} == inside.settings()  # which shows an example


def test_readme_is_short_and_leads_to_every_page() -> None:
    text = README.read_text("utf-8")
    assert text.count("\n") <= 200
    names = {path.stem for path in PAGES} - {"index", "api", "changelog"}
    assert names == {*re.findall(r"<docs/([\w-]+)\.rst>", text)}


def test_files_that_are_named_exist() -> None:
    for path in [*TEXTS, *ROOT.glob("*.rst")]:
        text = path.read_text("utf-8")
        named = re.findall(r"`((?:docs|tests|testproject|\.ci)/[\w./-]*)`", text)
        named += re.findall(r"<([\w./-]+\.\w+)>`__", text) if path.parent == ROOT else []
        assert [name for name in named if not (ROOT / name).exists() and "docs/_build" not in name] == [], path


def test_every_module_and_script_begins_with_what_it_is_for() -> None:
    source = Path(django_redislock.__file__).parent
    silent = ("__init__.py", "apps.py", "0001_initial.py")
    files = [path for path in source.rglob("*") if path.suffix in (".py", ".lua") and path.name not in silent]
    assert [path for path in files if not path.read_text("utf-8").startswith(('"""', "-- "))] == []


def test_what_is_decided_where_names_functions_and_pieces_that_exist() -> None:
    table = page("where-to-change-what").partition("The folders")[0]
    rows = re.findall(r"^\S.* ``([\w/]+\.(?:py|lua))`` +(``.*``)$", table, re.M)
    assert len(rows) == len(re.split(r"^=+  =.*$", table, flags=re.M)[1].split("\n")) - 2 > 20
    for path, names in rows:
        text = (Path(django_redislock.__file__).parent / path).read_text("utf-8")
        there = re.findall(r"^ *(?:async def|def|class|local function|--#piece) (\w+)", text, re.M)
        assert {*re.findall(r"``(\w+)``", names)} <= {*there}, path


def promises() -> list[dict[str, str]]:
    """The lists of docs/promises.rst: for sentences, faults, options and settings, each with its tests."""
    entry = re.compile(r"^(\S.*)\n((?: {4}.+\n)+)", re.M)
    return [dict(entry.findall(part)) for part in re.split(r"^-+$", page("promises"), flags=re.M)[1:]]


def test_the_table_of_promises_has_every_sentence_fault_option_and_setting() -> None:
    said, faults, options, settings = promises()
    text = re.sub(r"^\S.*\n[=-]+$", "* ", page("guarantees"), flags=re.M)  # headings
    bullets = [" ".join(bullet.split()) for bullet in re.split(r"^ *\* ", text, flags=re.M) if bullet.strip()]
    sentences = [re.split(r"(?<=[.*)]) (?=[A-Z`(])", bullet) for bullet in bullets]
    terms = tuple(term.strip('"') for term in said)
    begun = {term: [one for bullet in sentences for one in bullet if one.startswith(term)] for term in terms}
    assert [term for term, found in begun.items() if len(found) != 1] == []
    # the sentences after the first one may belong to the entry before them
    assert [first for first, *_ in sentences if not first.startswith(terms)] == []
    assert [*faults] == ['"each row"']
    assert {*options} == {f"``{name}``" for name in options_of("Lock") - {"name"}}
    assert [*settings] == [f"``{name}``" for name in inside.settings()]


def test_the_tests_in_the_table_of_promises_exist() -> None:
    for term, tests in [item for entries in promises() for item in entries.items()]:
        lines = [re.fullmatch(r" {4}``([\w/]+\.py)::(test_\w+)``", line) for line in tests.splitlines()]
        assert all(lines) or re.fullmatch(r" {4}no test \(.+\)\n", tests), term
        for path, name in [line.groups() for line in lines if line]:
            file = ROOT / "tests" / path
            tree = ast.parse(file.read_text("utf-8") if file.exists() else "")
            assert name in {getattr(node, "name", "") for node in tree.body}, (term, path, name)


def test_the_pages_of_public_names_and_errors_have_every_one() -> None:
    listed = re.findall(r"^\.\. (?:autoclass|autofunction|autoexception|data):: (\w+)$", page("api"), re.M)
    assert sorted(listed) == sorted(django_redislock.__all__)
    public = {name: getattr(django_redislock, name) for name in listed}
    errors = {name for name, thing in public.items() if isinstance(thing, type) and issubclass(thing, Exception)}
    assert errors <= {*re.findall(r"``(\w+)``", page("errors"))}


def test_a_public_name_is_imported_when_it_is_asked_for() -> None:
    assert {*django_redislock.__all__} < {*dir(django_redislock)}
    with pytest.raises(AttributeError, match="module 'django_redislock' has no attribute 'Lok'"):
        django_redislock.Lok  # type: ignore[attr-defined]  # noqa: B018
    code = """if True:
        import sys, django_redislock
        assert "django_redislock.exceptions" in sys.modules and "django_redislock.engine" not in sys.modules
        from django.conf import settings
        settings.configure()
        from django_redislock import Lock
        assert "django_redislock.pool" not in sys.modules
        for name in django_redislock.__all__:
            thing = getattr(django_redislock, name)
            assert thing.__module__ not in (None, "django_redislock") and type(thing) is not type(sys), name
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_of_the_command_has_every_subcommand_and_option() -> None:
    parser = load_command_class("django_redislock", "redislocks").create_parser("manage.py", "redislocks")
    subparsers: dict[str, ArgumentParser] = parser._subparsers._group_actions[0].choices  # type: ignore[assignment, union-attr]
    common = {name for action in BaseCommand().create_parser("", "")._actions for name in action.option_strings}
    there = {
        (option, name)
        for name, subparser in subparsers.items()
        for action in subparser._actions
        for option in {*action.option_strings} - common
    }
    text = page("command")
    assert set(subparsers) == set(re.findall(r"^``([a-z]+) [^`]*`` ", text, re.M))
    told: set[tuple[str, str]] = set()
    for options, of in re.findall(r"^((?:``-[\w-]+``(?:, )?)+)  +(all but ``\w+``|``[\w ]+``)  ", text, re.M):
        names = {*re.findall(r"\w+", of)} - {"all", "but"}
        names = {*subparsers} - names if of.startswith("all") else names
        told |= {(option, name) for option in re.findall(r"``(-[\w-]+)``", options) for name in names}
    assert told == there
