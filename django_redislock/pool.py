"""``LockPool``: a named set of lockable members, of which any free one can be taken: accounts, proxies, devices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from redis.backoff import AbstractBackoff

from . import scripts
from .conf import Seconds
from .connection import Backend, get_backend
from .lease import Lease, OnLost
from .listing import read_matching
from .lock import Lock, Loop, tokens_here
from .names import Keys, check_name, make_keys, member_name, pool_name, quote, unquoted
from .owner import Bond
from .registry import LockInfo, LockStatus, WaiterInfo, read_queue, read_statuses
from .steps import Steps, arun, run_blocking
from .texts import shown

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.11 has it in typing


class MemberOptions(TypedDict, total=False):
    """What :meth:`LockPool.acquire` takes of the options of a :class:`Lock`; the others make no sense there."""

    ttl: Seconds | None
    blocking_timeout: Seconds | None
    auto_renew: bool | None
    on_lost: OnLost | Literal["cancel"] | None
    wait: Literal["wake", "poll"] | None
    backoff: AbstractBackoff | None
    attempts: int | None
    note: str


class Member(Lock):
    """A :class:`Lock` on the member of a pool that was free; ``key`` says which one it is."""

    __slots__ = ("_mode", "key")

    def __init__(self, pool: str, *, fair: bool, using: str | None, **options: Unpack[MemberOptions]) -> None:
        super().__init__(quote(pool), using=using, **options)
        self.name = pool_name(pool)  # until it has one of its own
        self._mode = "F" if fair else "L"
        self.key = ""

    def _hold(self, lease: Lease, bond: Bond) -> None:
        # asked for by the name of the pool, got by one of its own
        self.name = lease.name
        self.key = unquoted(lease.name.rpartition(":")[2])
        super()._hold(lease, bond)

    def _enter(self, loop: Loop | None, *, seizes: bool = False) -> Steps[None]:
        if seizes or self._find() is None:  # else it comes from pool.acquire()
            yield from super()._enter(loop, seizes=seizes)


@dataclass(frozen=True)
class PoolInfo:
    """What Redis said about a pool. ``waiters`` counts all who wait for any member, ``queue`` has the first 100."""

    name: str
    members: int
    free: int
    locks: tuple[LockInfo, ...]  # of the members that are held
    waiters: int
    queue: tuple[WaiterInfo, ...]


class LockPool:
    """A named set of lockable members in Redis, shared by all processes.

    A member is free or held; :meth:`acquire` takes a free one, the one that has not been used for longest, and waits
    where there is none, as for any lock. Each is a lock of its own, ``lock_name("pool", name, key)``: ``redislocks
    list`` shows who has it, and ``Lock`` on that name takes this very member.

    ``name``: 1 to about 500 bytes. ``using``: alias in ``CACHES``; None: by the settings. All methods raise
    LockUnavailable when Redis cannot be reached, and have a twin for coroutines (``aextend`` ...).
    """

    __slots__ = ("name", "using")

    def __init__(self, name: str, *, using: str | None = None) -> None:
        self.name = check_name(name, "pool")
        self.using = using
        member_name(name, "1", "pool")  # may be too long, quoted

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # -- members ----------------------------------------------------------------------------------------------------

    def extend(self, keys: Iterable[str]) -> int:
        """Add members, any number in one atomic step; answers how many are new. Whoever waits for one is served."""
        return run_blocking(self._settle("extend", keys), "aextend")

    async def aextend(self, keys: Iterable[str]) -> int:
        """See extend()."""
        return await arun(self._settle("extend", keys))

    def shrink(self, keys: Iterable[str]) -> int:
        """Take members out; answers how many there were. One that is held stays until its release, and then is gone."""
        return run_blocking(self._settle("shrink", keys), "ashrink")

    async def ashrink(self, keys: Iterable[str]) -> int:
        """See shrink()."""
        return await arun(self._settle("shrink", keys))

    def assign(self, keys: Iterable[str]) -> int:
        """Have these members and no others, in one atomic step; answers how many are new. Held ones: see shrink()."""
        return run_blocking(self._settle("assign", keys), "aassign")

    async def aassign(self, keys: Iterable[str]) -> int:
        """See assign()."""
        return await arun(self._settle("assign", keys))

    def clear(self) -> None:
        """Take all members out. Held ones: see shrink()."""
        self.assign(())

    async def aclear(self) -> None:
        """See clear()."""
        await self.aassign(())

    def keys(self) -> list[str]:
        """The members, held or free, by name."""
        return run_blocking(self._keys(), "akeys")

    async def akeys(self) -> list[str]:
        """See keys()."""
        return await arun(self._keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    async def __aiter__(self) -> AsyncIterator[str]:
        for key in await self.akeys():
            yield key

    def __contains__(self, key: object) -> bool:
        return run_blocking(self._contains(key), "acontains")

    async def acontains(self, key: object) -> bool:
        """Whether ``key`` is a member."""
        return await arun(self._contains(key))

    def __len__(self) -> int:
        return run_blocking(self._len(), "alen")

    async def alen(self) -> int:
        """How many members there are."""
        return await arun(self._len())

    def __bool__(self) -> bool:
        return True  # whatever is in it: truth must cost no round trip

    # -- what they are doing ----------------------------------------------------------------------------------------

    def items_locked_status(self) -> list[tuple[str, LockStatus]]:
        """Each member with its status, in two round trips."""
        return run_blocking(self._items(), "aitems_locked_status")

    async def aitems_locked_status(self) -> list[tuple[str, LockStatus]]:
        """See items_locked_status()."""
        return await arun(self._items())

    def values_lock_status(self) -> list[LockStatus]:
        """The statuses of :meth:`keys`, in their order."""
        return [status for _, status in self.items_locked_status()]

    async def avalues_lock_status(self) -> list[LockStatus]:
        """See values_lock_status()."""
        return [status for _, status in await self.aitems_locked_status()]

    def health_check(self) -> tuple[int, int]:
        """How many members are (locked, free)."""
        return _count(self.values_lock_status())

    async def ahealth_check(self) -> tuple[int, int]:
        """See health_check()."""
        return _count(await self.avalues_lock_status())

    def info(self) -> PoolInfo:
        """For people: who holds which members, and who waits; in five round trips, so not all of one moment."""
        return run_blocking(self._info(), "ainfo")

    async def ainfo(self) -> PoolInfo:
        """See info()."""
        return await arun(self._info())

    # -- taking one -------------------------------------------------------------------------------------------------

    def acquire(self, *, fair: bool = False, **options: Unpack[MemberOptions]) -> Member:
        """Take the free member that has not been used for longest, in one round trip, and answer it as a held lock.

            with pool.acquire(blocking_timeout=5) as account:
                call_api(account.key)

        Waits until one is free, at most ``blocking_timeout`` seconds (0: not at all; None: by the settings); then
        LockNotAcquired. ``fair``: strictly first come, first served. The other options are those of :class:`Lock`, with
        the same meaning: ``ttl``, ``auto_renew``, ``on_lost``, ``wait``, ``backoff``, ``attempts``, ``note``.
        """
        return run_blocking(self._checkout(self._member(fair, options), None), "aacquire")

    async def aacquire(self, *, fair: bool = False, **options: Unpack[MemberOptions]) -> Member:
        """See acquire(): ``async with await pool.aacquire() as account``."""
        return await arun(self._checkout(self._member(fair, options), asyncio.get_running_loop()))

    # -- how it is done, for sync and async alike -------------------------------------------------------------------

    def _member(self, fair: bool, options: MemberOptions) -> Member:
        known = MemberOptions.__annotations__
        if unknown := options.keys() - known:
            raise TypeError(
                f"LockPool.acquire() knows no option {min(unknown)!r}; there are: fair, {', '.join(known)}."
            )
        return Member(self.name, fair=fair, using=self.using, **options)

    def _checkout(self, member: Member, loop: Loop | None) -> Steps[Member]:
        refusal = yield from member._take(loop)
        if refusal is not None:
            raise refusal
        return member

    def _settle(self, how: str, keys: Iterable[str]) -> Steps[int]:
        if isinstance(keys, str):
            raise TypeError(f"The members of a pool must be an iterable of str, not the one str {keys!r}.")
        members = list(dict.fromkeys(map(self._quoted, keys)))
        backend, wanted = self._place()
        return (yield from scripts.settle(backend, wanted, pool_name(self.name), how, members))

    def _quoted(self, key: object) -> str:
        if not isinstance(key, str) or not key:
            raise TypeError(f"A member of a pool must be a str that is not empty, not {shown(key)}.")
        member_name(self.name, key)  # may be too long
        return quote(key)

    def _place(self) -> tuple[Backend, Keys]:
        backend = get_backend(self.using)
        return backend, make_keys(backend.prefix, pool_name(self.name))

    def _ask(self, *command: Any) -> Steps[Any]:
        """One command on the sorted set of members."""
        backend, keys = self._place()
        return (yield from scripts.look(backend, keys, pool_name(self.name), *command))

    def _keys(self) -> Steps[list[str]]:
        answer = yield from self._ask("ZRANGE", 0, -1)
        backend, _ = self._place()
        return [unquoted(scripts.check_member(backend, pool_name(self.name), raw)) for raw in answer]

    def _contains(self, key: object) -> Steps[bool]:
        if not isinstance(key, str):
            return False
        return (yield from self._ask("ZSCORE", quote(key))) is not None

    def _len(self) -> Steps[int]:
        return (yield from self._ask("ZCARD"))  # type: ignore[no-any-return]

    def _items(self) -> Steps[list[tuple[str, LockStatus]]]:
        backend, _ = self._place()
        keys = yield from self._keys()
        names = [member_name(self.name, key) for key in keys]
        statuses = yield from read_statuses(backend, names, tokens_here(backend))
        return list(zip(keys, statuses, strict=True))

    def _info(self) -> Steps[PoolInfo]:
        backend, _ = self._place()
        asked = pool_name(self.name)
        items = yield from self._items()
        _, free = _count([status for _, status in items])
        locks = yield from read_matching(backend, lambda name: name.rpartition(":")[0] == asked[:-1])
        waiters, queue = yield from read_queue(backend, asked)
        return PoolInfo(self.name, len(items), free, tuple(locks), waiters, tuple(queue))


def _count(statuses: list[LockStatus]) -> tuple[int, int]:
    free = statuses.count(LockStatus.FREE)
    return len(statuses) - free, free
