"""Raises exceptions where the interpreter runs signal handlers, at one place after the other.

CPython runs them when a function begins, after a call has returned, and when a loop jumps back. The same holds for an
exception that another thread sends (PyThreadState_SetAsyncExc). Time limits of task queues use either way.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any


class Interrupt(BaseException):
    """The exception that a signal handler raises."""


class Interrupter:
    """Runs a function and raises Interrupt at the ``place``-th of these places (None: nowhere, only counts them).

    Only places in files that ``where`` accepts count, except those in finalizers, whose exceptions Python swallows.
    """

    def __init__(self, where: Callable[[str], bool], place: int | None = None) -> None:
        self.places = 0
        self.struck = ""  # where it raised, for messages
        self._where = where
        self._place = place
        self._before: dict[int, str] = {}  # instructions by ids of frames, since this must not keep the frames alive

    def run(self, function: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # otherwise Python 3.12 reports no opcodes the first time
        sys.settrace(self._enter)
        try:
            return function()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self._where(frame.f_code.co_filename) or _in_finalizer(frame):
            return None
        self._before.pop(id(frame), None)
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            name = _instructions(frame.f_code).get(frame.f_lasti, "")
            returned = self._before.get(id(frame), "").startswith("CALL")
            self._before[id(frame)] = name
            if returned or name in ("RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE"):
                self.places += 1
                if self.places - 1 == self._place:
                    code = frame.f_code
                    self.struck = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}, before {name}"
                    raise Interrupt
        return self._step


def _in_finalizer(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


@cache
def _instructions(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}
