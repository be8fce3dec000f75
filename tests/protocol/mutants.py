"""Scripts that leave out one rule each. The machine must find all of them.

The rules have their names in the scripts (see django_redislock/store/scripts.py). Which sequences are drawn depends on
a seed. When the machine or a new version of hypothesis draws other sequences, a mutant may be found late, after a
minute instead of a second. Then it needs another seed: try ``REDISLOCK_TEST_SEED=2``, 3 and so on.
"""

# the rule that is left out: the seed that soon finds it, and what goes wrong
MUTANTS: dict[str, tuple[int, str]] = {
    # release
    "release-id": (1, "a release compares no id"),
    "release-grants": (1, "a release grants the lock to nobody"),
    "release-told": (1, "a release elsewhere tells nobody"),
    "release-marks": (1, "a release leaves no mark for what may arrive"),
    "release-detached": (2, "a release ends what was detached"),
    "withdraw-adopted": (11, "a withdrawal ends what was adopted"),
    "erased-no-suspect": (1, "who is released makes suspects"),
    # acquire
    "idle-queue": (13, "a newcomer skips the queue"),
    "given-up": (8, "one that is over gets the lock"),
    "fence-grows": (1, "fences do not grow"),
    "adoption-told": (1, "an adoption tells nobody"),
    "adoption-lease": (2, "an adoption shortens the lease"),
    "adopts-the-dead": (1, "an adoption from one at work"),
    "adopts-own": (1, "an adoption from one at work in its own process"),
    "adoption-fence": (1, "an adoption keeps the fence of one who may live"),
    "adoption-note": (1, "an adoption takes the note away"),
    "adopt-only-free": (2, "who only adopts takes a free lock"),
    "adopt-only-waits": (2, "who only adopts waits"),
    "asker-is-next": (1, "who asks does not know itself in the queue"),
    # queues
    "ticket-kept": (1, "who asks again, as the first answer was lost, loses its place"),
    "requeued": (4, "who was dropped is not told so"),
    "queue-expires": (1, "a queue is never forgotten"),
    "polling-dies": (1, "one who polls is never dropped"),
    "polling-watched": (1, "one who polls is watched by nobody"),
    "the-dead": (1, "the dead are granted the lock"),
    "unwanted-unlisted": (1, "a lock that nobody wants stays listed"),
    "most-waits-already": (2, "who waits already is refused"),
    "most-the-dead": (1, "the dead keep a queue full"),
    "most": (1, "a queue is never full"),
    # suspensions
    "asker-suspends": (1, "who comes first has a lock whose suspension begins"),
    "release-suspends": (5, "a release begins no suspension"),
    "suspension-told": (5, "a suspension that begins is told to nobody"),
    "suspension-listed": (1, "a suspension has no end in the list"),
    "suspension-kept": (1, "a planned suspension is forgotten before it begins"),
    "resume-holder": (1, "who resumes a lock takes it from its holder"),
    "suspension-waits": (1, "a suspension takes the lock from its holder"),
    # grants to those who wait
    "grant-told": (1, "a grant is not told"),
    "grant-short": (1, "a grant has the whole lease before it is confirmed"),
    "grant-marked": (1, "a grant leaves no mark"),
    "suspects-made": (2, "who lets a grant run out is no suspect"),
    "suspects-skipped": (2, "suspects are granted the lock"),
    "look-confirms": (1, "a look is no sign of life"),
    "suspects-clear": (2, "suspects stay suspects"),
    # renew
    "renewal-listed": (1, "a renewal does not list the new end"),
    "renewal-id": (1, "a renewal compares no id"),
    "renewal-fence": (1, "a renewal compares no fence"),
    "renewal-lengthens": (1, "a renewal shortens the lease"),
    "renewal-grants": (1, "a renewal of a lock that is free grants it to nobody"),
    "late-renewal": (1, "a late renewal takes a lock back"),
    "confirm-lengthens": (3, "a confirmation shortens the lease"),
    "confirm-clears": (1, "a confirmation is no sign of life"),
    "shorter-told": (1, "a lease that is made shorter is told to nobody"),
    "fence-noted": (1, "a fence that the database has is not noted"),
    # force
    "force-fence": (1, "force looks at no fence"),
    "force-told": (1, "force does not tell the holder"),
}

# the same, for the machine of permits
OF_PERMITS: dict[str, tuple[int, str]] = {
    "idle-permits": (1, "who comes gets a permit though none is free"),
    "permits-free": (5, "a release gives permits though none is free"),
    "permit-own": (1, "whose permit it is does not matter"),
    "release-grants": (1, "a release hands its permit to nobody"),
    "the-dead": (1, "the dead are granted permits"),
    "order": (1, "the last in the queue is the first to get a permit"),
    "tickets": (1, "all have the same ticket"),
}
