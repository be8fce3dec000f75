"""Fixtures of the tests of inspection."""

from __future__ import annotations
