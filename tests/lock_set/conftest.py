"""Fixtures of other folders."""

from tests.engine.conftest import gates
from tests.fencing.conftest import account, ledger
from tests.lock.conftest import network

__all__ = ["account", "gates", "ledger", "network"]
