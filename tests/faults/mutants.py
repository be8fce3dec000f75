"""Rules that the scripts leave out. A run must find each of them."""

from __future__ import annotations

from typing import NamedTuple

from tests.inside import change_scripts, use_tokens_as_ids


class Mutant(NamedTuple):
    without: set[str]  # the rules, by their names in the scripts
    found: set[str]  # violations, at least one of which must show
    ttl: float | None = None  # seconds, if other than in the trials
    sections: int = 100  # that each worker enters before it must have shown
    tokens_as_ids: bool = False  # the token of an attempt, if it has one, is also its id


MUTANTS = {
    "a held lock is taken": Mutant({"idle-lock", "idle-queue", "idle-waiters"}, {"overlap"}),
    "release compares no id": Mutant({"release-id"}, {"overlap", "lost_early"}),
    "a token is the id of every attempt": Mutant(
        set(), {"overlap", "lost_early", "left_free", "fence"}, sections=1000, tokens_as_ids=True
    ),
    "no fence": Mutant({"fence-time", "fence-grows"}, {"fence"}),
    "the fence is only the time in seconds": Mutant({"fence-us", "fence-grows"}, {"fence"}),
    "the last in the queue is the first": Mutant({"order"}, {"order"}),
    "whoever asks skips the queue": Mutant({"asker-queues"}, {"order"}, sections=500),
    # by R5, somebody looks when the lease would have ended: with the TTL of the others, too early to be sure
    "release passes nothing on": Mutant({"release-grants"}, {"left_free"}, ttl=3.0),
    "a handoff is told and not granted": Mutant({"grant-written"}, {"overlap"}),
    "a handoff is granted and not told": Mutant({"grant-told"}, {"left_free"}),
    "whoever asks is told that it holds the lock": Mutant({"already-mine"}, {"overlap"}),
    "the queue knows no order": Mutant({"tickets"}, {"order"}),
    "release leaves the index as it is": Mutant({"release-index"}, {"left"}),
}


def mutate(name: str) -> None:
    """From now on, this process runs the scripts of the mutant."""
    change_scripts(MUTANTS[name].without)
    if MUTANTS[name].tokens_as_ids:
        use_tokens_as_ids()
