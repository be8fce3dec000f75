"""Getting locks, holding them and giving them back: what Lock, pools, decorators and commands are made of."""

from __future__ import annotations

from .acquisition import Acquisition, Frame
from .extension import detach, draw_new_fence, release_by_token, renew, renew_by_token, start_listening
from .held import Runner, caller, find, hide, holds, twin, under
from .lease import Lease
from .owner import describe_owner
from .release import log_unreleased, release_detached
from .several import Several, around, make_acquisition
from .with_block import Enterable, ExitMethod, WithBlock, block_of

__all__ = [
    "Acquisition",
    "Enterable",
    "ExitMethod",
    "Frame",
    "Lease",
    "Runner",
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
    "log_unreleased",
    "make_acquisition",
    "release_by_token",
    "release_detached",
    "renew",
    "renew_by_token",
    "start_listening",
    "twin",
    "under",
]
