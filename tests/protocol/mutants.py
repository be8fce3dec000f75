"""Scripts that leave out one rule each. The machine must find all of them.

The rules have their names in the scripts (see django_redislock/store/scripts.py). Which sequences are drawn depends on
a seed. Seed 1 finds most mutants at once; the others have a seed of their own. When the machine or a new version of
hypothesis draws other sequences, a mutant may be found late, after a minute instead of a second. Then it needs another
seed: try ``REDISLOCK_TEST_SEED=2``, 3 and so on.
"""

from __future__ import annotations

# the rule that is left out: what goes wrong then
MUTANTS: dict[str, str] = {
    # release
    "release-id": "a release compares no id",
    "release-grants": "a release grants the lock to nobody",
    "release-told": "a release elsewhere tells nobody",
    "release-marks": "a release leaves no mark for what may arrive",
    "release-detached": "a release ends what was detached",
    "withdraw-adopted": "a withdrawal ends what was adopted",
    "erased-no-suspect": "who is released makes suspects",
    # acquire
    "idle-queue": "a newcomer skips the queue",
    "given-up": "one that is over gets the lock",
    "fence-grows": "fences do not grow",
    "adoption-told": "an adoption tells nobody",
    "adoption-lease": "an adoption shortens the lease",
    "adopts-the-dead": "an adoption from one at work",
    "adopts-unused": "an adoption from one at work in its own process",
    "adoption-fence": "an adoption keeps the fence of one who may live",
    "adoption-note": "an adoption takes the note away",
    "adopt-only-free": "who only adopts takes a free lock",
    "adopt-only-waits": "who only adopts waits",
    "seizure-told": "a seizure tells nobody",
    "asker-is-next": "who asks does not know itself in the queue",
    # queues
    "requeued": "who was dropped is not told so",
    "queue-expires": "a queue is never forgotten",
    "polling-dies": "one who polls is never dropped",
    "polling-watched": "one who polls is watched by nobody",
    "the-dead": "the dead are granted the lock",
    "unwanted-unlisted": "a lock that nobody wants stays listed",
    "most-waits-already": "who waits already is refused",
    "most-the-dead": "the dead keep a queue full",
    "most": "a queue is never full",
    # suspensions
    "asker-suspends": "who comes first has a lock whose suspension begins",
    "release-suspends": "a release begins no suspension",
    "suspension-told": "a suspension that begins is told to nobody",
    "suspension-listed": "a suspension has no end in the list",
    "suspension-kept": "a planned suspension is forgotten before it begins",
    "seizure-resumes": "a seizure leaves a suspension",
    "resume-holder": "who resumes a lock takes it from its holder",
    "suspension-waits": "a suspension takes the lock from its holder",
    # grants to those who wait
    "grant-told": "a grant is not told",
    "grant-short": "a grant has the whole lease before it is confirmed",
    "grant-marked": "a grant leaves no mark",
    "suspects-made": "who lets a grant run out is no suspect",
    "suspects-skipped": "suspects are granted the lock",
    "look-confirms": "a look is no sign of life",
    "suspects-clear": "suspects stay suspects",
    # renew
    "renewal-listed": "a renewal does not list the new end",
    "renewal-id": "a renewal compares no id",
    "renewal-fence": "a renewal compares no fence",
    "renewal-lengthens": "a renewal shortens the lease",
    "renewal-grants": "a renewal of a lock that is free grants it to nobody",
    "late-renewal": "a late renewal takes a lock back",
    "confirm-lengthens": "a confirmation shortens the lease",
    "confirm-clears": "a confirmation is no sign of life",
    # renew that raises the fence
    "raise-written": "a raised fence is not kept",
    "raise-answered": "a raised fence is not answered",
    "raise-new": "a raised fence is the old one",
    "late-raise": "a late raise takes a lock back",
    "raise-keeps": "a raise does not keep the lease",
    # force
    "force-fence": "force looks at no fence",
    "force-told": "force does not tell the holder",
}

SEEDS = {
    "release-detached": 12,
    "withdraw-adopted": 10,
    "idle-queue": 4,
    "given-up": 3,
    "adoption-lease": 2,
    "most-waits-already": 8,
    "seizure-resumes": 2,
    "suspects-made": 2,
    "suspects-skipped": 17,
    "suspects-clear": 6,
    "late-renewal": 2,
    "confirm-lengthens": 3,
    "raise-written": 2,
    "late-raise": 6,
}
