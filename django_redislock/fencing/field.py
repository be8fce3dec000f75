"""A fence in a site's own rows, for work that changes them bit by bit outside of one transaction."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections, models, transaction
from django.utils.translation import gettext_lazy as _

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
    """The fence of the last holder who has changed the row. Written by :class:`FencedRows` alone.

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


class FencedQuerySet(models.QuerySet[M]):
    """A queryset whose rows can be changed under a lock: ``Order.objects.filter(...).fenced(lock).update(...)``."""

    def fenced(self, lock: Fenced) -> FencedRows:
        """Its rows, to be changed under this lock, which must be held here. Call it last.

        Raises TypeError for what is no lock, for part of the rows (``[:10]``), and for a model that has no FenceField,
        or several.
        """
        if not _is_lock(lock):
            raise TypeError(f"fenced() takes a lock, not {shown(lock)}.")
        if self.query.is_sliced:
            raise TypeError("fenced(lock) changes all rows of a queryset, not a slice of it.")
        return FencedRows(self, lock)


class FencedRows:
    """Rows that are changed under a lock: all of them or none, and only where no younger holder has changed one.

    ``update()`` and ``delete()``, and their twins for coroutines, are those of a queryset. Each raises LockLost where a
    younger holder has changed a row, or the lock is known to be lost; LockNotOwned where it is not held here.
    """

    def __init__(self, rows: models.QuerySet[Any], lock: Fenced) -> None:
        self._rows, self._lock = rows.all(), lock
        self._field = _field_of(rows.model)

    def update(self, **values: Any) -> int:
        """Return how many rows were changed; they have the lock's fence from then on."""
        return self._write(lambda rows: rows.update(**{self._field.name: self._lock.fence}, **values))

    def delete(self) -> tuple[int, dict[str, int]]:
        """Return how many rows were deleted, and of which models, like Django's."""
        return self._write(lambda rows: rows.delete())

    update.alters_data = delete.alters_data = True  # type: ignore[attr-defined]  # no template calls them
    aupdate = sync_to_async(update)
    adelete = sync_to_async(delete)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"fenced(lock) has update() and delete(), not {name}: call it last.")

    def _write(self, write: Callable[[models.QuerySet[Any]], R]) -> R:
        lock, field, mine = self._lock, self._field, self._rows
        lock.check()
        fence = lock.fence
        mine._for_write = True
        mine = mine.using(mine.db)
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
                    f"The lock {lock.name!r} was refused by {mine.model._meta.label}: {reason}. None was changed.",
                    lock.name,
                    reason=reason,
                    fence=fence,
                )
            # not on SQLite, where no other rows can match by now, and the number of parameters is limited
            return write(mine.filter(**{f"{key}__in": list(found)}) if locks_rows else mine)


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
