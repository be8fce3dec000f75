#!/usr/bin/env python
"""The shop's command line."""

from __future__ import annotations

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit('Django is not installed. From the repository\'s root: python -m pip install -e ".[demo]"')
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
