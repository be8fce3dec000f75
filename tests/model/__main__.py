import sys

from .search import search
from .world import Scene

modes, homes, faults, *rule = sys.argv[1:]
print(search(Scene(modes, tuple(map(int, homes)), int(faults), *rule)))
