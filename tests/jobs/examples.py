"""The jobs that the sites of all queues have: their names, arguments, locks and notes are the same everywhere."""

from collections.abc import Callable
from typing import Any

from django_redislock import LockNotAcquired
from tests.helpers.jobs import gate, held, note, runs

REPORT, PAGE = {"lock": "report:{year}", "lock_from": "enqueue"}, {"lock": "page:{year}"}

# beside "report", which each site declares as the documentation does
EXAMPLES: dict[str, dict[str, Any]] = {
    "strict": {**REPORT, "busy": "raise"},
    "patient": {**REPORT, "busy": "retry"},
    "sync": {**REPORT, "busy": "merge"},
    "stubborn": REPORT,  # two retries, after 10 minutes or more each, where the queue has retries
    "page": PAGE,
    "later": {**PAGE, "busy": "retry"},
    "impatient": {**PAGE, "busy": "raise"},
    "outer": {"lock": "outer:{year}", "lock_from": "enqueue"},
}


class Trouble(Exception):
    pass


def run(name: str, year: Any, wait: str = "", fails: int = 0, tried: int = 0) -> str:
    """What they do: note who they are, wait at a gate, fail in so many runs. ``tried``: the retries they have used."""
    note(name, year, *(["after", tried] if tried else []))
    number = sum(line.startswith(f"{name} {year}") for line in runs())
    gate(wait)
    if number <= fails:
        raise Trouble
    return f"{name} {year}"


def examples(
    module: str,
    make: Callable[..., Any],
    tried: Callable[..., int] = lambda **context: 0,
    call: Callable[..., Any] = lambda job, year: job(year),
) -> dict[str, Any]:
    """Let ``make`` declare all of them. ``call`` calls one like a function; ``context``: what the queue adds."""
    made: dict[str, Any] = {}

    def declare(name: str, options: dict[str, Any]) -> None:
        def job(year: int, wait: str = "", fails: int = 0, **context: Any) -> Any:
            if name != "outer":
                return run(name, year, wait, fails, tried(**context))
            return calls(made["outer"], year) if year else sorted(held())

        job.__module__, job.__name__, job.__qualname__ = module, name, name
        made[name] = make(job, **options)

    def calls(outer: Any, year: int) -> list[Any]:
        try:
            return [call(outer, year)]  # its own lock, once more
        except LockNotAcquired:
            return [call(outer, 0), call(outer, 0), call(made["patient"], 8)]

    for name, options in EXAMPLES.items():
        declare(name, options)
    return made
