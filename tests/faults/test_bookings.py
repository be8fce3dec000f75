"""The checker finds violations in bookings, and none if all is well."""

from __future__ import annotations

from pathlib import Path

import pytest

from .bookings import Bookings

# b1 has committed before b2 claims
FIRST = ["1.0 entered 1 seat 0.9", "1.1 claimed 1 100", "1.3 committed 1 1 1.2"]
SECOND = ["1.1 entered 1 seat 0.5", "1.4 claimed 1 200", "1.6 committed 1 2 1.5"]


def bookings(folder: Path, *logs: list[str]) -> Bookings:
    for number, lines in enumerate(logs):
        (folder / f"b{number}.log").write_text("".join(f"{line}\n" for line in lines))
    made = Bookings()
    made.read(folder)
    return made


def kinds(made: Bookings, balance: int = 2, fence: int | None = 200) -> list[str]:
    fences = {} if fence is None else {"seat": fence}
    return [violation.kind for violation in made.check({"seat": balance}, fences)]


def test_one_booking_after_the_other_is_no_violation(tmp_path: Path) -> None:
    made = bookings(tmp_path, FIRST, SECOND)
    assert kinds(made) == []
    assert (made.lost({"seat": 2}), made.refused, made.told) == (0, 0, 0)
    assert made.longest_wait() == pytest.approx(0.6)


def test_two_bookings_that_wrote_the_same_value_are_a_lost_update(tmp_path: Path) -> None:
    made = bookings(tmp_path, FIRST, [*SECOND[:2], "1.6 committed 1 1 1.5"])
    assert kinds(made, balance=1) == ["lost"]
    assert made.lost({"seat": 1}) == 1


def test_a_balance_without_the_last_commit_is_a_lost_update(tmp_path: Path) -> None:
    assert kinds(bookings(tmp_path, FIRST, SECOND), balance=1) == ["lost"]


def test_a_commit_without_a_claim_is_found(tmp_path: Path) -> None:
    assert kinds(bookings(tmp_path, FIRST, [SECOND[0], SECOND[2]]), fence=100) == ["unclaimed", "order"]


@pytest.mark.parametrize("fence", [99, 100])
def test_a_later_commit_with_a_lower_or_equal_fence_is_found(tmp_path: Path, fence: int) -> None:
    lower = [SECOND[0], f"1.4 claimed 1 {fence}", SECOND[2]]
    assert kinds(bookings(tmp_path, FIRST, lower), fence=100) == ["order"]


def test_two_claims_that_are_open_at_once_are_found(tmp_path: Path) -> None:
    assert kinds(bookings(tmp_path, FIRST, [SECOND[0], "1.15 claimed 1 200", SECOND[2]])) == ["overlap"]


def test_a_table_that_does_not_end_at_the_highest_committed_fence_is_found(tmp_path: Path) -> None:
    made = bookings(tmp_path, FIRST, SECOND)
    assert [kinds(made, fence=fence) for fence in (None, 100, 300)] == [["row"]] * 3


def test_a_refused_booking_has_written_nothing(tmp_path: Path) -> None:
    late = ["2.0 entered 1 seat 1.9", "2.1 claimed 1 150", "2.2 told 1 LockLost"]
    made = bookings(tmp_path, FIRST, SECOND, late)
    assert kinds(made) == []
    assert (made.refused, made.told) == (1, 0)


def test_an_error_after_the_commit_is_counted_separately(tmp_path: Path) -> None:
    made = bookings(tmp_path, FIRST, [*SECOND, "1.7 told 1 LockLost"])
    assert (made.refused, made.told) == (0, 1)


def test_a_booker_that_never_had_the_lock_has_no_section(tmp_path: Path) -> None:
    assert len(bookings(tmp_path, FIRST, ["1.0 told 1 LockUnavailable"]).all) == 1


def test_an_error_that_the_locks_log_is_a_violation(tmp_path: Path) -> None:
    assert kinds(bookings(tmp_path, FIRST, SECOND, ["1.0 failure something broke"])) == ["error"]
