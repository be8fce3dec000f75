import sys
from typing import Any

from .search import search
from .world import Scene

homes, tokens, faults, *rest = sys.argv[1:]
given: dict[str, Any] = {}
for word in rest:
    key, equals, value = word.partition("=")
    given[key if equals else "without"] = (int(value) if value.isdigit() else value) if equals else word
print(search(Scene(tuple(map(int, homes)), tokens, int(faults), **given)))
