"""``LockPool``: a named set of lockable members, any free one of which can be acquired: accounts, proxies, devices.

``PoolMember`` is a lock on one of them, which is held already.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

from .base import Self, Unpack
from .base.display import shown
from .base.names import check_name, member_name, pool_name, quote, unquoted
from .base.steps import Steps, arun, run_blocking
from .base.times import Deadline, Seconds
from .engine.acquisition import Acquisition
from .engine.held import Runner, caller, holds, twin
from .engine.lease import Lease
from .engine.with_block import block_of
from .exceptions import LockError, LockNotAcquired, LockUnavailable
from .inspection.info import LockStatus, resume, suspend
from .inspection.lists import PoolInfo, count_states, inspect_pool, read_items, read_keys
from .lock import Lock
from .options import AcquireOptions, LockOptions, read_options
from .store.calls_once import change_members, count_members, has_member, replace_members
from .store.lock_store import Partition
from .store.stores import get_partition


class PoolMember(Lock):
    """An already acquired :class:`Lock` on a member of a pool, as :meth:`LockPool.acquire` returns it.

    ``key`` is the member. ``with`` does not acquire it again, and releases it at its end. A second ``with`` inside of
    that raises LockError. So does one where it is not held: in another thread or task, or after it was released.
    """

    __slots__ = ("_entered", "key")

    def __init__(self, name: str, **options: Unpack[LockOptions]) -> None:
        super().__init__(name, **options)
        self.key: str = unquoted(name.rpartition(":")[2])
        self._entered: Lease | None = None  # by a block, which will release it

    @classmethod
    def of(cls, acquisition: Acquisition) -> Self:
        """The member that was acquired."""
        member = cls(acquisition.its_lease.name)
        member._options = acquisition.options
        acquisition.belongs_to(member)
        return member

    def __enter__(self) -> Self:
        acquisition = self._held("enter a block with")
        if acquisition.its_lease.lost:  # and may be somebody else's
            raise acquisition.its_lease.lost_error()
        if acquisition.its_lease is self._entered:
            raise LockError(
                f"Cannot enter a block with the member {self.name!r}: this thread or task is in one already, which "
                f"releases it.",
                self.name,
            )
        self._entered = acquisition.its_lease
        block = block_of(self)
        if block is not None:
            block.enter(acquisition)
        return self

    async def __aenter__(self) -> Self:
        return self.__enter__()


NONE_HELD = 5.0  # seconds that checkout.lua gives where no lease will end


class LockPool:
    """A named set of lockable members in Redis, shared by all processes.

    A member is free or held; :meth:`acquire` takes the free one that has been unused the longest, and waits if there
    is none, first come, first served. Each is a lock of its own, ``lock_name("pool", name, key)``:
    ``redislocks list`` shows who has it, and ``Lock`` on that name acquires this very member.

    ``name``: 1 to about 500 bytes. ``using``: alias in ``CACHES``; None: from the settings. All methods raise
    LockUnavailable when Redis cannot be reached, and have a twin for coroutines (``aextend`` ...).
    """

    __slots__ = ("name", "using")

    def __init__(self, name: str, *, using: str | None = None) -> None:
        self.name: str = check_name(name, "pool")
        self.using: str | None = using
        member_name(name, "1", "pool")  # once quoted, it may be too long

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # -- members ----------------------------------------------------------------------------------------------------

    def extend(self, keys: Iterable[str]) -> int:
        """Add members; return how many are new. Waiters are served. Also restores what was evicted of them.

        Many are added in steps of 250, each atomic. After LockUnavailable, some may have been added: call it again.
        """
        return run_blocking(change_members(*self._location(), "add", self._quoted(keys)), "Await aextend() instead")

    async def aextend(self, keys: Iterable[str]) -> int:
        """See extend()."""
        return await arun(change_members(*self._location(), "add", self._quoted(keys)))

    def shrink(self, keys: Iterable[str]) -> int:
        """Remove members; return how many were removed. A held one stays locked until its holder releases it.

        In steps, like extend().
        """
        return run_blocking(change_members(*self._location(), "remove", self._quoted(keys)), "Await ashrink() instead")

    async def ashrink(self, keys: Iterable[str]) -> int:
        """See shrink()."""
        return await arun(change_members(*self._location(), "remove", self._quoted(keys)))

    def assign(self, keys: Iterable[str]) -> int:
        """Make these the only members; return how many are new. Held ones that are removed: see shrink().

        However many they are, all change at one moment. (They are sent beforehand, in steps of 250.)
        """
        return run_blocking(replace_members(*self._location(), self._quoted(keys)), "Await aassign() instead")

    async def aassign(self, keys: Iterable[str]) -> int:
        """See assign()."""
        return await arun(replace_members(*self._location(), self._quoted(keys)))

    def clear(self) -> None:
        """Remove all members. Held ones: see shrink()."""
        run_blocking(replace_members(*self._location(), []), "Await aclear() instead")

    async def aclear(self) -> None:
        """See clear()."""
        await self.aassign(())

    def keys(self) -> list[str]:
        """The members, held or free, by name."""
        return run_blocking(read_keys(self._partition(), self.name), "Await akeys() instead")

    async def akeys(self) -> list[str]:
        """See keys()."""
        return await arun(read_keys(self._partition(), self.name))

    def __iter__(self) -> Iterator[str]:
        return iter(run_blocking(read_keys(self._partition(), self.name), "Use async for instead."))

    async def __aiter__(self) -> AsyncIterator[str]:
        for key in await self.akeys():
            yield key

    def __contains__(self, key: object) -> bool:
        return run_blocking(self._contains(key), "Await acontains() instead")

    async def acontains(self, key: object) -> bool:
        """Return whether ``key`` is a member."""
        return await arun(self._contains(key))

    def __len__(self) -> int:
        return run_blocking(count_members(*self._location()), "Await alen() instead")

    async def alen(self) -> int:
        """Return how many members there are."""
        return await arun(count_members(*self._location()))

    def __bool__(self) -> bool:
        return True  # even when empty: testing its truth must cost no round trip

    # -- what they are doing ----------------------------------------------------------------------------------------

    def items_locked_status(self) -> list[tuple[str, LockStatus]]:
        """Each member with its :class:`LockStatus` (LOCKED: held by this thread or task), in two round trips."""
        return run_blocking(self._items(caller()), "Await aitems_locked_status() instead")

    @twin
    def aitems_locked_status(self) -> Coroutine[Any, Any, list[tuple[str, LockStatus]]]:
        """See items_locked_status()."""
        return arun(self._items(caller()))

    def values_lock_status(self) -> list[LockStatus]:
        """The statuses of :meth:`keys`, in their order; see items_locked_status()."""
        return run_blocking(self._statuses(caller()), "Await avalues_lock_status() instead")

    @twin
    def avalues_lock_status(self) -> Coroutine[Any, Any, list[LockStatus]]:
        """See values_lock_status()."""
        return arun(self._statuses(caller()))

    def health_check(self) -> tuple[int, int]:
        """Return how many members are (held, free), whoever holds them."""
        return count_states(run_blocking(self._items(None), "Await ahealth_check() instead"))

    async def ahealth_check(self) -> tuple[int, int]:
        """See health_check()."""
        return count_states(await arun(self._items(None)))

    def info(self) -> PoolInfo:
        """Who holds which members, and who waits. For people: five round trips, so it is no snapshot of one moment."""
        return run_blocking(inspect_pool(self._partition(), self.name), "Await ainfo() instead")

    async def ainfo(self) -> PoolInfo:
        """See info()."""
        return await arun(inspect_pool(self._partition(), self.name))

    # -- out of use -------------------------------------------------------------------------------------------------

    def suspend(self, key: str, seconds: Seconds, note: str = "") -> None:
        """Take a member out of use: for so many seconds from now, nobody acquires it; see :meth:`Lock.suspend`.

        Raises ValueError if ``key`` is not a member.
        """
        run_blocking(self._suspend(key, seconds, note), "Await asuspend() instead")

    async def asuspend(self, key: str, seconds: Seconds, note: str = "") -> None:
        """See suspend()."""
        await arun(self._suspend(key, seconds, note))

    def resume(self, key: str) -> bool:
        """End the suspension of a member; return whether there was one."""
        return run_blocking(self._resume(key), "Await aresume() instead")

    async def aresume(self, key: str) -> bool:
        """See resume()."""
        return await arun(self._resume(key))

    # -- taking one -------------------------------------------------------------------------------------------------

    def acquire(self, **options: Unpack[AcquireOptions]) -> PoolMember:
        """Acquire the free member that has been unused the longest, in one round trip, and return it as a held lock.

            with pool.acquire(blocking_timeout=5) as account:
                call_api(account.key)

        Waits until one is free, at most ``blocking_timeout`` seconds (0: not at all; None: from the settings); then
        raises LockNotAcquired, which says so if the pool has no members. The other options are those of :class:`Lock`,
        with the same meaning: ``ttl``, ``auto_renew``, ``max_hold``, ``on_lost``, ``poll``, ``backoff``, ``attempts``,
        ``replicas``, ``slow_wait``, ``note``, ``purpose``, ``template``.
        """
        acquisition = self._acquisition(options)
        try:
            # named first: what a signal handler raises as the call returns is met here as well
            member = run_blocking(self._obtain(acquisition), "Await aacquire() instead")
            return member  # noqa: RET504
        except BaseException:
            acquisition.abandon()
            raise

    @twin
    def aacquire(self, **options: Unpack[AcquireOptions]) -> Coroutine[Any, Any, PoolMember]:
        """See acquire(): ``async with await pool.aacquire() as account``."""
        acquisition = self._acquisition(options)
        return self._aobtain(acquisition)

    async def _aobtain(self, acquisition: Acquisition) -> PoolMember:
        try:
            return await arun(self._obtain(acquisition))
        except BaseException as error:
            acquisition.abandon_cancelled(error)
            raise

    # -- for sync and async alike ------------------------------------------------------------------------------------

    def _acquisition(self, given: AcquireOptions) -> Acquisition:
        read_options(given, "LockPool.acquire()", AcquireOptions)
        checked = read_options({**given, "using": self.using}, "LockPool.acquire()")
        return Acquisition(pool_name(self.name), checked)

    def _obtain(self, acquisition: Acquisition) -> Steps[PoolMember]:
        refusal = yield from acquisition.obtain()
        try:
            if refusal is not None:
                raise (yield from self._explained(refusal))
            return PoolMember.of(acquisition)
        finally:
            refusal = None  # see Enterable.__enter__()

    def _explained(self, refusal: LockNotAcquired) -> Steps[LockNotAcquired]:
        """Say that the pool has no members, where that may be why. Another refusal costs no round trip more."""
        may_be_empty = refusal.busy_for == NONE_HELD or refusal.outcome == "timeout"  # it was cleared meanwhile
        if not may_be_empty or refusal.outcome == "full" or refusal.__cause__ is not None:
            return refusal
        try:
            members = yield from count_members(*self._location(), deadline=Deadline.after(0))
        except LockUnavailable:
            return refusal
        text = str(refusal).removesuffix("none is free.")
        return refusal if members else refusal.in_words(f"{text}it has no members.")

    def _quoted(self, keys: Iterable[str]) -> list[str]:
        """Quoted, each once."""
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            single = "the single str " if isinstance(keys, str) else ""
            raise TypeError(f"The members of a pool must be an iterable of str, not {single}{shown(keys)}.")
        return list(dict.fromkeys(map(self._quote, keys)))

    def _quote(self, key: object) -> str:
        if not isinstance(key, str) or not key:
            raise TypeError(f"A member of a pool must be a non-empty str, not {shown(key)}.")
        member_name(self.name, key)  # raises if it is too long
        return quote(key)

    def _partition(self) -> Partition:
        return get_partition(self.using, pool_name(self.name))

    def _location(self) -> tuple[Partition, str]:
        return self._partition(), pool_name(self.name)

    def _contains(self, key: object) -> Steps[bool]:
        if not isinstance(key, str):
            return False
        return (yield from has_member(*self._location(), quote(key)))

    def _suspend(self, key: str, seconds: Seconds, note: str) -> Steps[None]:
        self._quote(key)
        if not (yield from self._contains(key)):
            raise ValueError(f"Could not suspend {shown(key)}: it is not a member of the pool {self.name!r}.")
        name = member_name(self.name, key)
        yield from suspend(get_partition(self.using, name), name, seconds, note)

    def _resume(self, key: str) -> Steps[bool]:
        self._quote(key)
        name = member_name(self.name, key)
        return (yield from resume(get_partition(self.using, name), name))

    def _items(self, runner: Runner | None) -> Steps[list[tuple[str, LockStatus]]]:
        partition = self._partition()
        return (yield from read_items(partition, self.name, partial(_id_on, partition, pool_name(self.name), runner)))

    def _statuses(self, runner: Runner | None) -> Steps[list[LockStatus]]:
        return [status for _, status in (yield from self._items(runner))]


def _id_on(partition: Partition, pool: str, runner: Runner | None, member: str) -> str | None:
    """The id by which this runner holds this member."""
    lease = holds(partition, member, runner, pool)
    return None if lease is None else lease.id
