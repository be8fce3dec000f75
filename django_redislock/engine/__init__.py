"""Getting locks, holding them and giving them back: what Lock, pools, decorators and commands are made of."""

from __future__ import annotations

from .acquiring.acquisition import Acquisition, Frame
from .acquiring.extension import detach, draw_new_fence, renew, renew_by_token, start_listening
from .acquiring.release import release, release_by_token, release_quietly, release_surely
from .leases.lease import Lease, Section
from .owners.description import describe_owner
from .owners.held import find, hide, holds, under
from .owners.twin import twin
from .owners.with_block import ExitMethod, WithBlock, block_of, section_of

__all__ = [
    "Acquisition",
    "ExitMethod",
    "Frame",
    "Lease",
    "Section",
    "WithBlock",
    "block_of",
    "describe_owner",
    "detach",
    "draw_new_fence",
    "find",
    "hide",
    "holds",
    "release",
    "release_by_token",
    "release_quietly",
    "release_surely",
    "renew",
    "renew_by_token",
    "section_of",
    "start_listening",
    "twin",
    "under",
]
