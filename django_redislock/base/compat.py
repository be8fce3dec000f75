"""What Python 3.10 does not have in ``typing``: for annotations, which tools may evaluate while the site runs."""

import sys

if sys.version_info >= (3, 11):
    from typing import Self, Unpack
else:  # pragma: no cover
    from typing_extensions import Self, Unpack

__all__ = ["Self", "Unpack"]
