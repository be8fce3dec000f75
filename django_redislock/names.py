"""Names of locks, their quoting, and the Redis keys made of them."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import unquote

from .texts import shown

MAX_NAME_BYTES = 512

_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)]  # what _FORBIDDEN finds
_SPACES = [code for code in range(0x3001) if chr(code).isspace()]  # all that there are
TOKEN = "[A-Za-z0-9_-]{22,128}"
_TOKEN = re.compile(TOKEN)

# A member of the pool "accounts" is the lock "pool:accounts:alice"; any of them is asked for as "pool:accounts:".
# Whatever sets such a lock free is given the pool's keys, so that it can pass the member on.
_POOL = "pool:"
_OF_POOL = re.compile(rf"{_POOL}[^:]+:(?=[^:]*\Z)")
_ANY_OF_POOL = re.compile(rf"{_POOL}[^:]+:")


def check_name(name: str, noun: str = "lock") -> str:
    """Return ``name`` when it can name a lock (or ``noun``), else raise ``TypeError`` or ``ValueError``."""
    if not isinstance(name, str):
        raise TypeError(f"A {noun}'s name must be a str, not {shown(name)} ({type(name).__name__}).")
    return _check_text(name, noun)


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
    if noun == "lock" and _ANY_OF_POOL.fullmatch(name):
        raise ValueError(f"{name!r} is a pool, no lock: any of its members is taken by LockPool.acquire().")
    return name


def is_name(text: str) -> bool:
    """Whether ``text`` can name a lock."""
    try:
        _check_text(text, "lock")
    except ValueError:
        return False
    return True


def is_asked_for(text: str) -> bool:
    """Whether ``text`` is what scripts are called with: a lock's name, or that under which a pool is asked for."""
    return is_name(text) or (_ANY_OF_POOL.fullmatch(text) is not None and is_name(f"{text}1"))


def check_token(token: str) -> str:
    """Return ``token`` when it is one, else raise ``ValueError``. The error does not repeat it: it is a secret."""
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ValueError("A token must be a str of 22 to 128 characters out of A-Z, a-z, 0-9, '_' and '-'.")
    return token


def _percent(codes: Iterable[int]) -> dict[int, str]:
    """For ``str.translate()``, which takes a tenth of the time of a regular expression: users' texts may be long."""
    return {code: "".join(f"%{byte:02X}" for byte in chr(code).encode(errors="surrogatepass")) for code in codes}


_QUOTED = _percent([*map(ord, ":%{}"), *_SPACES, *_CONTROLS])
_UNFIT = _percent([ord("%"), *_CONTROLS])


def quote(value: object) -> str:
    """Percent-quote what could imitate a name's structure: ``:``, ``%``, braces, whitespace, control characters."""
    return str(value).translate(_QUOTED)


def unquoted(text: str) -> str:
    """What :func:`quote` made ``text`` of."""
    return unquote(text, errors="surrogatepass")


def lock_name(*parts: object) -> str:
    """Join ``parts`` with ``:`` into a lock's name, each part quoted, so that two different tuples never meet.

    >>> lock_name("order", 42, "a:b")
    'order:42:a%3Ab'

    What would be longer than 512 bytes is cut, and ends in ``%~`` and a hash (SHA-256) of all of it.
    """
    return _made_name(":".join(map(quote, parts)))


def _made_name(text: str) -> str:
    """``text``, whose values are quoted (so none holds ``%~``), as a name that no value can make too long."""
    encoded = text.encode(errors="surrogatepass")
    return check_name(text if len(encoded) <= MAX_NAME_BYTES else f"{text[:80]}%~{sha256(encoded).hexdigest()}")


def fit_name(text: str, mark: str = "") -> str:
    """Any ``text`` as a lock's name: itself where it can be one, else quoted behind ``%:``, cut and hashed if too long.

    With a ``mark`` it is always quoted, behind ``%mark:``. No text is left as it is that begins with ``%``, so two
    different pairs of text and mark never meet.
    """
    if text and not mark and text[0] != "%" and is_name(text):
        return text
    return _made_name(f"%{quote(mark)}:{text.translate(_UNFIT)}")


# what Redis calls the type of a key, by the word behind the prefix; all others are strings
_TYPES = {"waiters": "hash"} | dict.fromkeys(("queue", "index", "members", "free", "busy", "leaving", "staged"), "zset")


def redis_type(key: str, prefix: str) -> str:
    """The Redis type of one of our keys."""
    return _TYPES.get(key.removeprefix(prefix).partition(":")[0], "string")


class Keys(NamedTuple):
    """The Redis keys of one lock."""

    lock: str
    queue: str
    waiters: str
    all: tuple[str, ...]  # in the order in which every script expects them
    any: bool = False  # member of a pool
    line: tuple[str, ...] = ()  # of a pool's member: queue and waiters of those who want any


def make_keys(prefix: str, name: str) -> Keys:
    """The keys of the lock ``name``; ``prefix`` ends with the hash tag and a colon, so that all share one slot."""
    lock, queue, waiters = f"{prefix}lock:{name}", f"{prefix}queue:{name}", f"{prefix}waiters:{name}"
    keys = (lock, queue, waiters, f"{prefix}index", f"{prefix}fence")  # the last two are shared by all
    if name.startswith(_POOL) and (found := _OF_POOL.match(name)):
        pool = pool_keys(prefix, found.group())
        asked = found.end() == len(name)
        return Keys(lock, queue, waiters, keys + pool, asked, () if asked else pool[4:6])
    return Keys(lock, queue, waiters, keys)


def pool_name(name: str) -> str:
    """Under which any member of the pool ``name`` is asked for."""
    return f"{_POOL}{quote(name)}:"


def member_name(pool: str, key: str, noun: str = "member") -> str:
    """The name of a member's lock."""
    return check_name(f"{pool_name(pool)}{quote(key)}", noun)


def known_as(name: str) -> tuple[str, str]:
    """What people know a lock's ``name`` as: ("lock", itself), or ("pool", its name) where any member is asked for."""
    if _ANY_OF_POOL.fullmatch(name):
        return "pool", unquoted(name.removeprefix(_POOL)[:-1])
    return "lock", name


def read_member(pool: str, raw: bytes) -> str | None:
    """What Redis holds as a member of the pool that is asked for as ``pool``, as names quote it; None: none of ours."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return text if quote(unquoted(text)) == text and is_name(f"{pool}{text}") else None


def is_member(name: str) -> bool:
    """Whether the lock is, or could be, a member of a pool."""
    return _OF_POOL.match(name) is not None


def pool_keys(prefix: str, asked: str) -> tuple[str, ...]:
    """The keys of a pool, ``asked`` for by its :func:`pool_name`, in the order in which every script expects them."""
    return (
        f"{prefix}members:{asked}",
        f"{prefix}free:{asked}",
        f"{prefix}busy:{asked}",
        f"{prefix}leaving:{asked}",
        f"{prefix}queue:{asked}",
        f"{prefix}waiters:{asked}",
        f"{prefix}took:",
    )


def has_fields(text: str) -> bool:
    """Whether there is anything to fill in ``text``, taken as a template."""
    try:
        return any(field is not None for _, field, _, _ in string.Formatter().parse(text))
    except ValueError:  # a lone brace
        return False


class _QuotingFormatter(string.Formatter):
    """``str.format`` whose values are quoted after their format spec was applied."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if key not in kwargs:
            raise KeyError(key)
        return kwargs[str(key)]

    def format_field(self, value: Any, format_spec: str) -> str:
        return quote(super().format_field(value, format_spec))


class NameTemplate:
    """A name with fields, such as ``"order:{pk}"`` or ``"user:{request.user.pk}"``, filled by :meth:`fill`.

    Values are quoted, and what gets too long is cut, as by :func:`lock_name`. Raises ``ValueError`` at once for a
    template that can never be filled.
    """

    _formatter = _QuotingFormatter()

    def __init__(self, template: str) -> None:
        if not isinstance(template, str):
            raise TypeError(f"A lock's name must be a str or a callable, not {shown(template)}.")
        try:
            fields = [field for _, field, _, _ in self._formatter.parse(template) if field is not None]
        except ValueError as error:
            raise ValueError(f"The lock name {template!r} is no template: {error}.") from None
        for field in fields:
            if not re.match(r"[^\W\d]", field):
                raise ValueError(
                    f"The lock name {template!r} has a field without a name: write {{pk}}, not {{{field}}}."
                )
        self.template = template
        self._plain = None if fields else check_name(self._formatter.vformat(template, (), {}))

    def fill(self, values: Mapping[str, Any]) -> str:
        """The name. A field that ``values`` does not have raises ``ValueError`` with the names that there are."""
        if self._plain is not None:
            return self._plain
        try:
            name = self._formatter.vformat(self.template, (), values)
        except (KeyError, AttributeError, IndexError, TypeError) as error:
            raise ValueError(
                f"Cannot fill the lock name {self.template!r}: {type(error).__name__}: {error}. "
                f"There are: {', '.join(sorted(values)) or 'no values'}."
            ) from error
        return _made_name(name)
