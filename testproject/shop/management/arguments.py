"""Types of the commands' arguments."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from math import inf
from pathlib import Path


def number(kind: Callable[[str], float], least: float, most: float = inf) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            found = kind(text)
        except ValueError:
            found = -inf
        if not least <= found <= most:
            raise ArgumentTypeError(f"must be a number from {least} to {most}, not {text!r}")
        return found

    return parse


def folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise ArgumentTypeError(f"must be a folder, not {text!r}")
    return Path(text).resolve()


def new_file(text: str) -> Path:
    folder(str(Path(text).parent))
    return Path(text)
