"""Locks in processes that fork, and in pools of processes."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from django_redislock import list_locks
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


# A child is forked inside a section, and leaves it. What it has begun in the background is sent before it ends
LEAVES = """
import asyncio
from django.conf import settings
from django.core.cache import caches
from django.http import StreamingHttpResponse
from django.test import RequestFactory

LockPool("accounts").extend(["alice"])
child = False

def fork():
    global child
    child = not os.fork()
    if not child:
        _, status = os.wait()
        say("child-ended", status)
        hear()
    elif fails:
        raise ValueError("of the block")

def block():
    with Lock("seat", ttl=600):
        fork()

def reentrant():
    lock = Lock("seat", ttl=600, reentrant=True)
    with lock, lock:
        fork()

def member():
    with LockPool("accounts").acquire(ttl=600):
        fork()

def decorated():
    locked("seat", ttl=600)(fork)()

def kept():
    locked("seat", at_least=5, ttl=600)(fork)()

def coroutine():
    async def main():
        try:
            async with Lock("seat", ttl=600):
                fork()
        except LockNotOwned:
            say("child-left LockNotOwned")
            os._exit(0)  # the loop shares its epoll with that of the parent
    asyncio.run(main())

def cache_lock():
    drop_in = {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": os.environ["REDISLOCK_TEST_URL"]}
    settings.CACHES["drop-in"] = drop_in
    with caches["drop-in"].lock("seat", timeout=600):
        fork()

def stream():
    view = locked_view("seat", ttl=600)(lambda request: StreamingHttpResponse([b"x"]))
    response = view(RequestFactory().get("/"))
    fork()
    response.close()  # which raises nothing

try:
    globals()[how]()
except Exception as error:
    if not child:
        raise
    say("child-left", type(error).__name__)
else:
    say("child-left" if child else "released")
if not child:
    hear()
"""


@pytest.mark.parametrize(
    ("how", "fails", "error"),
    [
        ("block", False, "LockNotOwned"),
        ("block", True, "ValueError"),
        ("reentrant", False, "LockNotOwned"),
        ("decorated", False, "LockNotOwned"),
        ("kept", False, "LockNotOwned"),
        ("coroutine", False, "LockNotOwned"),
        ("member", False, "LockNotOwned"),
        ("cache_lock", False, "LockError"),
        ("stream", False, ""),
    ],
)
def test_a_child_that_leaves_the_section_it_was_forked_in_does_not_release_the_lock(
    how: str, fails: bool, error: str, start: Start
) -> None:
    parent = start(LEAVES, fresh=True, how=how, fails=fails)
    assert parent.expect("child-left") == error.split()
    assert parent.expect("child-ended") == ["0"]
    (held,) = list_locks()
    assert f":{parent.pid}:" in held.owner
    assert held.lease_left > 300
    parent.tell()
    parent.expect("released")
    until(lambda: not list_locks())
