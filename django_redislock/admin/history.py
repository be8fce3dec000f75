"""The history of a lock in the admin: who has force-released it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth import get_user_model
from django.db import router, transaction
from django.utils.translation import gettext

from ..base.display import duration, printable
from ..inspection import LockInfo
from ..models import HeldLock


def record(user_pk: Any, locks: Iterable[LockInfo], by: str = "") -> None:
    """The user has force-released these locks. ``by``: through what, if not the admin."""
    with transaction.atomic(using=router.db_for_write(LogEntry)):
        for lock in locks:
            facts = {
                "owner": printable(lock.owner),
                "fence": lock.fence,
                "duration": duration(lock.held_for, gettext),
            }
            text = gettext("Force-released. It was held by %(owner)s for %(duration)s, fence %(fence)d.") % facts
            LogEntry.objects.log_actions(user_pk, [HeldLock.of(lock)], DELETION, f"{text} ({by})" if by else text)


def find_user(name: str) -> Any:
    """The primary key of the site's user of this name; None if there is none."""
    users = get_user_model()
    return users._default_manager.filter(**{users.USERNAME_FIELD: name}).values_list("pk", flat=True).first()
