"""The exhaustive model of the protocol keeps its guarantees, and violates them without its rules."""

import os

import pytest

from .search import search
from .world import read_scene

FAULTS = int(os.environ.get("REDISLOCK_TEST_FAULTS", "1"))

# in the last three a restarted job: in the same process, in another one, and with another attempt beside it
ATTEMPTS = ["001 abc", "012 abc", "001 aab", "011 aab", "012 aab"]
WITH_A_FAILOVER = [
    "01 ab 0 lost=0",
    "01 ab 0 lost=0 clock=ahead",
    "01 ab 0 lost=0 clock=behind",
    "01 ab 0 lost=1 clock=ahead",
    "01 ab 0 lost=1 acknowledged=1",
    "01 ab 0 lost=1 acknowledged=1 clock=behind",
    "01 aa 0 lost=1 together=1",
    "01 aa 0 lost=1 together=1 acknowledged=1",
    "000 abc 0 lost=1 clock=behind story=held",
    "011 aab 0 lost=1",
    "001 abc 0 lost=2 story=held",
    "012 abc 0 lost=1 story=held acknowledged=1",
    "010 abc 1 lost=1 story=cut only=cut",
    "01 ab 1 lost=1",
    "01 ab 1 lost=1 acknowledged=1",
    "010 abc 1 lost=0 story=moved only=stop clock=ahead",
    "011 abc 1 lost=0 story=left only=stop clock=behind",
    "011 aab 1 lost=0 story=late only=stop together=1",
    "01 ab 0 lost=0 wakes=1",
    "01 ab 0 lost=1 wakes=1",
    "010 abc 0 lost=0 story=moved wakes=1",
]
# limits that differ: no more than the larger one are inside, and none is granted above the one that was asked for last
MIXED = ["012 abc 0 limits=212", "001 abc 0 limits=212", "012 abc 0 limits=121", "012 abc 0 limits=321"]
SEMAPHORES = ["001 abc 1 limit=2", "012 abc 1 limit=2", "0011 abcd 0 limit=2", "0012 abcd 0 limit=2"]
SEMAPHORES += ["01 ab 1 limits=21"]
# many states: for longer runs, with more faults
LONG = ["011 abc 1 lost=0 story=moved only=stop wakes=1", "001 abc 1 limits=212", "012 abc 1 limits=212"]


@pytest.mark.timeout(0 if FAULTS > 1 else 600)  # they compute all the time, on a machine that may be busy
@pytest.mark.parametrize(
    "scene",
    [
        *(f"{words} 0" for words in ATTEMPTS),
        *(pytest.param(f"{words} {FAULTS}", marks=pytest.mark.complete) for words in ATTEMPTS),
        "001 abc 0 limit=2",
        *MIXED,
        *(pytest.param(words, marks=pytest.mark.complete) for words in (*WITH_A_FAILOVER, *SEMAPHORES)),
        *(LONG if FAULTS > 1 else []),
    ],
)
def test_no_order_of_events_breaks_a_promise(scene: str) -> None:
    found = search(read_scene(scene.split()))
    assert not found.violation, str(found)
    assert found.states > 100


@pytest.mark.complete
@pytest.mark.parametrize(
    ("scene", "violation", "action"),
    [
        # a stopped process continues and enters because of an old message
        ("001 abc 1 R1", "two holders: ", "go_on"),
        ("001 abc 1 R6", "forgotten: 1 waits and is not queued", "subscribe"),
        ("001 abc 1 R7", "orphan: ", "leave_unheard"),
        ("001 abc 1 R9", "refused: ", "expire"),
        ("001 aab 1 R16", "two holders: ", "send_pending"),  # a late release frees the lock of a later attempt
        ("011 aab 1 R16", "two holders: ", "send_pending"),
        # of semaphores: a release hands on more permits than it gives back
        ("0012 abcd 0 free limit=2", "too many: ", "leave"),
        ("0011 abcd 1 R6 limit=2 story=held", "forgotten: ", "subscribe"),
        # of limits that differ: after it was lowered, a release frees none; whoever does not get one lowers it as well
        ("012 abc 0 lowered limits=212", "too many: ", "leave"),
        ("012 abc 0 limit limits=212", "forgotten: the lock is free", "serve"),
        ("001 abc 1 R7 limit=2", "orphan: ", "leave_unheard"),
        # a handoff by the old master is judged by the new one's clock; one by the new master by the old one's
        ("011 abc 1 C2 lost=0 story=left only=stop clock=behind", "two holders: ", "go_on"),
        ("010 abc 1 C2-look lost=0 story=woken only=stop clock=ahead", "two holders: ", "go_on"),
        # a process that stays subscribed at the old master is dropped by each script that frees the lock
        ("01 ab 0 C3 lost=0", "forgotten: 1 waits, and is taken for dead", "fail_over"),
        ("001 abc 0 C3-all lost=0", "forgotten: 1 waits and is not queued", "subscribe"),
        # a waiter whose handoff was lost is in the queue again, and is handed the lock again after another one had it
        ("010 abc 1 C3-fence lost=1 story=cut only=cut", "not told: 2 ", "renew"),
        # so is one that was told of the first handoff, and confirms the second
        ("010 abc 2 C3-fence lost=1 story=told acknowledged=1", "fences: 2 enters", "wake"),
        # the same handoff, through the old master
        ("010 abc 1 C3-close lost=0 story=woken only=stop clock=ahead", "two holders: ", "go_on"),
        # a late answer of the old master ends the subscription at the new one: a holder seems dead, and loses its lock
        ("011 aab 1 C3-late lost=0 story=late only=stop together=1", "two holders: ", "read"),
        ("01 aa 0 adopt lost=0 together=1", "two holders: ", "fail_over"),
        # the old master was paused; when it wakes up, it hands over, and answers what was asked of it before
        ("01 ab 0 C3-signed lost=0 wakes=1", "two holders: ", "wake_up"),
        ("01 ab 0 C7 lost=0 wakes=1", "two holders: ", "answer_late"),
        ("001 abc 0 C6 lost=1 story=held acknowledged=1", "two holders: ", "wake"),
        ("01 ab 0 C6-repeat lost=1 acknowledged=1", "two holders: ", "serve"),
        ("01 ab 0 C6-renewal lost=1 acknowledged=1", "two holders: ", "renew"),
        ("00 ab 0 known lost=1 clock=behind", "fences: ", "fail_over"),
        ("000 abc 0 known-wakes lost=1 clock=behind story=held", "fences: ", "wake"),
        # nor where it is behind, the last fence is lost, and the caller does not know that fence
        ("01 ab 0 lost=1 clock=behind", "fences: ", "fail_over"),
        # no rule helps where the new master's clock is ahead, and ends a lease that its holder believes
        ("01 ab 0 lost=0 clock=ahead acknowledged=1", "two holders: ", "fail_over"),
    ],
)
def test_a_promise_is_broken_when_a_rule_is_left_out(scene: str, violation: str, action: str) -> None:
    found = search(read_scene(scene.split()))
    assert found.violation.startswith(violation), str(found)
    assert any(step.startswith(f"{action} ") for step in found.trace), str(found)
