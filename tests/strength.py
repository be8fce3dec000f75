"""How strong the tests are: the share of random mutants of the package that they find.

    python -m tests.strength record                     # once: which test runs which lines (a complete run)
    python -m tests.strength measure --count 300 --seed 1

Cosmic Ray makes the mutants, none of them in what only type checkers look at. Each is given to the tests that run its
lines, in turn one that runs the least of its module, and one that runs the most; one variant of each test before the
others, and at most ``MOST`` of them. The package itself is mutated, one mutant after the other, so do nothing else in
this checkout meanwhile. Compare figures of the same seed and count only, measured by the same version of this file. Not
a part of CI: it takes hours.
"""

import argparse
import ast
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, WorkerOutcome, WorkResult
from coverage import CoverageData

PACKAGE = "django_redislock"
DATA = Path(".coverage.strength")
SESSION = Path("build/strength.sqlite")
CONFIG = Path("build/strength.toml")
MOST = 40  # tests for a mutant
WITHIN = 120.0  # seconds for them; a mutant that hangs is found
# "|" stands in annotations nearly always, where nothing evaluates it
SKIPPED = ("core/ReplaceBinaryOperator_BitOr", "core/VariableInserter", "core/VariableReplacer")

PYTEST = [sys.executable, "-m", "pytest", "--complete", "-q", "-p", "no:cacheprovider"]


def record() -> int:
    """Run everything once, and note which test runs which lines."""
    command = [*PYTEST, "--cov", "--cov-context=test", "--cov-report=", "--cov-fail-under=0"]
    done = subprocess.run(command, check=False)
    Path(".coverage").replace(DATA)
    return done.returncode


def measure(count: int, seed: int) -> int:
    """Make ``count`` mutants, and print the share that the tests find, and which they do not."""
    CONFIG.parent.mkdir(exist_ok=True)
    CONFIG.write_text(
        f'[cosmic-ray]\nmodule-path = "{PACKAGE}"\ntimeout = {WITHIN}\nexcluded-modules = ["{PACKAGE}/migrations/*"]\n'
        f'test-command = "{sys.executable} -m tests.strength find"\n[cosmic-ray.distributor]\nname = "local"\n'
    )
    SESSION.unlink(missing_ok=True)
    cosmic_ray = [sys.executable, "-m", "cosmic_ray.cli"]
    subprocess.run([*cosmic_ray, "init", str(CONFIG), str(SESSION)], check=True)
    with use_db(str(SESSION)) as session:
        places: dict[tuple[str, tuple[int, int]], list[tuple[MutationSpec, str]]] = {}
        # the ids of jobs are random
        items = [(item.mutations[0], item.job_id) for item in session.work_items]
        for one, job_id in sorted(items, key=lambda item: (item[0].operator_name, item[0].occurrence)):
            if not one.operator_name.startswith(SKIPPED):
                places.setdefault((str(one.module_path), one.start_pos), []).append((one, job_id))
        draw, kept = random.Random(seed), set[str]()
        for place in draw.sample(sorted(places), len(places)):
            if len(kept) < count:
                one, job_id = draw.choice(places[place])
                kept |= {job_id} if _is_python(one) else set()
        others = [job_id for _, job_id in items if job_id not in kept]
        session.set_multiple_results(others, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    done = subprocess.run([*cosmic_ray, "exec", str(CONFIG), str(SESSION)], check=False)
    with use_db(str(SESSION)) as session:
        results = [(item, result) for item, result in session.completed_work_items if item.job_id in kept]
        outcomes = Counter(str(result.test_outcome and result.test_outcome.value) for _, result in results)
        for item, result in results:
            if str(result.test_outcome and result.test_outcome.value) == "survived":
                one = item.mutations[0]
                print(f"not found: {one.module_path}:{one.start_pos[0]} {one.operator_name}\n{result.diff}\n")
    print(f"{len(results)} mutants, seed {seed}: {dict(outcomes)}")
    return done.returncode


def _is_python(mutation: MutationSpec) -> bool:
    """Whether the mutant compiles, and differs in what is run."""
    source = mutation.module_path.read_text()
    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    try:
        mutant = mutate_code(source, operator, mutation.occurrence)
        return mutant is not None and _what_is_run(mutant) != _what_is_run(source)
    except (AttributeError, SyntaxError):  # the former: ``except redis.RedisError`` is too much for Cosmic Ray
        return False


def _what_is_run(source: str) -> str:
    """The code without what only readers and type checkers look at."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in {"annotation", "returns"} & node.__dict__.keys():
            setattr(node, name, None)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
        if isinstance(node, ast.FunctionDef) and "overload" in map(ast.unparse, node.decorator_list):
            node.args = node.body = None  # type: ignore[assignment]
    return ast.dump(tree)


def find() -> int:
    """Run the tests for the mutant in the working tree; the exit status is 0 when they all pass."""
    diff = subprocess.run(["git", "diff", "-U0", PACKAGE], capture_output=True, text=True, check=True).stdout
    path = next(line.removeprefix("+++ b/") for line in diff.splitlines() if line.startswith("+++ "))
    line = next(int(line.split(" ")[1].split(",")[0][1:]) for line in diff.splitlines() if line.startswith("@@ "))
    tests = tests_for(path, line)
    print(f"{path}:{line}, {len(tests)} tests")
    command = [*PYTEST, "-n", "0", "-x", "--timeout", "60", *tests]
    return subprocess.run(command, check=False).returncode if tests else 0


def tests_for(path: str, line: int) -> list[str]:
    """The tests that run the statement at this line or, where it runs at import only, those that run the module."""
    data = CoverageData(str(DATA))
    data.read()
    file = next(name for name in data.measured_files() if name.endswith(path))
    # contexts such as ``tests/lock/test_order.py::test_this[threads]|run``
    by_line = data.contexts_by_lineno(file).items()
    contexts = {number: {one.rpartition("|")[0] for one in found} - {""} for number, found in by_line}
    source = subprocess.run(["git", "show", f"HEAD:{path}"], capture_output=True, text=True, check=True).stdout
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    spans = [range(node.lineno, (node.end_lineno or 0) + 1) for node in statements]
    innermost = sorted((span for span in spans if line in span), key=len)
    runners = (set().union(*(contexts.get(number, set()) for number in span)) for span in innermost)
    tests = next(filter(None, runners), set().union(*contexts.values()))
    runs = Counter(one for found in contexts.values() for one in found)
    in_order = sorted(tests, key=lambda one: (runs[one], one))
    both_ends = [one for pair in zip(in_order, reversed(in_order), strict=True) for one in pair]
    firsts = {*{one.partition("[")[0]: one for one in reversed(both_ends)}.values()}  # not forty variants of one test
    return sorted(dict.fromkeys(both_ends), key=lambda one: one not in firsts)[:MOST]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "measure", "find"])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.action == "measure":
        return measure(options.count, options.seed)
    return record() if options.action == "record" else find()


if __name__ == "__main__":
    sys.exit(main())
