"""``locked_atomic``: a lock and a transaction in the safe order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from asgiref.sync import iscoroutinefunction
from django.db import DEFAULT_DB_ALIAS, connections

from ..base import Unpack
from ..base.display import Secret, shown
from ..base.name_templates import has_fields
from ..base.names import check_name
from ..base.steps import refuse_event_loop
from ..call_names import (
    CallTexts,
    Name,
    Names,
    are_several,
    check_function,
    given_name,
    refuse_body,
    template_of,
    wraps,
)
from ..engine.with_block import ExitMethod, WithBlock, block_of
from ..exceptions import LockLost
from ..fencing.claim import begin
from ..lock import Lock
from ..lock_set import LockSet
from ..open_transactions import in_atomic_block
from ..options import (
    LockOptions,
    Options,
    SetOptions,
    check_database,
    check_databases,
    check_kind,
    cut_note,
    read_options,
)

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", Lock, LockSet)


def _leave(
    block: WithBlock, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
) -> None:
    atomic: Any = block.lock
    # an ExitStack enters without a block: then it is the latest one of this thread
    context = block.context or atomic._entered.contexts.pop()
    context.__exit__(kind, error, traceback)


class locked_atomic(Generic[L]):  # noqa: N801 (reads as Django's ``atomic`` does)
    """Lock, BEGIN, the block or function, COMMIT, release: the next holder sees what this one has written.

    .. code-block:: python

        with locked_atomic("account:7") as lock: ...

        @locked_atomic("account:{pk}", db=["default", "ledger"])
        def book(pk): ...

        with locked_atomic(["account:3", "account:7"]) as locks: ...    # a LockSet

    The first argument, or ``name``, is the lock's name. For a decorator, it may be a template over the arguments of the
    call, and so may ``note`` and ``token``; or a callable that takes them (other than a lambda, it is given as
    ``name``), as in :func:`locked`. A block has no arguments and refuses both. A list of names takes all these locks,
    as :class:`LockSet` does, and where they are fenced, all are claimed. ``db`` is one alias in ``DATABASES`` or
    several: the first begins first and commits last. (Two databases do not commit as one: if the second refuses, the
    first has not committed yet; if the first refuses, the second has.) The options are those of :class:`Lock`.

    Guaranteed: the lock is held from before BEGIN until after COMMIT or ROLLBACK, and by callbacks of ``on_commit()``
    too: a task that one of them queues may still find the lock busy. Of several databases, the callbacks run when all
    have committed. When the lock is known to be lost at the end
    of the block, the transaction is rolled back.

    Raises RuntimeError, before anything is locked, where a transaction is open already (that of a test case does not
    count) or autocommit is off: its COMMIT would come after the release. LockNotAcquired, LockLost and LockUnavailable
    as ``with Lock(...)`` does. For sync code; transactions know no coroutines.
    """

    @overload
    def __init__(
        self: locked_atomic[Lock],
        first: Name | None = None,
        /,
        *,
        name: Name | None = None,
        db: str | Sequence[str] = DEFAULT_DB_ALIAS,
        token: str | None = None,
        **options: Unpack[LockOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: locked_atomic[LockSet],
        first: Sequence[Name],
        /,
        *,
        db: str | Sequence[str] = DEFAULT_DB_ALIAS,
        **options: Unpack[SetOptions],
    ) -> None: ...
    def __init__(
        self,
        first: Names | None = None,
        /,
        *,
        name: Names | None = None,
        db: str | Sequence[str] = DEFAULT_DB_ALIAS,
        token: str | None = None,
        **options: Unpack[LockOptions],
    ) -> None:
        self._name: Names | None = given_name(first, name, "locked_atomic", token)
        known = SetOptions if are_several(self._name) else LockOptions
        self._token: Secret | None = None if token is None else Secret(token)
        self._aliases: tuple[str, ...] = check_databases(db, "db")
        if len({*self._aliases}) < len(self._aliases):
            raise ValueError(f"db names an alias twice: {db!r}.")
        options.setdefault("template", template_of(self._name))
        self._checked: Options = read_options(options, "locked_atomic()", known, beside=["db", "name", "token"])
        fenced: Any = self._checked.fenced
        if isinstance(fenced, tuple) and not {*fenced} <= {*self._aliases}:
            choices = ", ".join(self._aliases)
            raise ValueError(f"fenced must name some of the aliases in db ({choices}), not {fenced!r}.")
        self._options = options
        self._entered = threading.local()  # a block of a transaction belongs to its thread

    def __enter__(self) -> L:
        block = block_of(self)
        names = dict[str, str]()
        for name in self._name if are_several(self._name) else [self._name]:
            if not isinstance(name, str):
                raise TypeError(f"A with block has no arguments to make a name of: give a str, not {name!r}.")
            if has_fields(name):
                raise ValueError(
                    f"A with block has no arguments to fill {name!r} with: make the name yourself, with lock_name()."
                )
            names[check_name(name)] = name
        context = self._block(names, self._token, self._options)
        if block is not None:
            block.context = context
            return context.__enter__()
        lock = context.__enter__()
        vars(self._entered).setdefault("contexts", []).append(context)
        return lock

    if TYPE_CHECKING:  # as contextlib declares it

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

    else:
        __exit__ = ExitMethod(_leave)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        signature = check_function(function, "locked_atomic")
        if iscoroutinefunction(function):
            raise TypeError(
                f"locked_atomic cannot decorate {function!r}: Django's transactions are for sync code. Decorate a "
                f"function and call it through sync_to_async."
            )
        check_kind(function, self._checked, "locked_atomic", is_async=False)
        texts = CallTexts(self._name, self._options.get("note", ""), self._token)
        texts.check(function, signature)

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            names, note, token = texts.fill(function, signature, args, kwargs)
            with self._block(names, token, {**self._options, "note": cut_note(note)}):
                result = function(*args, **kwargs)
                refuse_body(function, result, "locked_atomic")
                return result

        return wrapper

    @contextmanager
    def _block(self, names: Mapping[str, str], token: str | None, options: LockOptions) -> Iterator[L]:
        refuse_event_loop()
        several = are_several(self._name)
        given = shown([*names] if several else min(names))
        for alias in self._aliases:
            connection = connections[check_database(alias, "db")]
            if in_atomic_block(connection):
                trouble = "is inside an open atomic block"
            elif not connection.in_atomic_block and not connection.get_autocommit():
                trouble = "has autocommit off"
            else:
                continue
            raise RuntimeError(
                f"locked_atomic({given}) must begin the transaction itself, but the database {alias!r} {trouble}: "
                f"that would commit after the lock is released. For several locks, give one locked_atomic the list of "
                f"their names. For a view under ATOMIC_REQUESTS use locked_view, which holds the lock until COMMIT, or "
                f"mark it with non_atomic_requests; else move locked_atomic outside of the transaction."
            )
        valid = False
        try:
            locks: Any = LockSet.of(names, options) if several else Lock(min(names), token=token, **options)
            with locks:
                leases = locks._own().leases
                with ExitStack() as opened:
                    begin(opened, self._aliases, leases, durable=True)
                    yield locks
                    locks.check()
                valid = all(lease.bound for lease in leases)
        except LockLost:
            if not valid:
                raise
