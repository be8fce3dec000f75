"""The admin's list of locks: Django's own, with rows from Redis; and the history of who has force-released one."""

from __future__ import annotations

from collections.abc import Iterable
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
from ..inspection import LockInfo
from ..inspection.listing import Page, read_page
from ..models import HeldLock
from ..store.stores import get_stores


class AliasFilter(SimpleListFilter):
    """The locks of one cache alias."""

    title: Any = _("cache alias")
    parameter_name: str = "using"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [(store.alias, store.alias) for store in get_stores()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset  # which has no rows: the list asks for using_of()


def using_of(request: HttpRequest) -> str | None:
    """The alias that the list is filtered by; None: all of them."""
    alias = request.GET.get(AliasFilter.parameter_name)
    if alias is not None and alias not in [store.alias for store in get_stores()]:
        raise IncorrectLookupParameters
    return alias


MOST_WORDS = 20  # of a search: each costs time for each lock


class LockChangeList(ChangeList):
    """Sorted, searched and cut by :func:`read_page`. A page that no longer exists shows the last one."""

    model_admin: Any  # a LockAdmin
    unknown: bool = False  # how many locks there are, while Redis cannot be reached

    def get_results(self, request: HttpRequest) -> None:
        if self.get_filters_params().keys() - {AliasFilter.parameter_name}:
            raise IncorrectLookupParameters
        words = self.query.split()
        if len(words) > MOST_WORDS:
            self.model_admin.tell_too_many_words(request, MOST_WORDS)
            raise IncorrectLookupParameters
        using = using_of(request)
        try:
            page = read_page(
                cut=lambda count: self._cut(request, count),
                words=words,
                order=self._order(request),
                using=using,
            )
        except LockUnavailable as error:
            if "action" not in request.POST:  # an action redirects to this list, which says it then
                self.model_admin.tell_unavailable(request, error)
            page, self.unknown = Page([], 0, 0), True
            self._cut(request, 0)
        self.result_list: Any = [HeldLock.of(lock) for lock in page.locks]
        self.full_result_count: int = page.total
        self.show_full_result_count = True
        self.show_admin_actions: bool = page.total > 0

    def _order(self, request: HttpRequest) -> list[str]:
        order = []
        for field in map(str, self.get_ordering(request, self.root_queryset)):
            sign, column = field[: field.startswith("-")], field.removeprefix("-")
            order.append(sign + ("name" if column in ("key", "pk") else column))
        return order

    def _cut(self, request: HttpRequest, count: int) -> slice:
        """Which of the ``count`` matching locks this page shows. Sets what Django's templates need for the pages."""
        self.result_count = count
        self.can_show_all: bool = count <= self.list_max_show_all
        self.multi_page: bool = count > self.list_per_page
        rows: Any = range(count)
        self.paginator: Any = self.model_admin.get_paginator(request, rows, self.list_per_page)
        self.page_num: int = max(1, min(self.page_num, self.paginator.num_pages))
        if not self.multi_page or (self.show_all and self.can_show_all):
            return slice(count)
        return slice((self.page_num - 1) * self.list_per_page, self.page_num * self.list_per_page)


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
