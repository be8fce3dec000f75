import sys

from .search import search
from .world import read_scene

print(search(read_scene(sys.argv[1:])))
