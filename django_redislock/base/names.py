"""Names of locks and of the members of pools: what they may be, and how values in them are quoted."""

from __future__ import annotations

import inspect
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from enum import Enum
from fnmatch import translate
from functools import lru_cache
from hashlib import sha256
from numbers import Number
from typing import Any
from urllib.parse import unquote

from django.utils.crypto import salted_hmac

from .display import Secret, shown

MAX_NAME_BYTES = 512

_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]  # with _SURROGATES, what _FORBIDDEN finds
_SURROGATES = re.compile("[\ud800-\udfff]")
_SPACES = [code for code in range(0x3001) if chr(code).isspace()]  # all that there are
_NO_PREFIX = re.compile(rf"[{{}}\s]|{_FORBIDDEN.pattern}")
TOKEN = "[A-Za-z0-9_-]{22,128}"
_TOKEN = re.compile(TOKEN)
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]{6,}\b")

# The member alice of the pool accounts is the lock "pool:accounts:alice"; whoever wants any of them asks for
# "pool:accounts:", which names no lock.
_POOL = "pool:"
_MEMBER = re.compile(rf"({_POOL}[^:]+:)([^:]+)")
_ANY_MEMBER = re.compile(rf"{_POOL}[^:]+:")

SEMAPHORE = "semaphore:"  # before the name of one, among those of locks


def refuse_semaphore(name: str, *, in_set: bool = False) -> None:
    """Raise ValueError where a lock is wanted, and this is the name of a semaphore. ``in_set``: one of several."""
    if name.startswith(SEMAPHORE):
        known = f"Semaphore({name.removeprefix(SEMAPHORE)!r}, limit=...)"
        if in_set:
            raise ValueError(f"{name!r} is a semaphore, and a set has locks alone: acquire {known} around the set.")
        raise ValueError(f"{name!r} is a semaphore, not a lock: use {known}.")


def check_name(name: str, noun: str = "lock") -> str:
    """Return ``name`` when it can name a lock (or ``noun``), else raise ``TypeError`` or ``ValueError``."""
    if not isinstance(name, str):
        raise TypeError(f"A {noun}'s name must be a str, not {shown(name)} ({type(name).__name__}).")
    return _check_text(name if type(name) is str else exact(name), noun)


def exact(value: Any) -> Any:
    """Return ``value``; in place of a str of a class of its own, or of a number in an enum, the one that it equals.

    ``str()`` and f-strings make another text of a member of an enum, which differs between versions of Python.
    """
    kind = type(value)
    if issubclass(kind, str):
        return str.__str__(value)
    return value.value if issubclass(kind, Enum) and issubclass(kind, Number) else value


def text_of(value: Any, make: Callable[[Any], str] = str) -> str:
    """Return what ``make`` makes of ``value``. Raises TypeError where that would be another text in each process."""
    value = exact(value)
    text = make(value)
    _refuse_changing(value, text, set())
    return text


def _refuse_changing(value: Any, text: str | None, seen: set[int]) -> None:
    """Raise TypeError where ``value`` makes the ``text`` of a name differ; None: its ``repr()`` is part of that.

    Texts themselves are not looked at, nor those in lists: users write what they like.
    """
    if value is None or isinstance(value, (str, bytes, int, float)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (set, frozenset)):
        raise TypeError(f"The order of {shown(value)} differs from process to process. Use a sorted list instead")
    if isinstance(value, (list, tuple, dict)):
        for each in (*value, *value.values()) if isinstance(value, dict) else value:
            _refuse_changing(each, None, seen)
    elif inspect.isroutine(value) or _ADDRESS.search(repr(value) if text is None else text):
        raise TypeError(
            f"{shown(value)} has no text of its own, only its address, which differs from process to process. Use one "
            f"of its attributes; for the result of a call, call it, or give a function instead of the template"
        )


@lru_cache(maxsize=1024)
def _check_text(name: str, noun: str) -> str:
    if not name:
        raise ValueError(f"A {noun}'s name must not be empty: it has 1 to {MAX_NAME_BYTES} bytes.")
    if bad := _FORBIDDEN.search(name):
        raise ValueError(
            f"The {noun} name {name[:80]!r} contains {bad.group()!r}: control characters and lone surrogates are not "
            f"allowed. Use lock_name() to quote parts that come from users."
        )
    if (size := len(name.encode())) > MAX_NAME_BYTES:
        raise ValueError(f"The {noun} name {name[:80]!r}... has {size} bytes; at most {MAX_NAME_BYTES} are allowed.")
    if noun == "lock" and _ANY_MEMBER.fullmatch(name):
        raise ValueError(f"{name!r} is a pool, not a lock: LockPool.acquire() takes any of its members.")
    return name


def matcher(pattern: str) -> Callable[[str], object]:
    """Tells whether a name matches the shell-style ``pattern``."""
    if not isinstance(pattern, str):
        raise TypeError(f"A pattern of names must be a str, not {shown(pattern)}.")
    return re.compile(translate(pattern)).match


def is_name(text: str) -> bool:
    """Return whether ``text`` can name a lock."""
    try:
        _check_text(text, "lock")
    except ValueError:
        return False
    return True


def can_be_asked_for(text: str) -> bool:
    """Return whether ``text`` can be asked for: a lock by its name, or any member of a pool."""
    return is_name(text) or (_ANY_MEMBER.fullmatch(text) is not None and is_name(f"{text}1"))


def check_prefix(prefix: str, what: str) -> str:
    """Return ``prefix`` when the keys and channels of locks can begin with it, else raise ``ValueError``."""
    if _NO_PREFIX.search(prefix):
        raise ValueError(
            f"{what} must not contain braces (they decide the hash slot), whitespace, control characters or "
            f"surrogates: {shown(prefix)}."
        )
    return prefix


def check_token(token: str) -> Secret:
    """Return ``token`` when it is one, else raise ``ValueError``, which does not repeat it: it is a secret."""
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ValueError("A token must be a str of 22 to 128 characters from A-Z, a-z, 0-9, '_' and '-'.")
    return Secret(exact(token))


TOKEN_DIGEST = 22  # characters, for 128 bits


def token_digest(token: bytes) -> str:
    """By this, a token is recognised where it need not be learnt."""
    return urlsafe_b64encode(sha256(token).digest()).decode()[:TOKEN_DIGEST]


def _escape(sign: str) -> str:
    return "".join(f"%{byte:02X}" for byte in sign.encode(errors="surrogatepass"))


# for str.translate(), ten times as fast as a regular expression: users' texts may be long
_QUOTED = {code: _escape(chr(code)) for code in (*map(ord, ":%{}"), *_SPACES, *_CONTROLS)}
_UNFIT = {code: _escape(chr(code)) for code in (ord("%"), *_CONTROLS)}


def _quote(text: str, table: dict[int, str]) -> str:
    text = text.translate(table)
    return text if text.isascii() else _SURROGATES.sub(lambda found: _escape(found[0]), text)


def quote(value: object) -> str:
    """Percent-quote what could imitate a name's structure: ``:``, ``%``, braces, whitespace, control characters."""
    return _quote(text_of(value), _QUOTED)


def unquoted(text: str) -> str:
    """The inverse of :func:`quote`."""
    return unquote(text, errors="surrogatepass")


def lock_name(*parts: object) -> str:
    """Join ``parts`` with ``:`` into a lock's name, each part quoted, so that different parts never give the same name.

    >>> lock_name("order", 42, "a:b")
    'order:42:a%3Ab'

    A name that would be longer than 512 bytes is cut, and ends in ``%~`` and a hash (SHA-256) of all of it.
    """
    return capped_name(":".join(map(quote, parts)))


def lock_digest(value: object) -> str:
    """A digest of ``value`` (32 hexadecimal digits) for names and tokens of locks, in which secrets must not be read.

    In templates it is written ``{value:digest}``. It is keyed with Django's ``SECRET_KEY``, so it cannot be found by
    trying values; processes with different keys have different digests.
    """
    text = text_of(value).encode(errors="surrogatepass")
    return salted_hmac("django_redislock.digest", text, algorithm="sha256").hexdigest()[:32]


def capped_name(text: str) -> str:
    """``text`` as a name, cut and hashed if too long. Its values are quoted, so none contains ``%~``."""
    encoded = text.encode(errors="surrogatepass")
    return check_name(text if len(encoded) <= MAX_NAME_BYTES else f"{text[:80]}%~{sha256(encoded).hexdigest()}")


def fit_name(text: str, mark: str = "") -> str:
    """Any ``text`` as a lock's name: itself if it is one, else quoted behind ``%:``, cut and hashed if too long.

    With a ``mark`` it is always quoted, behind ``%mark:``. So is text that begins with ``%``, so that different pairs
    of text and mark never give the same name.
    """
    if text and not mark and text[0] != "%" and not text.startswith(SEMAPHORE) and is_name(text):
        return text
    return capped_name(f"%{quote(mark)}:{_quote(text, _UNFIT)}")


def pool_name(name: str) -> str:
    """The name under which any member of the pool ``name`` is asked for."""
    return f"{_POOL}{quote(name)}:"


def member_name(pool: str, key: str, noun: str = "member") -> str:
    """The name of a member's lock."""
    return check_name(f"{pool_name(pool)}{quote(key)}", noun)


def semaphore_name(name: str) -> str:
    """The semaphore ``name`` among the names of locks; it may be too long."""
    return name if name.startswith(SEMAPHORE) else f"{SEMAPHORE}{name}"


def split_member(name: str) -> tuple[str, str] | None:
    """The pool (as :func:`pool_name` has it) and the member (quoted) of a lock's name; None for other locks."""
    found = _MEMBER.fullmatch(name)
    return None if found is None else (found[1], found[2])


def slot_text(name: str) -> str:
    """Return what of ``name`` tells where it is kept on a cluster: a pool and its members are kept together."""
    found = _ANY_MEMBER.match(name)
    return name if found is None else found[0]


def known_as(name: str) -> tuple[str, str]:
    """``name`` in messages: ("lock", itself), ("semaphore", its name), or ("pool", its name) if any member will do."""
    if name.startswith(SEMAPHORE):
        return "semaphore", name.removeprefix(SEMAPHORE)
    if _ANY_MEMBER.fullmatch(name):
        return "pool", unquoted(name.removeprefix(_POOL)[:-1])
    return "lock", name


def named(name: str) -> dict[str, str]:
    """``name`` as a fact of an event in the log: ``name`` itself, or the ``pool``."""
    noun, known = known_as(name)
    return {"pool": known} if noun == "pool" else {"name": name}
