"""Redis locks in the admin: a list, a page for each lock with its queue, and force-release; and the list of fences,
which is to be read only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.forms import Script
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..base.display import printable
from ..base.names import is_name
from ..base.steps import run
from ..exceptions import LockUnavailable
from ..inspection.info import LockInfo, force_release, get_lock
from ..inspection.lists import read_matching
from ..models import Fence, HeldLock
from ..store.aliases import lock_aliases
from ..store.reading import batches
from ..store.stores import get_partition, get_store, reach_stores
from .changelist import AliasFilter, LockChangeList, read_all, record, search
from .fields import LockFields, field, more

if TYPE_CHECKING:
    LockModelAdmin = admin.ModelAdmin[HeldLock]
    FenceModelAdmin = admin.ModelAdmin[Fence]
else:
    LockModelAdmin = FenceModelAdmin = admin.ModelAdmin

REFRESH = 5  # seconds
SHOWN = 100  # names on a confirmation page


class _ReadOnly:
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(HeldLock)
class LockAdmin(_ReadOnly, LockFields, LockModelAdmin):
    """Needs no table: everything comes from Redis, at the moment of the request.

    ``view`` and ``delete`` are the permissions; to delete a lock is to force-release it.
    """

    list_display: tuple[str, ...] = (
        "shown_name",
        "shown_owner",
        "shown_held_for",
        "shown_lease_left",
        "shown_fence",
        "shown_waiters",
    )
    search_fields: ClassVar[tuple[str, ...]] = ("key", "owner")
    search_help_text: ClassVar[Any] = _("All words must appear in the name or the owner.")
    ordering: ClassVar[tuple[str, ...]] = ("key",)
    list_per_page = 100
    actions: tuple[str, ...] = ("delete_selected",)
    show_facets: ClassVar[Any] = admin.ShowFacets.NEVER

    class Media:
        css: dict[str, list[str]] = {"all": ["django_redislock/admin.css"]}
        js: list[object] = [
            "admin/js/actions.js",  # ours comes after it
            Script(
                "django_redislock/admin.js",
                **{
                    "data-seconds": REFRESH,
                    "data-refresh": _("Refresh automatically"),
                    "data-kept": _("No longer on this page. Kept because it is selected."),
                    "data-stopped": _("This page no longer refreshes. Please reload it."),
                },
            ),
        ]

    # -- several cache aliases ---------------------------------------------------------------------------------------

    def get_list_display(self, request: HttpRequest) -> Any:
        name, *others = self.list_display
        return (name, "shown_alias", *others) if _has_several_aliases() else self.list_display

    def get_list_filter(self, request: HttpRequest) -> Any:
        return [AliasFilter] if _has_several_aliases() else []

    # -- views -------------------------------------------------------------------------------------------------------

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LockChangeList

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> HeldLock | None:
        """A lock that nobody holds has a page and a history too. None for what cannot be a name."""
        lock = HeldLock(key=object_id)
        if not _can_exist(lock):
            return None
        info = get_lock(lock.name, using=lock.using)
        if info is None:
            return lock
        lock = HeldLock.of(info)
        if info.limit is not None and self.has_delete_permission(request, lock):
            page = f"admin:{self.opts.app_label}_{self.opts.model_name}_delete"
            url = reverse(page, args=[quote(lock.key)], current_app=self.admin_site.name)
            filters = self.get_preserved_filters(request)
            lock.release_url = f"{url}?{filters}&" if filters else f"{url}?"
        return lock

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"title": gettext("Held locks"), **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {"title": gettext("Lock"), **(extra_context or {})}
        return self._guard(request, self.has_view_permission, super().change_view, object_id, form_url, context)

    def history_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return self._guard(request, self.has_view_permission, super().history_view, *args, **kwargs)

    def delete_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        return self._guard(request, self.has_delete_permission, self._ask_or_release, [unquote(object_id)], one=True)

    def _guard(
        self, request: HttpRequest, allowed: Callable[..., bool], view: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Ask Redis only for users with the permission; if it cannot be reached, the list says so."""
        if not allowed(request):
            raise PermissionDenied
        try:
            shown: HttpResponse | None = view(request, *args, **kwargs)
        except LockUnavailable as error:
            shown = None
            if not self.has_view_permission(request):
                self.tell_unavailable(request, error)
        if shown is not None:
            return shown
        return self.response_post_save_change(request, HeldLock())  # to the list, or the index of who may not see it

    def tell_unavailable(self, request: HttpRequest, error: LockUnavailable) -> None:
        text = gettext("Could not read the locks from Redis: %(error)s") % {"error": error}
        self.message_user(request, text, messages.ERROR, extra_tags="redislock-down")

    # -- force-release -----------------------------------------------------------------------------------------------

    @admin.action(permissions=["delete"], description=_("Force-release selected locks"))
    def delete_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """``queryset`` knows nothing of Redis: the names are in the request."""
        try:
            return self._ask_or_release(request, request.POST.getlist(helpers.ACTION_CHECKBOX_NAME))
        except LockUnavailable:
            return None  # the list says so

    def _ask_or_release(self, request: HttpRequest, keys: Sequence[str], *, one: bool = False) -> HttpResponse | None:
        """Ask first; once that is confirmed, or nobody holds the locks any more, tell the user so and return None.

        A lock that was acquired after the user saw the question is spared: it has a higher fence than any had then of
        those that draw from the same numbers.
        """
        across, permit = not one and request.POST.get("select_across") == "1", _permit(request) if one else None
        if across:  # all that the list of this request shows, on whichever page
            locks = [HeldLock.of(lock) for lock in search(read_all(request), request.GET.get("q", ""))]
        else:
            found = [self.get_object(request, keys[0])] if one else _selected(keys)
            locks = [lock for lock in found if lock is not None and lock.info is not None]
        if permit is not None:
            every = ((lock, each) for lock in locks for each in (lock.info.permits if lock.info else ()))
            locks = [HeldLock.of(replace(each, waiters=lock.waiters)) for lock, each in every if each.fence == permit]
        if not all(self.has_delete_permission(request, lock) for lock in locks):
            raise PermissionDenied
        # in the order of their fences, so that of each field the highest one stays
        highest = {_fence_field(lock): lock.fence for lock in sorted(locks, key=lambda lock: lock.fence)}
        if request.POST.get("post"):
            gone = 0 if across else len({*keys}) - len(locks)
            self._release(request, locks, _fences(request) or highest, gone, permit)
            return None
        if not locks:
            nobody = gettext("Nobody holds these locks any more.")
            nobody = nobody if permit is None else gettext("Nobody shown there holds this permit any more.")
            self.message_user(request, nobody, messages.WARNING)
            return None
        title = gettext("Force-release the lock") if one else gettext("Force-release locks")
        context = {
            **self.admin_site.each_context(request),
            "title": title if permit is None else gettext("Force-release the permit"),
            "subtitle": None,
            "object": locks[0] if one else None,
            "opts": self.opts,
            "media": self.media,
            "locks": [self.describe(lock) for lock in locks[:SHOWN]],
            "more": more(len(locks) - SHOWN),
            "total": len(locks),
            "fences": highest,
            "permit": permit,
            "across": across,
            "keys": keys[:1] if across else [lock.key for lock in locks],
            "action_checkbox_name": helpers.ACTION_CHECKBOX_NAME,
        }
        request.current_app = self.admin_site.name
        ours = "admin/django_redislock/heldlock/delete_selected_confirmation.html"
        return TemplateResponse(request, self.delete_selected_confirmation_template or ours, context)

    def _release(
        self, request: HttpRequest, locks: Sequence[HeldLock], fences: dict[str, int], gone: int, permit: int | None
    ) -> None:
        """Force-release these locks, or one permit, log it in their histories, and tell the user.

        ``gone``: how many were free already.
        """
        outcomes: list[LockInfo | None] = []
        try:
            for batch in batches(locks):
                before = len(outcomes)
                try:
                    for lock in batch:
                        facts: dict[str, Any] = {"fence": fences.get(_fence_field(lock), 0), "permit": permit}
                        outcomes.append(force_release(lock.name, using=lock.using, by=_by(request), **facts))
                finally:
                    self._record(request, [*filter(None, outcomes[before:])])
        except LockUnavailable as error:
            left = len(locks) - len(outcomes)
            text = ngettext(
                "Redis stopped responding, %(count)d lock was not force-released: %(error)s",
                "Redis stopped responding, %(count)d locks were not force-released: %(error)s",
                left,
            )
            self.message_user(request, text % {"count": left, "error": error}, messages.ERROR)
        if count := len(outcomes) - outcomes.count(None):
            text = ngettext("%(count)d lock was force-released.", "%(count)d locks were force-released.", count)
            text = text if permit is None else gettext("The permit was force-released.")
            self.message_user(request, text % {"count": count}, messages.SUCCESS)
        if gone := gone + outcomes.count(None):
            text = ngettext(
                "%(count)d lock was left alone: its holder had changed or was gone.",
                "%(count)d locks were left alone: their holders had changed or were gone.",
                gone,
            )
            self.message_user(request, text % {"count": gone}, messages.WARNING)

    def _record(self, request: HttpRequest, locks: Sequence[LockInfo]) -> None:
        """Log the force-release in the histories, if that can be: the locks are free in any case."""
        try:
            if locks:
                record(request.user.pk, locks)
        except Exception as error:  # whatever the database, or a receiver of the site, says
            text = gettext("Not recorded in the history: %(error)s") % {"error": error}
            self.message_user(request, text, messages.WARNING)


def _has_several_aliases() -> bool:
    return len(reach_stores()) > 1


def _can_exist(lock: HeldLock) -> bool:
    return is_name(lock.name) and (lock.using is None or lock.using in lock_aliases())


def _selected(keys: Sequence[str]) -> list[HeldLock]:
    """Those of the list that are still held; two round trips for each alias, on a cluster for each tag."""
    names: dict[str | None, set[str]] = {}
    for lock in filter(_can_exist, (HeldLock(key=key) for key in keys)):
        names.setdefault(lock.using, set()).add(lock.name)
    reads = [read_matching(get_store(using).everywhere(), of.__contains__) for using, of in names.items()]
    return [HeldLock.of(lock) for steps in reads for lock in run(steps)]


def _by(request: HttpRequest) -> str:
    return f"{printable(request.user.get_username())} in the admin"


def _permit(request: HttpRequest) -> int | None:
    """The fence of the permit that is meant, one that nobody has where that is no fence; None: it is no permit."""
    given = request.GET.get("permit")
    return None if given is None else _fence(given) or 0


def _fence(text: str) -> int | None:
    """None: it is no fence."""
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _fence_field(lock: HeldLock) -> str:
    """The form field for the highest fence among the locks that share this one's fence counter.

    On a cluster, each hash tag has a counter of its own.
    """
    partition = get_partition(lock.using, lock.name)
    return f"fence:{partition.alias}:{partition.tag}"


def _fences(request: HttpRequest) -> dict[str, int]:
    """The highest fences that the user saw, by field."""
    given = {field: _fence(str(text)) for field, text in request.POST.items() if field.startswith("fence:")}
    return {field: fence for field, fence in given.items() if fence is not None}


@admin.register(Fence)
class FenceAdmin(_ReadOnly, FenceModelAdmin):
    """``view`` is the only permission: a fence that is changed by hand can let a stale holder in."""

    list_display: tuple[str, ...] = ("shown_name", "shown_fence", "claimed")
    fields: ClassVar[tuple[str, ...]] = ("shown_name", "shown_fence", "claimed")
    search_fields: ClassVar[tuple[str, ...]] = ("name",)
    ordering: ClassVar[tuple[str, ...]] = ("-claimed",)

    shown_name = field(_("name"), lambda row: printable(row.name), "name")
    shown_fence = field(_("fence"), lambda row: str(row.fence), "fence")  # see LockFields

    def has_delete_permission(self, request: HttpRequest, obj: Fence | None = None) -> bool:
        return False
