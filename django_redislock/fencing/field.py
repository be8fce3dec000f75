"""A fence in a site's own rows, for work that changes them bit by bit outside of one transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from django.db import connections, models, transaction
from django.utils.translation import gettext_lazy as _

from ..base import Self
from ..base.display import shown
from ..base.names import SEMAPHORE
from ..exceptions import LockLost

if TYPE_CHECKING:
    BigIntegerField = models.BigIntegerField[int, int]
else:
    BigIntegerField = models.BigIntegerField

M = TypeVar("M", bound=models.Model)
R = TypeVar("R")


class Fenced(Protocol):
    """A lock that is held here."""

    @property
    def name(self) -> str: ...

    @property
    def fence(self) -> int: ...

    def check(self) -> None: ...

    def _note_fence(self, fence: int) -> None: ...


class FenceField(BigIntegerField):
    """The fence of the last holder who has changed the row. Written by :meth:`FencedQuerySet.update` alone.

    ``save()`` leaves it as it is in the database. Raises ValueError for ``null=True``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs = {"default": 0, "db_default": 0, "editable": False, **kwargs}
        if not args:  # the first is its name, like that of all fields
            kwargs.setdefault("verbose_name", _("fence"))
        if kwargs.get("null"):
            raise ValueError("A FenceField cannot be null: rows without a fence could not be written under a lock.")
        super().__init__(*args, **kwargs)

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        # that of the instance was read earlier, and a younger holder may have been there since
        return super().pre_save(model_instance, add) if add else models.F(self.attname)


def _unguarded(name: str) -> Callable[..., Any]:
    """The method of this name, refused under a lock: it would write without a look at the fence."""
    method: Callable[..., Any] = getattr(models.QuerySet, name)

    @wraps(method)
    def unlocked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._lock is not None:
            raise TypeError(f"fenced(lock) guards update(), bulk_update() and delete(), not {name}().")
        return method(self, *args, **kwargs)

    return unlocked


def _uncombined(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    """The operator of this name, refused under a lock: it is not sure that what comes of it would know the lock."""
    operator: Callable[..., Any] = getattr(models.QuerySet, name)

    def combined(self: Any, other: Any) -> Any:
        if not isinstance(other, models.QuerySet):
            return NotImplemented
        if self._lock is not None or getattr(other, "_lock", None) is not None:
            raise TypeError("Combine querysets first, and call fenced(lock) on what comes of it: (a | b).fenced(lock).")
        return operator(other, self) if reflected else operator(self, other)

    return combined


class FencedQuerySet(models.QuerySet[M]):
    """A queryset that knows under which lock it writes: ``Order.objects.filter(...).fenced(lock).update(...)``."""

    _lock: Fenced | None = None

    def fenced(self, lock: Fenced) -> Self:
        """The same rows, to be updated or deleted under this lock, which must be held here.

        For ``update()``, ``bulk_update()``, ``delete()`` and their twins; what creates rows raises TypeError, and so do
        ``|``, ``&`` and ``^``: combine first. So does this for what is no lock, and for a model that has no FenceField,
        or several. (On the right of a queryset of a site's own class, the lock would be lost without an error.)
        """
        if not _is_lock(lock):
            raise TypeError(f"fenced() takes a lock, not {shown(lock)}.")
        _field_of(self.model)
        found = self._chain()  # type: ignore[attr-defined]
        found._lock = lock
        return found  # type: ignore[no-any-return]

    def update(self, **values: Any) -> int:
        """As Django's; under a lock, only where no younger holder has written, and all of the rows or none.

        Returns how many rows were changed, and writes the lock's fence into them. Raises LockLost where a younger
        holder has changed one of them, or the lock is known to be lost; LockNotOwned where it is not held here.
        """
        lock = self._lock
        if lock is None or self.query.is_sliced:  # an error of Django's
            return super().update(**values)
        name = _field_of(self.model).name
        return self._write(lock, lambda rows: rows.update(**{name: lock.fence}, **values))

    def delete(self) -> tuple[int, dict[str, int]]:
        """As Django's; under a lock, only where no younger holder has written, and all of the rows or none."""
        lock = self._lock
        if lock is None or self.query.is_sliced:
            return super().delete()
        return self._write(lock, lambda rows: rows.delete())

    delete.queryset_only = True  # type: ignore[attr-defined]

    def _write(self, lock: Fenced, write: Callable[[Self], R]) -> R:
        lock.check()
        field, fence = _field_of(self.model), lock.fence
        self._for_write, self._result_cache = True, None  # what was read before is out of date
        mine = self._chain().using(self.db)  # type: ignore[attr-defined]
        mine._lock = None
        with transaction.atomic(using=mine.db):
            key = field.model._meta.pk.name
            every = field.model._base_manager.using(mine.db)
            locks_rows = connections[mine.db].features.has_select_for_update
            if not locks_rows:
                # SQLite: who writes, even no row at all, is the only writer until COMMIT, and must not have read before
                every.filter(pk__isnull=True).update(**{field.name: fence})
            # the rows as they are now: a snapshot, or a subquery that has waited, would not show a younger fence
            rows = every.filter(pk__in=mine.values(key)).order_by("pk")
            found = dict(rows.select_for_update().values_list("pk", field.name))
            if younger := [each for each in found.values() if each > fence]:
                lock._note_fence(max(younger))
                reason = f"a younger holder has changed {len(younger)} of the rows"
                raise LockLost(
                    f"The lock {lock.name!r} was refused by {self.model._meta.label}: {reason}. None was changed.",
                    lock.name,
                    reason=reason,
                    fence=fence,
                )
            # not on SQLite, where no other rows can match by now, and the number of parameters is limited
            return write(mine.filter(**{f"{key}__in": list(found)}) if locks_rows else mine)

    def _clone(self) -> Self:
        found = super()._clone()  # type: ignore[misc]
        found._lock = self._lock
        return found  # type: ignore[no-any-return]


for _method in ("create", "bulk_create", "get_or_create", "update_or_create"):
    setattr(FencedQuerySet, _method, _unguarded(_method))

for _sign in ("and", "or", "xor"):
    setattr(FencedQuerySet, f"__{_sign}__", _uncombined(f"__{_sign}__"))
    setattr(FencedQuerySet, f"__r{_sign}__", _uncombined(f"__{_sign}__", reflected=True))

FencedManager = models.Manager.from_queryset(FencedQuerySet, "FencedManager")


def _is_lock(given: object) -> bool:
    name = getattr(given, "name", None)
    return (
        isinstance(name, str)
        and not name.startswith(SEMAPHORE)  # a semaphore has several holders: the latest would shut out the others
        and callable(getattr(given, "check", None))
        and getattr_static(given, "fence", None) is not None  # to ask for it raises where the lock is not held
    )


def _field_of(model: type[models.Model]) -> FenceField:
    found = [field for field in model._meta.concrete_fields if isinstance(field, FenceField)]
    if len(found) != 1:
        raise TypeError(f"{model._meta.label} must have one FenceField for fenced(), and has {len(found)}.")
    return found[0]
