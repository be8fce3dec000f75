"""Coroutines in the event loops of uvloop, which uvicorn takes where it is installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.actors import GENEROUS
from tests.helpers.jobs import require_package
from tests.helpers.processes import ROOT, environment_of_another_run

PLUGIN = """
import asyncio, warnings
import uvloop
with warnings.catch_warnings():  # from Python 3.14 on, there are to be no policies some day
    warnings.simplefilter("ignore", DeprecationWarning)
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
"""


@pytest.mark.complete
def test_coroutines_use_locks_there_as_in_loops_of_asyncio(tmp_path: Path) -> None:
    require_package("uvloop")
    (tmp_path / "of_uvloop.py").write_text(PLUGIN)
    files = ["tests/lock/test_coroutines.py", "tests/web/test_streaming.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "of_uvloop", *files]
    known = environment_of_another_run(tmp_path)
    done = subprocess.run(command, cwd=ROOT, env=known, capture_output=True, text=True, timeout=4 * GENEROUS)
    assert done.returncode == 0, done.stdout + done.stderr
