"""Programs that the tests start."""

import subprocess
import sys
from textwrap import dedent

from tests.helpers.processes import environment


def run_code(code: str) -> None:
    """Run it, indented as it is in a function, in a process of its own in which Django is set up."""
    program = f"import django\ndjango.setup()\n{dedent(code)}"
    subprocess.run([sys.executable, "-c", program], check=True, env=environment(), timeout=60)


def complaints(said: str, *, but: str = "nothing") -> list[str]:
    """The lines of stderr that must not appear if all is well."""
    words = ("Traceback", "Warning: ", "never awaited", "was destroyed", "event=", "Exception ignored")
    known = (but, "Warning: Enable tracemalloc")
    return [line for line in said.splitlines() if any(w in line for w in words) and not any(k in line for k in known)]
