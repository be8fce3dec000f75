"""What the jobs of the tests do."""

from __future__ import annotations

from django_redislock import Lock, LockInfo


def owner() -> str:
    """Of a lock that is held here, without host and process id."""
    with Lock("a") as lock:
        return shown(lock.info())


async def aowner() -> str:
    """The same in a coroutine."""
    async with Lock("a") as lock:
        return shown(await lock.ainfo())


def shown(info: LockInfo | None) -> str:
    assert info is not None
    return info.owner.split(":", 2)[2]
