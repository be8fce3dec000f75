"""Locks in processes that fork, and in pools of processes."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.actors import until
from tests.helpers.processes import Worker
from tests.helpers.state import holder, value

pytestmark = pytest.mark.complete

Start = Callable[..., Worker]


def test_a_child_forked_in_an_event_loop_that_holds_a_lock_neither_renews_nor_releases_it(
    start: Start, client: Any
) -> None:
    code = """
import asyncio
lock = Lock("seat", ttl=6)

async def give_back():
    try:
        await lock.arelease()
    except LockNotOwned:
        say("refused", lock.remaining(), await lock.aowned())
    say("tried", await lock.aacquire(blocking=False))
    async with Lock("other", ttl=60) as other:
        say("works", await other.aowned())

async def main():
    await lock.aacquire()
    await asyncio.sleep(0.5)
    if not os.fork():
        say("forked", os.getpid())
        asyncio.run(give_back())
        time.sleep(60)
        os._exit(0)
    await asyncio.to_thread(hear)

asyncio.run(main())
"""
    parent = start(code, fresh=True)  # a child of this process, which waits for it
    (child,) = parent.expect("forked")
    try:
        assert parent.expect("refused") == ["0.0", "False"]
        assert parent.expect("tried") == ["False"]
        assert parent.expect("works") == ["True"]
        assert f":{parent.pid}:" in value(client, "seat")[-1]
        os.kill(parent.pid, signal.SIGSTOP)
        os.waitpid(parent.pid, os.WUNTRACED)
        until(lambda: not holder(client, "seat"))  # the child, alive, does not renew
        os.kill(int(child), 0)
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_a_child_that_is_forked_while_a_script_is_put_together_can_use_locks(start: Start) -> None:
    code = """
from tests.inside import while_a_script_is_put_together

if while_a_script_is_put_together(os.fork) == 0:
    Lock("seat").suspend(60)  # by a script that nobody has called yet
    say("works")
    os._exit(0)
os.wait()
"""
    start(code, fresh=True).expect("works")
