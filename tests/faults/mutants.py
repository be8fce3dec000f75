"""Scripts with a bug put into them (mutants). A run must find each of them."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from django_redislock.engine.acquiring import effective_options
from django_redislock.store import scripts
from django_redislock.store.calls import LockRequest


class Mutant(NamedTuple):
    """``changes``: texts in the Lua files, and their replacements. ``found``: violations, at least one of which must
    show.

    ``ttl``: seconds, if other than in the trials. ``sections``: how many each worker enters before it must have shown.
    ``tokens_as_ids``: the token of an attempt, if it has one, is also its id.
    """

    changes: dict[str, str]
    found: set[str]
    ttl: float | None = None
    sections: int = 100
    tokens_as_ids: bool = False


FENCE = "local fence = math.max(tonumber(ARGV.known), us - 1) + 1"
MUTANTS = {
    "a held lock is taken": Mutant(
        {"'EXISTS', KEYS.lock, KEYS.queue, KEYS.waiters, KEYS.gone) == 0": "'EXISTS', KEYS.gone) == 0"},
        {"overlap"},
    ),
    "release compares no id": Mutant(
        {"local held = value and string.sub(value, 1, #mine) == mine": "local held = value"}, {"overlap", "lost_early"}
    ),
    "a token is the id of every attempt": Mutant(
        {}, {"overlap", "lost_early", "left_free", "fence"}, sections=1000, tokens_as_ids=True
    ),
    "no fence": Mutant({FENCE: "local fence = 1", "if last and last < fence then": "if true then"}, {"fence"}),
    "the fence is only the time in seconds": Mutant(
        {FENCE: "local fence = math.floor(us / 1000000)", "if last and last < fence then": "if true then"}, {"fence"}
    ),
    "the last in the queue is the first": Mutant(
        {"redis.call('ZRANGE', queue, reserved, reserved + batch - 1)":
         "redis.call('ZREVRANGE', queue, reserved, reserved + batch - 1)"},
        {"order"},
    ),
    "whoever asks skips the queue": Mutant({"if id == me then": "if me then"}, {"order"}, sections=500),
    "release passes nothing on": Mutant(
        {"return {held and 1 or 0, hand_on()}": "return {held and 1 or 0, 0}"}, {"left_free"}, ttl=3.0
    ),  # by R5, somebody looks when the lease would have ended: with the TTL of the others, too early to be sure
    "a handoff is told and not granted": Mutant(
        {"local fence, since = grant(id, channel, 'h', lease, token, owner)": "local fence, since = next_fence()"},
        {"overlap"},
    ),
    "a handoff is granted and not told": Mutant(
        {"tell(channel, 'g ' .. id": "tell('-', 'g ' .. id"}, {"left_free"}
    ),
    "whoever asks is told that it holds the lock": Mutant(
        {"if id == ARGV.id then return {ALREADY": "if id then return {ALREADY"}, {"overlap"}
    ),
    "the queue knows no order": Mutant(
        {"redis.call('ZADD', queue, ticket, ARGV.id)": "redis.call('ZADD', queue, 0, ARGV.id)"}, {"order"}
    ),
    "release leaves the index as it is": Mutant(
        {"  redis.call('ZREM', KEYS.index, ARGV.name)\n  return {1, 0}": "  return {1, 0}"}, {"left"}
    ),
}  # fmt: skip


def mutate(name: str | None) -> None:
    """From now on, this process runs the scripts of the mutant (None: the real ones)."""
    if name is None:
        return
    mutant = MUTANTS[name]
    for snippet, instead in mutant.changes.items():
        change_scripts(snippet, instead)
    if mutant.tokens_as_ids:
        setattr(effective_options, "LockRequest", _with_token_as_id)  # noqa: B010


def change_scripts(snippet: str, instead: str) -> None:
    """Replace a part of the scripts, wherever it occurs."""
    before = list(scripts._by_sha.values())
    patterns = [_as_loaded(script, snippet) for script in before]
    found = [(script, pattern) for script, pattern in zip(before, patterns, strict=True) if pattern in script.source]
    assert found, f"{snippet!r} stands in no script"
    for script, pattern in found:
        del scripts._by_sha[script.sha]
        script.source = script.source.replace(pattern, _as_loaded(script, instead))
        script.register()


def _as_loaded(script: scripts.Script, text: str) -> str:
    """``text`` with indices for the names of keys and arguments, as the script has it."""

    def index(found: re.Match[str]) -> str:
        array, word = found.groups()
        names = script.keys if array == "KEYS" else script.args
        return f"{array}[{names.index(word) + 1}]" if word in names else found[0]

    return re.sub(r"\b(KEYS|ARGV)\.(\w+)", index, text)


def _with_token_as_id(*args: Any, **kwargs: Any) -> LockRequest:
    request = LockRequest(*args, **kwargs)
    return request if request.token is None else request._replace(id=request.token, token=None)
