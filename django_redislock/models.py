"""The model behind the admin's pages. It has no table: what it shows is read from Redis."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from .display import printable
from .inspection import LockInfo

# Browsers remove these two from a URL, however they are quoted. So a character follows that no name ends with.
DOTS = (".", "..")
SHIELD = "\x1f"


class NoRows(models.Manager["HeldLock"]):
    """The database has no locks: ``dumpdata`` and the like find none, and need no table."""

    def get_queryset(self) -> models.QuerySet[HeldLock]:
        rows: models.QuerySet[HeldLock] = super().get_queryset().none()
        return rows


class HeldLock(models.Model):
    """A lock that is held now, as :func:`django_redislock.get_lock` returns it; ``info`` is None if nobody holds it."""

    key = models.TextField(_("name"), primary_key=True)
    owner = models.TextField(_("owner"))
    held_for = models.FloatField(_("held for"))
    lease_left = models.FloatField(_("lease left"))
    fence = models.BigIntegerField(_("fence"))
    waiters = models.PositiveIntegerField(_("waiters"))

    info: LockInfo | None = None
    objects: ClassVar[NoRows] = NoRows()

    class Meta:
        managed = False
        default_permissions: ClassVar[tuple[str, ...]] = ("view", "delete")
        base_manager_name = "objects"
        verbose_name: ClassVar[Any] = _("lock")
        verbose_name_plural: ClassVar[Any] = _("locks")

    def __str__(self) -> str:
        return printable(self.name)

    @property
    def name(self) -> str:
        """The lock's name as it is."""
        return self.key.removesuffix(SHIELD)

    @classmethod
    def of(cls, info: LockInfo) -> HeldLock:
        lock = cls.named(info.name)
        lock.info = info
        for column in ("owner", "held_for", "lease_left", "fence", "waiters"):
            setattr(lock, column, getattr(info, column))
        return lock

    @classmethod
    def named(cls, name: str) -> HeldLock:
        """The lock of this name while nobody holds it."""
        return cls(key=name + SHIELD if name in DOTS else name)
