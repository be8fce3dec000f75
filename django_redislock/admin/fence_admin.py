"""The admin's page of fences: which names were claimed in this database, and when last. To be read only."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..base.display import printable
from ..fencing import MARK
from ..models import Fence

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Fence]
else:
    ModelAdmin = admin.ModelAdmin


@admin.register(Fence)
class FenceAdmin(ModelAdmin):
    """``view`` is the only permission: a fence that is changed by hand can let a stale holder in."""

    list_display: tuple[str, ...] = ("shown_name", "fence", "claimed")
    fields: ClassVar[tuple[str, ...]] = ("shown_name", "fence", "claimed")
    search_fields: ClassVar[tuple[str, ...]] = ("name",)
    ordering: ClassVar[tuple[str, ...]] = ("-claimed",)

    @admin.display(description=_("name"), ordering="name")
    def shown_name(self, row: Fence) -> str:
        return printable(row.name)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Fence]:
        rows: QuerySet[Fence] = super().get_queryset(request).exclude(key=MARK)
        return rows

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Fence | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Fence | None = None) -> bool:
        return False
