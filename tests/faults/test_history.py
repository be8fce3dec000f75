"""The checker finds what is wrong with a history, and nothing where all is well."""

from __future__ import annotations

from pathlib import Path

import pytest

from .history import History, Trouble

# p1 holds from 1.0 to 2.0 with a lease to 11, p2 asks meanwhile, and holds from 2.1 on
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
    """The lines of these events replaced; empty: left out."""
    lines = [events.get(line.split(" ")[1], line) for line in lines]
    return [line for line in lines if line]


LATER = changed(FIRST, holds="2.5 holds 1 9.0", end="2.51 end 1 released")  # sure of its hold when p2 has it
LOST = changed(LATER, end="2.51 end 1 lost")
FLUSH = Trouble(1.2, 1.3, forgets=True)


def test_one_hold_after_the_other_is_well() -> None:
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
    assert kinds(FLUSH._replace(begin=0.1, end=0.2), p1=LOST, p2=SECOND) == ["overlap", "robbed"]


def test_an_overlap_is_not_excused_by_trouble_that_makes_redis_forget_nothing() -> None:
    assert kinds(FLUSH._replace(forgets=False), p1=LOST, p2=SECOND) == ["overlap", "robbed"]


BEARER = ["1.9 ask 1 seat None t", "2.05 got 1 150 None", "2.06 end 1 interrupted"]


def test_an_overlap_is_excused_where_a_bearer_of_the_same_token_came_between_and_the_first_was_left() -> None:
    """It adopted what seemed to be left, and gave it back; that it held it may never have been written."""
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
    assert kinds(p1=late, p2=SECOND) == ["overlap", "fence", "robbed"]


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


def test_who_came_first_and_is_served_later_was_overtaken() -> None:
    assert kinds(p1=FIRST, p2=SECOND, p3=THIRD) == ["order"]


def test_who_never_queued_overtakes_as_well() -> None:
    assert kinds(p1=FIRST, p2=changed(SECOND, got="2.1 got 1 200 None"), p3=THIRD) == ["order"]


def test_who_may_have_queued_unseen_did_not_overtake() -> None:
    assert kinds(p1=FIRST, p2=changed(SECOND, got="2.1 got 1 200 0"), p3=THIRD) == []


def test_whose_own_process_was_in_trouble_may_be_overtaken() -> None:
    assert kinds(Trouble(1.5, 1.6, "p3"), p1=FIRST, p2=SECOND, p3=THIRD) == []
    assert kinds(Trouble(1.5, 1.6, "p2"), p1=FIRST, p2=SECOND, p3=THIRD) == ["order"]
    assert kinds(Trouble(1.0, 1.1, "p3"), p1=FIRST, p2=SECOND, p3=THIRD) == ["order"]


def test_a_process_that_did_not_run_for_a_while_was_in_trouble() -> None:
    assert kinds(p1=FIRST, p2=SECOND, p3=[*THIRD, "1.9 stall 1.45", "3.5 bye"]) == []


WAITS = ["1.5 ask 1 seat None None"]


def test_a_waiter_that_hears_nothing_is_forgotten() -> None:
    assert kinds(p1=FIRST, p2=WAITS) == ["forgotten"]


def test_a_holder_that_never_ends_is_forgotten() -> None:
    assert kinds(p1=changed(FIRST, end="")) == ["forgotten"]


def test_the_dead_are_not_forgotten() -> None:
    assert kinds(p1=FIRST, p2=WAITS, dead="p2") == []


def test_who_gives_up_in_time_is_well() -> None:
    assert kinds(p1=["1.0 ask 1 seat 0.5 None", "1.5 end 1 timeout"]) == []


@pytest.mark.parametrize("timeout", ["None", "0.6"])
def test_who_is_refused_before_its_time_is_found(timeout: str) -> None:
    assert kinds(p1=[f"1.0 ask 1 seat {timeout} None", "1.5 end 1 timeout"]) == ["early"]


def test_redis_out_of_reach_needs_a_reason() -> None:
    refused = ["1.0 ask 1 seat None None", "1.5 end 1 refused"]
    assert kinds(p1=refused) == ["refused"]
    assert kinds(Trouble(1.2, 1.3), p1=refused) == []
    assert kinds(Trouble(1.2, 1.3, "p2"), p1=refused) == ["refused"]


def test_a_release_that_fails_needs_a_reason() -> None:
    failed = changed(FIRST, end="2.5 end 1 unavailable")
    assert kinds(p1=failed) == ["refused"]
    assert kinds(Trouble(2.2, 2.3, "p1"), p1=failed) == []


def test_a_lock_lost_within_its_lease_was_robbed() -> None:
    assert kinds(p1=changed(FIRST, end="2.5 end 1 lost")) == ["robbed"]
    assert kinds(FLUSH, p1=changed(FIRST, end="2.5 end 1 lost")) == []


def test_a_holder_told_that_its_lock_is_lost_within_its_lease_was_robbed() -> None:
    assert kinds(p1=[*FIRST[:3], "2.1 told 1", "2.5 end 1 lost"]) == ["robbed"]


def test_a_lock_lost_when_its_lease_has_ended_is_well() -> None:
    assert kinds(p1=[*FIRST[:3], "11.0 told 1", "11.5 end 1 lost"]) == []


def test_an_unexpected_exception_is_an_error() -> None:
    assert kinds(p1=changed(FIRST, end="2.5 end 1 ValueError('no, this')")) == ["error"]


def test_what_the_locks_log_as_an_error_is_one() -> None:
    assert kinds(p1=[*FIRST, "3.0 failure event=watchdog-failed"]) == ["error"]


def test_a_lock_that_lies_free_before_a_waiter_is_found() -> None:
    late = ["1.5 ask 1 seat None None", "4.1 got 1 200 150", "4.2 holds 1 9.0", "4.3 end 1 released"]
    assert kinds(p1=FIRST, p2=late) == ["asleep"]
    assert history(p1=FIRST, p2=late).longest_gap() == pytest.approx(2.1)
    assert kinds(Trouble(3.0, 3.1, "p9"), p1=FIRST, p2=late) == []


def test_a_free_lock_that_nobody_wants_is_well() -> None:
    late = ["4.0 ask 1 seat None None", "4.1 got 1 200 None", "4.2 holds 1 9.0", "4.3 end 1 released"]
    assert kinds(p1=FIRST, p2=late) == []


WAITED = ["3.2 ask 1 seat None None", "20.0 got 1 300 250", "20.1 holds 1 9.0", "20.2 end 1 released"]


def test_a_lock_that_lies_free_for_long_after_the_trouble_is_found() -> None:
    assert kinds(Trouble(3.1, 15.0), p1=FIRST, p2=SECOND, p3=WAITED) == []
    assert kinds(Trouble(3.1, 14.0), p1=FIRST, p2=SECOND, p3=WAITED) == ["asleep"]
    assert kinds(Trouble(3.1, 9.0), Trouble(4.0, 5.0), Trouble(9.4, 15.0), p1=FIRST, p2=SECOND, p3=WAITED) == []


def test_fences_of_different_counters_may_be_the_same() -> None:
    other = [line.replace("seat", "row").replace("got 1 200", "got 1 100") for line in SECOND]
    assert kinds(p1=FIRST, p2=other) == ["fence"]
    made = history(p1=FIRST, p2=other)
    made.counter = len
    assert made.check() == []
