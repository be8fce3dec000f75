"""Describes the machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from .contenders import packages
from .serverstats import Observer


def describe(observer: Observer) -> dict[str, str]:
    """Machine and versions, by label."""
    found = {
        "CPUs": f"{os.cpu_count()} x {_cpu()}",
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "server": observer.version(),
    }
    for package in ("Django", "redis", "hiredis", "django-redis", *packages()):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
