import sys

from .search import search
from .world import Scene

homes, tokens, faults, *rule = sys.argv[1:]
print(search(Scene(tuple(map(int, homes)), tokens, int(faults), *rule)))
