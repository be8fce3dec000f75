"""Getting locks, holding them and giving them back: what Lock, pools, decorators and commands are made of."""

from __future__ import annotations

from .acquisition import Acquisition, Frame
from .extension import detach, draw_new_fence, release_by_token, renew, renew_by_token, start_listening
from .held import caller, find, hide, holds, twin, under
from .lease import Lease
from .owner import describe_owner
from .several import Several, around, in_order, make_section
from .with_block import ExitMethod, WithBlock, block_of, section_of

__all__ = [
    "Acquisition",
    "ExitMethod",
    "Frame",
    "Lease",
    "Several",
    "WithBlock",
    "around",
    "block_of",
    "caller",
    "describe_owner",
    "detach",
    "draw_new_fence",
    "find",
    "hide",
    "holds",
    "in_order",
    "make_section",
    "release_by_token",
    "renew",
    "renew_by_token",
    "section_of",
    "start_listening",
    "twin",
    "under",
]
