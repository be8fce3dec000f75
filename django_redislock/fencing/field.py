"""A fence in a site's own rows, for work that changes them bit by bit outside of one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from django.db import models, transaction
from django.utils.translation import gettext_lazy as _

from ..exceptions import LockLost

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.11 has it in typing

    BigIntegerField = models.BigIntegerField[int, int]
else:
    BigIntegerField = models.BigIntegerField

M = TypeVar("M", bound=models.Model)


class Fenced(Protocol):
    """A lock that is held here."""

    @property
    def name(self) -> str: ...

    @property
    def fence(self) -> int: ...

    def check(self) -> None: ...


class FenceField(BigIntegerField):
    """The fence of the last holder who has changed the row. Written by :meth:`FencedQuerySet.update` alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs = {"verbose_name": _("fence"), "default": 0, "db_default": 0, "editable": False, **kwargs}
        super().__init__(*args, **kwargs)


class FencedQuerySet(models.QuerySet[M]):
    """A queryset that knows under which lock it writes: ``Order.objects.filter(...).fenced(lock).update(...)``."""

    _lock: Fenced | None = None

    def fenced(self, lock: Fenced) -> Self:
        """The same rows, to be updated under this lock, which must be held here.

        Raises TypeError for a model that has no FenceField, or several.
        """
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
        if lock is None:
            return super().update(**values)
        lock.check()
        name, fence = _field_of(self.model), lock.fence
        with transaction.atomic(using=self.db):
            changed: int = self._without_lock().filter(**{f"{name}__lte": fence}).update(**{name: fence}, **values)
            if refused := self._without_lock().filter(**{f"{name}__gt": fence}).count():
                reason = f"a younger holder has changed {refused} of {refused + changed} rows"
                raise LockLost(
                    f"The lock {lock.name!r} was refused by {self.model._meta.label}: {reason}. None was changed.",
                    lock.name,
                    reason=reason,
                    fence=fence,
                )
        return changed

    update.alters_data = True  # type: ignore[attr-defined]

    def _without_lock(self) -> Self:
        found = self._chain()  # type: ignore[attr-defined]
        found._lock = None
        return found  # type: ignore[no-any-return]

    def _clone(self) -> Self:
        found = super()._clone()  # type: ignore[misc]
        found._lock = self._lock
        return found  # type: ignore[no-any-return]


FencedManager = models.Manager.from_queryset(FencedQuerySet, "FencedManager")


def _field_of(model: type[models.Model]) -> str:
    found = [field.name for field in model._meta.concrete_fields if isinstance(field, FenceField)]
    if len(found) != 1:
        raise TypeError(f"{model._meta.label} must have one FenceField for fenced(), and has {len(found)}.")
    return found[0]
