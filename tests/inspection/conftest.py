"""Fixtures of the tests of inspection."""

from __future__ import annotations

from tests.helpers.listed import endless as endless
from tests.helpers.listed import trips as trips
from tests.helpers.listed import two_aliases as two_aliases
