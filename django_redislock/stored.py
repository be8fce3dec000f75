"""What a ``ConditionalValue`` and a ``Counter`` have in common: a key of their own, and calls that run once."""

from __future__ import annotations

from typing import TypeVar

from .base.names import check_name
from .base.steps import Steps
from .base.times import Seconds, seconds
from .exceptions import LockError, LockUnavailable
from .store.idempotency import call_once
from .store.lock_store import Partition
from .store.retry import call
from .store.scripts import Script
from .store.stores import get_partition

T = TypeVar("T")

# what Redis says of a key that holds something else, and what we say
_FOREIGN = {"WRONGTYPE": "another Redis type", "not an integer": "not a whole number"}


class Stored:
    """Something under a name of its own."""

    __slots__ = ("name", "using")

    _kind: str

    def __init__(self, name: str, *, using: str | None = None) -> None:
        self.name: str = check_name(name, self._kind)
        self.using: str | None = using

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _key(self, partition: Partition) -> str:
        return f"{partition.prefix}{self._kind}:{self.name}"

    def _get_raw(self) -> Steps[bytes | None]:
        partition = get_partition(self.using, self.name)
        asking = call(partition, ("GET", self._key(partition)), self.name, noun=self._kind)
        reply = yield from self._explain(asking)
        return reply.answer  # type: ignore[no-any-return]

    def _once(self, script: Script, *args: str) -> Steps[str]:
        partition = get_partition(self.using, self.name)
        calling = call_once(partition, script, [self._key(partition)], args, name=self.name, noun=self._kind)
        answer = yield from self._explain(calling)
        return answer.decode(errors="replace")

    def _explain(self, steps: Steps[T]) -> Steps[T]:
        """Run ``steps``; where somebody else wrote the key, say so."""
        try:
            return (yield from steps)
        except LockUnavailable as error:
            cause = str(error.__cause__)
            for words, found in _FOREIGN.items():
                if words in cause and f"{get_partition(self.using, self.name).prefix}slot:" not in str(error):
                    raise self._foreign(found) from None
            if "would overflow" in cause:
                raise OverflowError(f"Cannot change the counter {self.name!r}: it would exceed 64 bits.") from None
            raise

    def _foreign(self, found: str) -> LockError:
        key = self._key(get_partition(self.using, self.name))
        return LockError(
            f"Cannot use the {self._kind} {self.name!r}: somebody else has written its key {key!r}, which holds "
            f"{found}. Nothing was changed. Delete the key or choose another name.",
            self.name,
        )


def milliseconds_of(ttl: Seconds | None) -> str:
    """As the scripts take it."""
    return "" if ttl is None else str(round(seconds(ttl, "ttl") * 1000))
