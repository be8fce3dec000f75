"""What a test run reports about a machine that lacks something: nothing is left out in silence."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.project.programs import ROOT, environment

pytestmark = pytest.mark.complete

NEEDS_A_BROWSER = "tests/admin/test_browser.py::test_the_index_leads_to_the_list_which_sorts_and_searches"
CHROMIUM = "Chromium (apt-get install chromium, or name an executable in CHROMIUM)"


@pytest.mark.parametrize(
    ("in_ci", "code", "said", "last"),
    [
        ({}, 0, f"Left out: 1 test that needs {CHROMIUM}.", "1 skipped"),
        ({"CI": "1"}, 1, f"the machine lacks {CHROMIUM}", "1 error"),
    ],
)
def test_without_a_browser_its_tests_are_left_out_and_the_end_says_so_but_not_in_ci(
    in_ci: dict[str, str], code: int, said: str, last: str
) -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--complete", NEEDS_A_BROWSER]
    ours = {key: value for key, value in environment().items() if key != "CI" and not key.startswith("PYTEST_")}
    variables = {**ours, **in_ci, "CHROMIUM": "no-such-browser"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120)
    lines = (done.stdout + done.stderr).strip().splitlines()
    assert done.returncode == code
    assert said in lines
    assert last in lines[-1]
