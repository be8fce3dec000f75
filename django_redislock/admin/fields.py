"""What the admin shows of a lock: a row in the list, its page with the queue, a line of a confirmation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.template.defaultfilters import linebreaksbr
from django.utils.formats import date_format, time_format
from django.utils.html import format_html, format_html_join
from django.utils.timezone import localtime
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..base.display import duration, printable
from ..base.names import split_member
from ..inspection.info import LockInfo, LockStatus, WaiterInfo, with_permits
from ..models import HeldLock


def field(title: Any, show: Callable[[Any], Any], ordering: str | None = None) -> Callable[..., Any]:
    """A column or a field of this title. ``ordering``: the column of the model by which it is sorted."""
    return admin.display(description=title, ordering=ordering)(lambda self, row: show(row))


def _lease_left(lock: HeldLock) -> str:
    text = "%(duration)s"
    if _info(lock).handed_over:
        text = gettext("%(duration)s (being handed over)")
    elif _info(lock).detached:
        text = gettext("%(duration)s (detached)")
    return text % {"duration": duration(lock.lease_left, gettext)}


def _waiters(lock: HeldLock) -> str:
    of_pool = _info(lock).pool_waiters
    if not of_pool:
        return str(lock.waiters)
    return gettext("%(own)d, and %(any)d for any member of the pool") % {"own": lock.waiters, "any": of_pool}


def _state(lock: HeldLock) -> str:
    if lock.info is None:
        return gettext("Nobody holds this lock now.")
    suspension, held = lock.info.suspension, lock.info.held
    if suspension is None:
        return gettext("Somebody else has written it, or removed its expiry.")
    text = gettext("Suspended by %(owner)s for another %(duration)s: nobody acquires it until then.")
    if held:
        text = gettext("As soon as nobody holds it: suspended by %(owner)s, for another %(duration)s from now.")
    text %= {"owner": printable(suspension.owner), "duration": duration(suspension.left, gettext)}
    return f"{text}\n{_lines(suspension.note)}" if held and suspension.note else text


def _held_since(lock: HeldLock) -> str:
    facts = {"duration": duration(lock.held_for, gettext), "time": _time(_info(lock).since)}
    return gettext("%(duration)s, since %(time)s") % facts


def _expires(lock: HeldLock) -> str:
    info = _info(lock)
    if info.status is LockStatus.ERROR or info.handed_over or info.detached or not info.held:
        return _lease_left(lock)
    facts = {"duration": duration(lock.lease_left, gettext), "time": _time(info.expires)}
    return gettext("%(duration)s, until %(time)s unless it is renewed") % facts


def _queue(waiters: Sequence[WaiterInfo], count: int) -> str:
    if not waiters:
        return gettext("Nobody is waiting.")
    titles = ("#", _("Owner"), _("Waited"), _("Process"), _("Note"))
    lines = [
        (
            place,
            printable(waiter.owner),
            duration(waiter.waited, gettext),
            gettext("gone") if waiter.gone else "",
            linebreaksbr(_lines(waiter.note), autoescape=True),
        )
        for place, waiter in enumerate(waiters, 1)
    ]
    return _table(titles, lines, count)


def _holders(lock: HeldLock) -> str:
    titles = (_("owner"), _("held for"), _("lease left"), _("fence"), _("note"), _("action"))
    lines = [
        (
            printable(permit.owner),
            duration(permit.held_for, gettext),
            _lease_left(HeldLock.of(permit)),
            permit.fence,
            linebreaksbr(_lines(permit.note), autoescape=True),
            _release_link(lock, permit.fence),
        )
        for permit in _info(lock).permits
    ]
    return _table(titles, lines, _info(lock).permits_held)


def _release_link(lock: HeldLock, fence: int) -> str:
    """To force-release one permit of a semaphore; empty for users who may not."""
    if not lock.release_url or not fence:  # somebody else has written it
        return ""
    return format_html('<a href="{}permit={}">{}</a>', lock.release_url, fence, gettext("Force-release…"))


def _table(titles: Sequence[Any], lines: Sequence[Sequence[Any]], count: int) -> str:
    """Without the columns in which nothing stands. ``count``: of all, of which there may be more than ``lines``."""
    columns = [column for column in zip(titles, *lines, strict=True) if any(column[1:])]
    head = format_html_join("", '<th scope="col">{}</th>', [column[:1] for column in columns])
    cells = "<td>{}</td>" * len(columns)
    rows = format_html_join("", f"<tr>{cells}</tr>", zip(*(column[1:] for column in columns), strict=True))
    rest = more(count - len(lines))
    return format_html(
        '<table class="redislock-queue"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>{}', head, rows, rest
    )


def _name(lock: HeldLock) -> str:
    return with_permits(str(lock), lock.info)


class LockFields:
    """The part of LockAdmin that says what is shown."""

    # the columns of the list
    shown_name = field(_("name"), _name, "key")
    shown_alias = field(_("cache alias"), lambda lock: printable(lock.alias))
    shown_owner = field(_("owner"), lambda lock: printable(lock.owner), "owner")
    shown_held_for = field(_("held for"), lambda lock: duration(lock.held_for, gettext), "held_for")
    shown_lease_left = field(_("lease left"), _lease_left, "lease_left")
    # as text: a fence is copied, so no language may put separators into it
    shown_fence = field(_("fence"), lambda lock: str(lock.fence), "fence")
    shown_waiters = field(_("waiters"), _waiters, "waiters")

    # on the page of a lock
    state = field(_("state"), _state)
    note = field(_("note"), lambda lock: _lines(_info(lock).note))
    held_since = field(_("held for"), _held_since)
    expires = field(_("lease left"), _expires)
    token_hint = field(_("token"), lambda lock: printable(_info(lock).token_hint))
    holders = field(_("oldest first"), _holders)
    queue = field(_("in order"), lambda lock: _queue(_info(lock).queue, _info(lock).waiters))
    pool_waiters = field(_("waiters"), lambda lock: _info(lock).pool_waiters)
    pool_queue = field(_("in order"), lambda lock: _queue(_info(lock).pool_queue, _info(lock).pool_waiters))

    def get_fieldsets(self, request: HttpRequest, obj: HeldLock | None = None) -> Any:
        if obj is None or obj.info is None:
            return [(None, {"fields": ("shown_name", "state")})]
        state = ("state",) if obj.info.status is LockStatus.ERROR or obj.info.suspension else ()
        note = ("note",) if obj.info.note else ()
        token = ("token_hint",) if obj.info.token_hint else ()
        known = ("shown_owner", *note, "held_since", "expires", "shown_fence", *token) if obj.fence else ("expires",)
        sections: list[tuple[Any, Any]] = [(None, {"fields": ("shown_name", *state, *known)})]
        if obj.info.limit is not None:
            sections = [(None, {"fields": ("shown_name",)}), (_("Holders"), {"fields": ("holders",)})]
        sections.append((_("Queue"), {"fields": ("waiters", "queue")}))
        if split_member(obj.name) is not None:
            sections.append((_("Queue for any member of the pool"), {"fields": ("pool_waiters", "pool_queue")}))
        return sections

    def describe(self, lock: HeldLock) -> str:
        return gettext("%(name)s, held for %(duration)s by %(owner)s, %(waiters)d waiting") % {
            "name": _name(lock),
            "duration": duration(lock.held_for, gettext),
            "owner": printable(lock.owner),
            "waiters": _info(lock).waiters + _info(lock).pool_waiters,
        }


def _info(lock: HeldLock) -> LockInfo:
    assert lock.info is not None
    return lock.info


def more(count: int) -> str:
    return ngettext("and %(count)d more", "and %(count)d more", count) % {"count": count} if count > 0 else ""


def _lines(note: str) -> str:
    return "\n".join(printable(line.strip()) for line in note.splitlines())


def _time(time: datetime) -> str:
    local = localtime(time)
    return f"{date_format(local, 'DATE_FORMAT')} {time_format(local, 'H:i:s')}"
