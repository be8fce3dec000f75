"""The scripts with a fault put into them, each of which a run must find."""

from __future__ import annotations

from hashlib import sha1
from typing import NamedTuple

from django_redislock import scripts


class Mutant(NamedTuple):
    """``changes``: what stands in the scripts, and what is put there. ``found``: what shows, at least one of it.

    ``ttl``: seconds, where it needs another than the runs have. ``sections``: of each worker, within which it shows.
    """

    changes: dict[str, str]
    found: set[str]
    ttl: float | None = None
    sections: int = 100


MUTANTS = {
    "a held lock is taken": Mutant(
        {"if call('EXISTS', lock, queue, gone) == 0 then": "if call('EXISTS', gone) == 0 then"}, {"overlap"}
    ),
    "release compares no token": Mutant(
        {"if string.sub(held, 1, #mine) == mine then": "if true then"}, {"overlap", "robbed"}
    ),
    "no fence": Mutant(
        {
            "local fence = math.max(tonumber(ARGV[4]), us - 1) + 1": "local fence = 1",
            "if last >= fence then": "if false then",
        },
        {"fence"},
    ),
    "the fence is only the time in seconds": Mutant(
        {
            "local fence = math.max(tonumber(ARGV[4]), us - 1) + 1": "local fence = math.floor(us / 1000000)",
            "if last >= fence then": "if false then",
        },
        {"fence"},
    ),
    "the last in the queue is the first": Mutant(
        {"call('ZRANGE', queue, 0, batch - 1, 'WITHSCORES')": "call('ZREVRANGE', queue, 0, batch - 1, 'WITHSCORES')"},
        {"order"},
    ),
    "who asks skips the queue": Mutant(
        {"if token == me then verdict = 'take' break end": "if me then verdict = 'take' break end",
         "elseif patient then": "elseif false then"},
        {"order"},
        sections=500,  # only where two ask at once
    ),
    "release passes nothing on": Mutant(
        {"return {was_held, hand_on(alive)}": "return {was_held, 0}"}, {"asleep"}, ttl=3.0
    ),  # by R5 somebody looks when the lease would have ended: with the TTL of the others, too early to tell for sure
    "a handoff is told and not granted": Mutant(
        {"local fence, since = grant(token, channel, 'h', lease, owner)": "local fence, since = next_fence()"},
        {"overlap"},
    ),
    "a handoff is granted and not told": Mutant(
        {"redis.pcall('PUBLISH', channel, message)": "local _ = message"}, {"asleep"}
    ),
    "who asks is told that it holds the lock": Mutant(
        {"if string.sub(held, 1, #token + 1) == token .. ' ' then": "if true then"}, {"overlap"}
    ),
    "the queue knows no order": Mutant(
        {"call('ZADD', queue, ticket, token)": "call('ZADD', queue, 0, token)"}, {"order"}
    ),
    "release leaves the index as it is": Mutant(
        {"call('ZREM', KEYS[4], name)\n  if trace then": "if trace then"}, {"left"}
    ),
}  # fmt: skip


def mutate(name: str | None) -> None:
    """From now on, this process runs the scripts of the mutant (None: those that there are)."""
    if name is None:
        return
    for snippet, instead in MUTANTS[name].changes.items():
        found = [script for script in list(scripts._BY_SHA.values()) if snippet in script.source]
        assert found, f"{snippet!r} stands in no script"
        for script in found:
            del scripts._BY_SHA[script.sha]
            script.source = script.source.replace(snippet, instead)
            script.sha = sha1(script.source.encode()).hexdigest()
            scripts._BY_SHA[script.sha] = script
