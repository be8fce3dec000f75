"""The admin's list of locks: Django's own, with rows from Redis; and the history of who has force-released one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.db import router, transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..base.display import duration, printable
from ..exceptions import LockUnavailable
from ..inspection.info import LockInfo
from ..inspection.lists import list_everywhere
from ..models import HeldLock
from ..store.aliases import lock_aliases
from ..store.lock_store import LockStore
from ..store.stores import get_store, reach_stores


class AliasFilter(SimpleListFilter):
    """The locks of one cache alias."""

    title: Any = _("cache alias")
    parameter_name: str = "using"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [(alias, alias) for alias in reach_stores()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset  # which has no rows: the list asks read_all()


def read_all(request: HttpRequest) -> list[LockInfo]:
    """The held locks of the alias that the list is filtered by, or of all aliases."""
    alias = request.GET.get(AliasFilter.parameter_name)
    if alias is not None and alias not in lock_aliases():
        raise IncorrectLookupParameters
    return list_everywhere(using=alias)


def search(locks: Iterable[LockInfo], text: str) -> list[LockInfo]:
    """Those with all words of ``text`` in name or owner, ignoring case."""
    words = set(text.casefold().split())
    if not words:  # as in each refresh of the list
        return [*locks]
    folded = [(lock, lock.name.casefold(), lock.owner.casefold()) for lock in locks]
    return [lock for lock, name, owner in folded if all(word in name or word in owner for word in words)]


def sort(locks: list[LockInfo], order: Sequence[str]) -> None:
    """``order`` names columns, the first one counts most, ``-`` reverses one."""
    for column in reversed(order):
        locks.sort(key=partial(_value, column.removeprefix("-")), reverse=column.startswith("-"))


def _value(column: str, lock: LockInfo) -> Any:
    if column == "waiters":
        return lock.waiters + lock.pool_waiters
    return getattr(lock, "name" if column in ("key", "pk") else column)


class _Rows(list[LockInfo]):
    """What ChangeList asks of a query, of the locks that were read."""

    def _clone(self) -> list[LockInfo]:
        return self


class LockChangeList(ChangeList):
    """A page that no longer exists shows the last one."""

    model_admin: Any  # a LockAdmin
    unknown: bool = False  # how many locks there are, while Redis cannot be reached

    def get_results(self, request: HttpRequest) -> None:
        if self.get_filters_params().keys() - {AliasFilter.parameter_name}:
            raise IncorrectLookupParameters
        try:
            locks = read_all(request)
        except LockUnavailable as error:
            if "action" not in request.POST:  # an action redirects to this list, which says it then
                self.model_admin.tell_unavailable(request, error)
            locks, self.unknown = [], True
        rows = _Rows(search(locks, self.query))
        sort(rows, list(map(str, self.get_ordering(request, self.root_queryset))))
        self.queryset: Any = rows
        self.page_num: int = min(self.page_num, max(1, ceil(len(rows) / self.list_per_page)))
        super().get_results(request)
        self.result_list: Any = [HeldLock.of(lock) for lock in self.result_list]
        self.full_result_count: int = len(locks)
        self.show_admin_actions: bool = bool(locks)


def record(user_pk: Any, locks: Iterable[LockInfo], by: str = "") -> str:
    """Enter that the user has force-released these locks; return the database. ``by``: through what, if not the admin.

    The history is that of the lock under the alias by which the admin lists it, whichever was given.
    """
    listed = {store.identity: alias for alias, store in reach_stores().items() if isinstance(store, LockStore)}
    database: str = router.db_for_write(LogEntry)
    with transaction.atomic(using=database):
        for lock in locks:
            row = HeldLock.of(replace(lock, alias=listed.get(get_store(lock.alias).identity, lock.alias)))
            facts = {
                "owner": printable(lock.owner),
                "fence": lock.fence,
                "duration": duration(lock.held_for, gettext),
            }
            text = gettext("Force-released. It was held by %(owner)s for %(duration)s, fence %(fence)d.") % facts
            LogEntry.objects.log_actions(user_pk, [row], DELETION, f"{text} ({by})" if by else text)
    return database


def find_user(name: str) -> Any:
    """The primary key of the site's user of this name; None if there is none."""
    users = get_user_model()
    return users._default_manager.filter(**{users.USERNAME_FIELD: name}).values_list("pk", flat=True).first()
