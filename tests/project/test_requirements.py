"""What a test run reports about a machine that lacks something."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.project.programs import ROOT, environment

pytestmark = pytest.mark.complete

NEEDS_A_BROWSER = "tests/admin/test_browser.py::test_search_and_sort"
CHROMIUM = "Chromium (apt-get install chromium, or name an executable in CHROMIUM)"


def run(**variables: str) -> tuple[int, list[str]]:
    """The exit code of such a run, and its lines."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--complete", NEEDS_A_BROWSER]
    ours = {key: value for key, value in environment().items() if key != "CI" and not key.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env={**ours, **variables}, capture_output=True, text=True, timeout=120)
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()


def test_without_a_browser_its_tests_are_left_out_and_the_end_says_so() -> None:
    code, lines = run(CHROMIUM="no-such-browser")
    assert code == 0
    assert lines[-2] == f"Left out: 1 test that needs {CHROMIUM}."
    assert "1 skipped" in lines[-1]


def test_in_ci_nothing_may_be_missing() -> None:
    code, lines = run(CHROMIUM="no-such-browser", CI="1")
    assert code == 1
    assert f"the machine lacks {CHROMIUM}" in lines
    assert "1 error" in lines[-1]


def test_without_a_redis_no_test_begins() -> None:
    code, lines = run(REDIS_SERVER="no-such-server")
    assert code == 4
    assert lines[-1].startswith("ERROR: REDIS_SERVER='no-such-server' is no executable. No Redis server was found.")
