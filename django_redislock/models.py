"""The models: one without a table behind the admin's pages, and the table of fences."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from .base.display import printable
from .conf import conf
from .fencing.table import TABLE
from .inspection.info import LockInfo

# No name has this character: it stands between an alias and a name. It also follows a name that is . or .. and has no
# alias, since browsers drop these from a URL even when they are quoted.
MARK = "\x1f"
DOTS = (".", "..")


class NoRows(models.Manager["HeldLock"]):
    """The database has no locks: ``dumpdata`` and the like find none, and need no table."""

    def get_queryset(self) -> models.QuerySet[HeldLock]:
        rows: models.QuerySet[HeldLock] = super().get_queryset().none()
        return rows


class HeldLock(models.Model):
    """A lock that is held now, as ``get_lock()`` returns it; ``info`` is None if nobody holds it."""

    key: models.TextField[str, str] = models.TextField(_("name"), primary_key=True)
    owner: models.TextField[str, str] = models.TextField(_("owner"))
    held_for: models.FloatField[float, float] = models.FloatField(_("held for"))
    lease_left: models.FloatField[float, float] = models.FloatField(_("lease left"))
    fence: models.BigIntegerField[int, int] = models.BigIntegerField(_("fence"))
    waiters: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(_("waiters"))

    info: LockInfo | None = None
    alias: str = ""
    release_url: str = ""  # of a semaphore, up to the permit, where the admin's user may force-release it
    objects: ClassVar[NoRows] = NoRows()

    class Meta:
        managed = False
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        # by the name that the admin looks for
        permissions: ClassVar[Any] = [("delete_heldlock", "Can force-release lock")]
        base_manager_name = "objects"
        verbose_name: ClassVar[Any] = _("lock")
        verbose_name_plural: ClassVar[Any] = _("locks")

    def __str__(self) -> str:
        name = printable(self.name)
        return name if self.using is None else f"{name} ({printable(self.using)})"

    @property
    def name(self) -> str:
        """The lock's name as it is."""
        alias, _, name = self.key.partition(MARK)
        return name or alias

    @property
    def using(self) -> str | None:
        """The cache alias; None: the one in the settings."""
        alias, _, name = self.key.partition(MARK)
        return alias if name else None

    @classmethod
    def of(cls, info: LockInfo) -> HeldLock:
        lock = cls.named(info.name, None if info.alias == conf().CACHE else info.alias)
        lock.info = info
        for column in ("owner", "held_for", "lease_left", "fence", "waiters", "alias"):
            setattr(lock, column, getattr(info, column))
        return lock

    @classmethod
    def named(cls, name: str, using: str | None = None) -> HeldLock:
        """The lock of this name while nobody holds it."""
        if using is not None:
            return cls(key=f"{using}{MARK}{name}")
        return cls(key=name + MARK if name in DOTS else name)


class Fence(models.Model):
    """The highest fence with which a lock was claimed in this database; see fencing/table.py."""

    key: models.CharField[str, str] = models.CharField(_("key"), primary_key=True, max_length=64, editable=False)
    name: models.TextField[str, str] = models.TextField(_("name"), editable=False)
    fence: models.BigIntegerField[int, int] = models.BigIntegerField(_("fence"), editable=False)
    holder: models.CharField[str, str] = models.CharField(max_length=64, default="", editable=False)
    claimed: models.DateTimeField[Any, Any] = models.DateTimeField(_("last claimed"), editable=False)

    class Meta:
        db_table = TABLE
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        verbose_name: ClassVar[Any] = _("fence")
        verbose_name_plural: ClassVar[Any] = _("fences")

    def __str__(self) -> str:
        return printable(self.name)
