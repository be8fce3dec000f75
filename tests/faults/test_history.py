"""The checker finds violations in a history, and none if all is well."""

from __future__ import annotations

from pathlib import Path

import pytest

from .history import History, Trouble

# p1 holds from 1.0 to 2.0 with a lease until 11; p2 asks meanwhile, and holds from 2.1 on
FIRST = ["0.9 ask 1 seat None None", "1.0 got 1 100 None", "2.0 holds 1 9.0", "2.01 end 1 released"]
SECOND = ["1.5 ask 1 seat None None", "2.1 got 1 200 150", "3.0 holds 1 9.0", "3.1 end 1 released"]


def history(*troubles: Trouble, **processes: list[str]) -> History:
    made = History(troubles=list(troubles))
    for process, lines in processes.items():
        made.add(process, lines)
    return made


def kinds(*troubles: Trouble, dead: str = "", **processes: list[str]) -> list[str]:
    made = history(*troubles, **processes)
    made.dead.update(dead.split())
    return [violation.kind for violation in made.check()]


def changed(lines: list[str], **events: str) -> list[str]:
    """The history with the lines of these events replaced, or left out if empty."""
    lines = [events.get(line.split(" ")[1], line) for line in lines]
    return [line for line in lines if line]


# still sure of its hold when p2 holds the lock
LATER = changed(FIRST, holds="2.5 holds 1 9.0", end="2.51 end 1 released")
LOST = changed(LATER, end="2.51 end 1 lost")
FLUSH = Trouble(1.2, 1.3, forgets=True)


def test_one_hold_after_the_other_is_no_violation() -> None:
    assert kinds(p1=FIRST, p2=SECOND) == []


def test_two_at_once_are_an_overlap() -> None:
    assert kinds(p1=LATER, p2=SECOND) == ["overlap"]


def test_the_length_of_an_overlap_is_known() -> None:
    assert history(p1=LATER, p2=SECOND).longest_overlap() == pytest.approx(0.4)


def test_locks_of_two_names_may_be_held_at_once() -> None:
    other = [line.replace("seat", "row") for line in SECOND]
    assert kinds(p1=LATER, p2=other) == []


def test_a_holder_that_looked_last_before_the_other_came_is_no_overlap() -> None:
    assert kinds(p1=changed(LATER, holds="2.0 holds 1 0.1", end="2.51 end 1 lost"), p2=SECOND) == []


def test_a_holder_that_was_never_sure_of_its_lock_held_nothing() -> None:
    assert kinds(p1=changed(LATER, holds="", end="2.51 end 1 lost"), p2=SECOND) == []


def test_an_overlap_is_excused_where_redis_forgot_the_first_and_it_was_told() -> None:
    assert kinds(FLUSH, p1=LOST, p2=SECOND) == []


def test_an_overlap_that_nobody_was_told_of_is_not_excused() -> None:
    assert kinds(FLUSH, p1=LATER, p2=SECOND) == ["overlap"]


def test_an_overlap_is_excused_where_the_release_was_repeated_and_cannot_know() -> None:
    presumed = changed(LATER, end="2.51 end 1 presumed")
    assert kinds(FLUSH._replace(end=2.505), p1=presumed, p2=SECOND) == []
    assert kinds(FLUSH, p1=presumed, p2=SECOND) == ["presumed"]
    assert kinds(p1=presumed, p2=SECOND) == ["overlap", "presumed"]


def test_an_overlap_is_not_excused_by_what_redis_forgot_before() -> None:
    assert kinds(FLUSH._replace(begin=0.1, end=0.2), p1=LOST, p2=SECOND) == ["overlap", "lost_early"]


def test_an_overlap_is_not_excused_by_trouble_that_makes_redis_forget_nothing() -> None:
    assert kinds(FLUSH._replace(forgets=False), p1=LOST, p2=SECOND) == ["overlap", "lost_early"]


BEARER = ["1.9 ask 1 seat None t", "2.05 got 1 150 None", "2.06 end 1 interrupted"]


def test_an_overlap_is_excused_where_a_bearer_of_the_same_token_came_between_and_the_first_was_left() -> None:
    """It adopted a lock that seemed to be left behind, and released it, perhaps before it could record that it held
    it."""
    left = ["0.9 ask 1 seat None t", *changed(LATER, end="2.51 end 1 interrupted")[1:]]
    assert kinds(p1=left, p2=SECOND, p3=BEARER) == []
    assert kinds(p1=left, p2=SECOND, p3=[BEARER[0], BEARER[2]]) == []
    assert "overlap" in kinds(p1=left, p2=SECOND)
    assert "overlap" in kinds(p1=left, p2=SECOND, p3=[line.replace("seat None t", "seat None u") for line in BEARER])
    assert "overlap" in kinds(p1=left, p2=SECOND, p3=["2.2 ask 1 seat None t", "2.4 end 1 timeout"])
    assert "overlap" in kinds(p1=left, p2=SECOND, p3=["0.2 ask 1 seat None t", "0.3 end 1 timeout"])


def test_a_lower_fence_is_excused_where_a_bearer_of_the_same_token_came_between_and_the_first_read_of_it_late() -> None:
    late = ["0.9 ask 1 seat None t", "3.2 got 1 100 None", "3.3 holds 1 9.0", "3.4 end 1 lost"]
    bearer = ["1.9 ask 1 seat None t", "2.05 got 1 150 None", "2.06 holds 1 9.0", "2.07 end 1 released"]
    failover = Trouble(0.5, 1.0)
    assert kinds(failover, p1=late, p2=SECOND, p3=bearer) == []
    assert "fence" in kinds(failover, p1=late, p2=SECOND)
    assert "fence" in kinds(p1=late, p2=SECOND, p3=bearer)


def test_a_lock_granted_before_a_flush_and_entered_after_it_is_told_to_be_lost() -> None:
    late = ["0.9 ask 1 seat None None", "2.3 got 1 100 None", "2.5 holds 1 9.0", "2.6 end 1 lost"]
    assert kinds(FLUSH, p1=late, p2=SECOND) == []
    assert kinds(p1=late, p2=SECOND) == ["overlap", "fence", "lost_early"]


def test_a_line_that_is_being_written_is_left_for_the_next_time(tmp_path: Path) -> None:
    (tmp_path / "p1.log").write_text("\n".join(FIRST))
    made = History()
    made.read(tmp_path)
    assert [section.outcome for section in made.sections] == [""]


def test_a_fence_that_falls_is_found() -> None:
    assert "fence" in kinds(p1=FIRST, p2=changed(SECOND, got="2.1 got 1 99 None"))


def test_a_fence_may_fall_where_a_bearer_of_the_same_token_went_on_before_its_holder_knew_of_it() -> None:
    cut_off = Trouble(0.95, 1.1, "p1")
    late = ["0.9 ask 1 seat None t", "2.3 got 1 100 None", "2.31 end 1 lost"]
    bearer = ["1.5 ask 1 seat None t", "2.1 got 1 200 None", "2.2 holds 1 9.0", "2.21 end 1 released"]
    held = [*late[:2], "2.301 holds 1 9.0", late[2]]
    assert kinds(cut_off, p1=held, p2=bearer) == []
    assert "fence" in kinds(p1=held, p2=bearer)
    assert "fence" in kinds(cut_off, p1=held, p2=[line.replace("None t", "None u") for line in bearer])


def test_a_fence_given_twice_is_found_under_whatever_name() -> None:
    other = [line.replace("seat", "row") for line in changed(SECOND, got="2.1 got 1 100 None")]
    assert kinds(p1=FIRST, p2=other) == ["fence"]


THIRD = ["1.4 ask 1 seat None None", "3.2 got 1 300 140", "3.3 holds 1 9.0", "3.4 end 1 released"]


def test_a_waiter_that_came_first_and_is_served_later_was_overtaken() -> None:
    assert kinds(p1=FIRST, p2=SECOND, p3=THIRD) == ["order"]


def test_a_caller_that_never_queued_can_overtake_as_well() -> None:
    assert kinds(p1=FIRST, p2=changed(SECOND, got="2.1 got 1 200 None"), p3=THIRD) == ["order"]


def test_a_caller_that_may_have_queued_earlier_did_not_overtake() -> None:
    assert kinds(p1=FIRST, p2=changed(SECOND, got="2.1 got 1 200 0"), p3=THIRD) == []


def test_a_waiter_whose_process_was_in_trouble_may_be_overtaken() -> None:
    assert kinds(Trouble(1.5, 1.6, "p3"), p1=FIRST, p2=SECOND, p3=THIRD) == []
    assert kinds(Trouble(1.5, 1.6, "p2"), p1=FIRST, p2=SECOND, p3=THIRD) == ["order"]
    assert kinds(Trouble(1.0, 1.1, "p3"), p1=FIRST, p2=SECOND, p3=THIRD) == ["order"]


def test_a_process_that_did_not_run_for_a_while_was_in_trouble() -> None:
    assert kinds(p1=FIRST, p2=SECOND, p3=[*THIRD, "1.9 stall 1.45", "3.5 bye"]) == []


WAITS = ["1.5 ask 1 seat None None"]


def test_a_waiter_that_never_gets_an_answer_was_forgotten() -> None:
    assert kinds(p1=FIRST, p2=WAITS) == ["forgotten"]


def test_a_section_that_never_ends_was_forgotten() -> None:
    assert kinds(p1=changed(FIRST, end="")) == ["forgotten"]


def test_killed_processes_were_not_forgotten() -> None:
    assert kinds(p1=FIRST, p2=WAITS, dead="p2") == []


def test_giving_up_in_time_is_no_violation() -> None:
    assert kinds(p1=["1.0 ask 1 seat 0.5 None", "1.5 end 1 timeout"]) == []


@pytest.mark.parametrize("timeout", ["None", "0.6"])
def test_a_timeout_before_its_time_is_found(timeout: str) -> None:
    assert kinds(p1=[f"1.0 ask 1 seat {timeout} None", "1.5 end 1 timeout"]) == ["early"]


def test_lock_unavailable_needs_a_reason() -> None:
    refused = ["1.0 ask 1 seat None None", "1.5 end 1 refused"]
    assert kinds(p1=refused) == ["refused"]
    assert kinds(Trouble(1.2, 1.3), p1=refused) == []
    assert kinds(Trouble(1.2, 1.3, "p2"), p1=refused) == ["refused"]


def test_a_release_that_fails_needs_a_reason() -> None:
    failed = changed(FIRST, end="2.5 end 1 unavailable")
    assert kinds(p1=failed) == ["refused"]
    assert kinds(Trouble(2.2, 2.3, "p1"), p1=failed) == []


def test_a_lock_lost_within_its_lease_was_lost_early() -> None:
    assert kinds(p1=changed(FIRST, end="2.5 end 1 lost")) == ["lost_early"]
    assert kinds(FLUSH, p1=changed(FIRST, end="2.5 end 1 lost")) == []


def test_a_holder_told_that_its_lock_is_lost_within_its_lease_was_lost_early() -> None:
    assert kinds(p1=[*FIRST[:3], "2.1 told 1", "2.5 end 1 lost"]) == ["lost_early"]


def test_a_lock_lost_when_its_lease_has_ended_is_no_violation() -> None:
    assert kinds(p1=[*FIRST[:3], "11.0 told 1", "11.5 end 1 lost"]) == []


def test_an_unexpected_exception_is_an_error() -> None:
    assert kinds(p1=changed(FIRST, end="2.5 end 1 ValueError('no, this')")) == ["error"]


def test_an_error_that_the_locks_log_is_a_violation() -> None:
    assert kinds(p1=[*FIRST, "3.0 failure event=watchdog-failed"]) == ["error"]


def test_a_lock_that_stays_free_though_somebody_waits_is_found() -> None:
    late = ["1.5 ask 1 seat None None", "4.1 got 1 200 150", "4.2 holds 1 9.0", "4.3 end 1 released"]
    assert kinds(p1=FIRST, p2=late) == ["left_free"]
    assert history(p1=FIRST, p2=late).longest_gap() == pytest.approx(2.1)
    assert kinds(Trouble(3.0, 3.1, "p9"), p1=FIRST, p2=late) == []


def test_a_free_lock_that_nobody_wants_is_no_violation() -> None:
    late = ["4.0 ask 1 seat None None", "4.1 got 1 200 None", "4.2 holds 1 9.0", "4.3 end 1 released"]
    assert kinds(p1=FIRST, p2=late) == []


WAITED = ["3.2 ask 1 seat None None", "20.0 got 1 300 250", "20.1 holds 1 9.0", "20.2 end 1 released"]


def test_a_lock_that_stays_free_for_long_after_the_trouble_is_found() -> None:
    assert kinds(Trouble(3.1, 15.0), p1=FIRST, p2=SECOND, p3=WAITED) == []
    assert kinds(Trouble(3.1, 14.0), p1=FIRST, p2=SECOND, p3=WAITED) == ["left_free"]
    assert kinds(Trouble(3.1, 9.0), Trouble(4.0, 5.0), Trouble(9.4, 15.0), p1=FIRST, p2=SECOND, p3=WAITED) == []


def test_fences_of_different_counters_may_be_the_same() -> None:
    other = [line.replace("seat", "row").replace("got 1 200", "got 1 100") for line in SECOND]
    assert kinds(p1=FIRST, p2=other) == ["fence"]
    made = history(p1=FIRST, p2=other)
    made.counter = len
    assert made.check() == []
