"""``redislocks list``, ``show`` and ``pool``; all aliases; and what holds for every subcommand."""

import io
import json
import os
import re
import unicodedata
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
import redis
from django.core.cache import cache
from django.core.management import CommandError, call_command, load_command_class
from django.test import override_settings

from django_redislock import Lock, LockPool, get_lock
from redisserver import RedisServer
from tests.cli.conftest import NOWHERE, NOWHERE_AS_CLUSTER, WaitFor, fails, main, redislocks
from tests.helpers.actors import Ghost
from tests.helpers.state import hold, put
from tests.inside import PREFIX


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line)


def width(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


WAITER = {"owner", "waited", "note", "gone"}


def test_it_tells_all_about_a_lock_and_its_queue(wait_for: WaitFor) -> None:
    assert redislocks("list") == "No locks are held.\n"
    fails(1, r"^Not held: order:42$", "show", "order:42")
    with Lock("order:42", ttl=600, note="of the year") as lock:
        wait_for("order:42", note="first\nsecond")
        wait_for("order:42")
        fence, (head, row), text = lock.fence, redislocks("list").splitlines(), redislocks("show", "order:42")
        (told,) = json.loads(redislocks("list", format="json"))
        shown = json.loads(redislocks("show", "order:42", "--format=json"))
        assert str(lock.token)[:8] not in f"{row} {told} {text} {shown}"
    assert cells(head) == ["NAME", "OWNER", "HELD FOR", "LEASE LEFT", "WAITERS", "FENCE", "NOTE"]
    name, owner, held_for, left, *numbers, note = cells(row)
    assert (name, *numbers, note) == ("order:42", "2", str(fence), "of the year")
    assert f":{os.getpid()}:" in owner
    assert re.fullmatch(r"\d+(\.\d)? s", held_for)
    assert re.fullmatch(r"(9 min \d+ s|10 min 0 s)", left)
    keys = ["name", "alias", "owner", "since", "held_for", "lease_left", "expires", "fence", "waiters"]
    keys += ["pool_waiters", "note", "held", "suspension", "handed_over", "detached", "limit", "permits"]
    keys += ["permits_held", "status"]
    assert list(told) == keys
    since, expires = datetime.fromisoformat(told["since"]), datetime.fromisoformat(told["expires"])
    assert (expires - since).total_seconds() == pytest.approx(told["held_for"] + told["lease_left"], abs=0.01)
    assert (told["name"], told["alias"], told["waiters"], told["fence"]) == ("order:42", "default", 2, fence)
    assert told["status"] == "unavailable"

    top, queue = text.split("\n\n")
    facts = dict(re.split(r" {2,}", line, maxsplit=1) for line in top.splitlines())
    assert list(facts) == ["NAME", "OWNER", "SINCE", "HELD FOR", "LEASE LEFT", "FENCE", "TOKEN", "WAITERS", "NOTE"]
    assert [facts[which] for which in ("NAME", "WAITERS", "FENCE", "NOTE")] == [name, *numbers, note]
    head, *rows = queue.splitlines()
    assert cells(head) == ["#", "WAITER", "WAITED", "NOTE"]
    (number, owner, _, note), (second, another, _) = map(cells, rows)
    assert (number, note, second) == ("1", r"'first\nsecond'", "2")
    assert all(f":{os.getpid()}:" in one for one in (owner, another))
    assert (shown["name"], shown["waiters"], [set(one) for one in shown["queue"]]) == ("order:42", 2, [WAITER] * 2)


def test_it_shows_only_what_matches_sorted_by_name_and_notes_if_there_are_any() -> None:
    hold("order:2", "seat:1", "e\u0301e", "鍵")
    hold("order:1", note="of two\nlines")
    head, first, second = redislocks("list", "order:*").splitlines()
    assert re.search("  WAITERS  FENCE +NOTE$", head)
    assert re.match(r"order:1 .*  0        \d+  'of two\\nlines'$", first)
    assert re.match(r"order:2 .*  0        \d+$", second)
    assert "NOTE" not in redislocks("list", "seat:*")
    assert redislocks("list", "") == "No held lock matches ''.\n"
    head, *rows = redislocks("list").splitlines()
    places = {row.split()[0]: row.index(row.split()[1]) - head.index("OWNER") for row in rows}
    assert places == {"order:1": 0, "order:2": 0, "seat:1": 0, "e\u0301e": 1, "鍵": -1}  # aligned for the eye


class Watched(io.StringIO):
    """Does these things, one after each list; then it interrupts, as Ctrl-C does."""

    def __init__(self, *deeds: Callable[[], Any], terminal: bool = False) -> None:
        super().__init__()
        self._deeds = list(deeds)
        self.isatty = lambda: terminal  # type: ignore[method-assign]

    def flush(self) -> None:
        super().flush()
        if not self._deeds:
            raise KeyboardInterrupt
        self._deeds.pop(0)()


def watch(out: Watched, *arguments: str) -> str:
    call_command("redislocks", "list", *arguments, stdout=out, no_color=True)
    return out.getvalue()


def test_it_lists_again_and_again_until_interrupted() -> None:
    printed = watch(Watched(lambda: hold("order:42")), "--watch=0.01")
    first, second = re.split(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, every 0\.01 s\n", printed, flags=re.M)[1:]
    assert first == "No locks are held.\n\n"
    assert "order:42" in second
    assert ", every 2 s\n" in watch(Watched(), "order:*", "--watch")
    lines = watch(Watched(lambda: hold("order:43")), "--watch=0.01", "--format=json").splitlines()
    assert [[lock["name"] for lock in json.loads(line)] for line in lines] == [["order:42"], ["order:42", "order:43"]]
    fails(1, r"'order:\*' is not a number of seconds", "list", "--watch", "order:*")
    fails(1, r"at least 0\.001", "list", "--watch=0")


AWAY = pytest.mark.parametrize("caches", [NOWHERE, NOWHERE_AS_CLUSTER], ids=["server", "cluster"])


@AWAY
@pytest.mark.complete
def test_watching_goes_on_when_redis_is_out_of_reach(caches: Any) -> None:
    with override_settings(CACHES=caches):
        assert watch(Watched(lambda: None), "--watch=0.01").count("Redis cannot be reached") == 2
        with pytest.raises(CommandError, match="cannot be reached"):
            watch(Watched(), "--watch", "--format=json")


def test_long_texts_are_cut_and_the_numbers_stay(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    put(client, "order:" + "x" * 200, owner=f"host:1:Main\n{'n' * 300}")
    put(client, "鍵" * 100, owner=f"host:1:Main {'y' * 180}")
    for columns, most in (("110", 110), ("10", 120)):  # below that, the terminal cuts
        monkeypatch.setenv("COLUMNS", columns)
        rows = re.findall(r"^(?:\x1b\S*)?(.*?)\x1b\[K", watch(Watched(terminal=True), "--watch"), re.M)[2:]
        for row in rows:
            assert width(row) <= most
            assert re.search(r"… .* s +(5\d(\.\d)? s|1 min 0 s) +0 +\d{16}", row)
        assert rows[0].endswith("n…")
    assert "…" not in redislocks("list")


def test_watching_stays_in_place_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "6")
    monkeypatch.setenv("COLUMNS", "200")
    hold(*(f"order:{number}" for number in range(9)))
    text = watch(Watched(terminal=True), "--watch")
    assert text.startswith("\x1b[H")
    assert text.count("\n") == 5  # the last line of the screen is for the cursor
    assert ("order:1" in text, "order:2" in text) == (True, False)
    assert "... and 7 more lines\x1b[K" in text
    fence = get_lock("order:8").fence  # type: ignore[union-attr]
    assert watch(Watched(terminal=True), "order:8", "--watch").endswith(f"  {fence}\x1b[K\x1b[J\x1b[?7h\n")


def test_a_missing_subcommand_and_an_unknown_alias_are_clear_errors() -> None:
    fails(1, "SUBCOMMAND")
    for words in (["list", "--using=nowhere"], ["run", "a", "--using=nowhere", "--", "true"]):
        fails(2, r"Unknown cache alias 'nowhere'.*The aliases in CACHES are: default, memory", *words)


def test_djangos_own_options_may_stand_on_both_sides_of_the_subcommand() -> None:
    parser = load_command_class("django_redislock", "redislocks").create_parser("manage.py", "redislocks")
    for words in ("--traceback -v2 --no-color list", "list --traceback -v2 --no-color"):
        options = parser.parse_args(words.split())
        assert (options.traceback, options.verbosity, options.no_color) == (True, 2, True)


@AWAY
@pytest.mark.parametrize("arguments", ["list", "show a", "pool a", "clear a", "clear --all", "run a -- false"])
def test_redis_out_of_reach_is_a_clear_error(arguments: str, caches: Any, retry_for: Any, capsys: Any) -> None:
    retry_for(0.1)
    with override_settings(CACHES=caches):  # 1 would say that nobody holds the lock, or that the program has failed
        fails(69, r"Redis cannot be reached for .*cache alias 'default'", *arguments.split())
        assert main(*arguments.split()) == 69
    assert capsys.readouterr().err.count("\n") == 1  # and no traceback


@pytest.mark.parametrize("arguments", [["list"], ["run", "a", "--", "true"]])
def test_the_memory_mode_says_that_it_guards_one_process_only(arguments: list[str], settings: Any) -> None:
    settings.DEBUG = True
    errors = io.StringIO()
    with Lock("a"):  # on another alias
        redislocks(*arguments[:1], "--using=memory", *arguments[1:], stderr=errors)
    assert errors.getvalue().startswith("The cache alias 'memory' is not Redis: ")


def test_watching_says_so_once(settings: Any) -> None:
    settings.DEBUG = True
    errors, twice = io.StringIO(), Watched(lambda: None)
    call_command("redislocks", "list", "--using=memory", "--watch=0.01", stdout=twice, stderr=errors)
    assert errors.getvalue().count("is not Redis") == 1


KEY = f"{PREFIX}lock:order:42"
QUEUE = r"\n\n#  WAITER +WAITED\n1  \S.* s$"
BY = rf"\S+:{os.getpid()}:MainThread"


def test_waiters_whose_process_was_killed_are_marked_and_of_many_the_first_are_listed(ghost: Any, client: Any) -> None:
    hold("order:42")
    ghost(alive=False).queue("1" * 22, name="order:42", age=2)
    ghost().queue("2" * 22, name="order:42")
    head, *rows = redislocks("show", "order:42").splitlines()[-3:]
    assert cells(head) == ["#", "WAITER", "WAITED", "PROCESS"]
    assert [cells(row)[3:] for row in rows] == [["gone"], []]
    put(client, "many", waiters=1234)
    lines = redislocks("show", "many").splitlines()
    assert (lines[-2].split()[0], lines[-1]) == ("100", "... and 1134 more")


def test_what_somebody_else_has_written_is_shown_without_end_and_cleared_like_a_lock(client: redis.Redis) -> None:
    hold("order:42", ttl=100)
    client.persist(KEY)
    assert re.search(rf"^order:42 +{BY} .* s +without end ", redislocks("list"), re.M)
    shown = redislocks("show", "order:42")
    assert re.search(r"^LEASE LEFT +without end ", shown, re.M)
    assert re.search(r"^STATE +somebody else has written it, or removed its expiry$", shown, re.M)
    told = json.loads(redislocks("show", "order:42", format="json"))
    assert (told["lease_left"], told["expires"], told["status"]) == (None, None, "error")
    client.set(KEY, "of somebody else")
    facts = dict(cells(line) for line in redislocks("show", "order:42").splitlines())
    assert list(facts) == ["NAME", "STATE", "OWNER", "LEASE LEFT", "WAITERS"]
    assert facts["OWNER"] == "?"
    assert re.search(r"^order:42 +\? .* without end ", redislocks("list"), re.M)
    redislocks("clear", "order:42", "--noinput")
    assert not client.exists(KEY)


def test_for_a_pools_member_waiters_for_any_member_are_counted_and_shown_below(ghost: Callable[..., Ghost]) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    name, there = pool.acquire(ttl=600).name, ghost()
    there.queue("1" * 22, name=name, age=9)
    for waiter in "23":
        there.queue(waiter * 22, name="pool:accounts:", age=60)
    shown = redislocks("show", name)
    assert re.search(r"^WAITERS +1\nFOR ANY +2 for any member of the pool$", shown, re.M)
    queue, rest = shown.split("\n\n")[1:]
    assert re.fullmatch(r"#  .*\n1  .* (9|1\d)(\.\d)? s", queue)
    assert re.fullmatch(r"For any member of the pool:\n#  .*\n1  .* 1 min .*\n2  .* 1 min .*\n", rest)
    told = json.loads(redislocks("show", name, "--format=json"))
    assert (told["waiters"], told["pool_waiters"], len(told["queue"]), len(told["pool_queue"])) == (1, 2, 1, 2)
    assert re.search(rf"^{name} .* 3        \d+$", redislocks("list"), re.M)
    assert redislocks("clear", name, "--noinput").endswith(", 3 waiting.\n")


def test_a_pool_tells_who_holds_its_members_and_who_waits(ghost: Any) -> None:
    pool = LockPool("proxies")
    pool.extend(["a", "b:c"])
    assert redislocks("pool", "proxies") == "POOL     proxies\nMEMBERS  2\nFREE     2\nWAITERS  0\n"
    with pool.acquire() as first, pool.acquire() as second:
        names = sorted([first.name, second.name])
        ghost().queue("1" * 22, name="pool:proxies:")
        text, listed = redislocks("pool", "proxies"), redislocks("pool").splitlines()
        found = json.loads(redislocks("pool", "proxies", "--format=json"))
        every = json.loads(redislocks("pool", "--format=json"))
    facts, members, _ = text.split("\n\n")
    assert dict(map(cells, facts.splitlines())) == {"POOL": "proxies", "MEMBERS": "2", "FREE": "0", "WAITERS": "1"}
    assert [line.split()[0] for line in members.splitlines()] == ["NAME", *names]
    assert re.search(QUEUE, text.rstrip())
    numbers = {"name": "proxies", "alias": "default", "members": 2, "waiters": 1}
    assert {**found, **numbers, "free": 0} == found
    assert [lock["name"] for lock in found["locks"]] == names
    assert [set(waiter) for waiter in found["queue"]] == [WAITER]
    assert [" ".join(line.split()) for line in listed] == ["POOL MEMBERS HELD WAITERS", "proxies 2 2 1"]
    assert every == [{**numbers, "held": 2}]


def test_a_pool_without_members_fails_and_shows_what_is_left(ghost: Any) -> None:
    pool: LockPool = LockPool("proxies")
    arguments = (1, r"^The pool proxies has no members\.$", "pool", "proxies")
    assert fails(*arguments) == ""
    pool.extend(["a"])
    with pool.acquire() as member:
        pool.clear()
        assert re.search(rf"^{member.name} ", fails(*arguments), re.M)
        assert redislocks("pool") == "There are no pools.\n"
    ghost().queue("1" * 22, name="pool:proxies:")
    assert re.search(QUEUE, fails(*arguments).rstrip())


def test_a_suspension_is_told_with_its_note_and_clear_ends_it(client: redis.Redis) -> None:
    token = hold("order:42")
    for note, shown in (("", ""), ("rate limited", ": rate limited")):
        Lock("order:42").suspend(3600, note=note)
        said = rf"SUSPENDED   as soon as nobody holds it, for another (1 h 0 min|59 min 5\d s), by {BY}{shown}\n"
        assert re.search(said, redislocks("show", "order:42"))
    Lock("order:42", token=token).release()
    text = redislocks("show", "order:42")
    assert re.search(rf"OWNER       nobody \(suspended by {BY}\)\n", text)
    assert "NOTE        rate limited\n" in text
    assert "SUSPENDED" not in text
    row = redislocks("list").splitlines()[1]
    assert re.match(rf"order:42  nobody \(suspended by {BY}\) .* (1 h 0|59 min 5\d s).* rate limited$", row)
    (told,) = json.loads(redislocks("list", format="json"))
    assert (told["held"], told["note"], told["suspension"]["note"]) == (False, *["rate limited"] * 2)
    assert 3500 < told["suspension"]["left"] <= 3600
    client.persist(KEY)
    (told,) = json.loads(redislocks("list", format="json"))
    assert told["suspension"]["left"] is None
    assert "by nobody (suspended by" in redislocks("clear", "order:42", "--noinput")
    assert not Lock("order:42").locked()


SEVERAL = r"several cache aliases \(locks, default\): give --using"


@pytest.mark.usefixtures("two_aliases")
def test_the_locks_of_all_aliases_are_listed_shown_and_cleared() -> None:
    hold("x", "order:1")
    for name in ("x", "order:2"):
        assert cache.lock(name, timeout=60).acquire()  # type: ignore[attr-defined]
    head, *rows = [line.split() for line in redislocks("list").splitlines()]
    assert head[:3] == ["NAME", "ALIAS", "OWNER"]
    held = [["order:1", "locks"], ["order:2", "default"], ["x", "locks"], ["x", "default"]]
    assert [row[:2] for row in rows] == held
    assert [lock["alias"] for lock in json.loads(redislocks("list", "x", "--format=json"))] == ["locks", "default"]
    head, *rows = [line.split() for line in redislocks("list", "--using=default").splitlines()]
    assert ("ALIAS" not in head, [row[0] for row in rows]) == (True, ["order:2", "x"])

    assert redislocks("show", "order:2").startswith("NAME        order:2\n")
    fails(2, SEVERAL, "show", "x")
    assert redislocks("show", "x", "--using=default").startswith("NAME        x\n")
    fails(1, r"^Not held: y$", "show", "y")

    assert "locks" in redislocks("clear", "--match=order:*", "--dry-run")
    assert redislocks("clear", "x", "--using=default", "--noinput").startswith("Force-released x, held for")
    assert [Lock("x", using=alias).locked() for alias in ("locks", "default")] == [True, False]
    hold("x", using="default")
    printed = redislocks("clear", "x", "order:2", "--noinput").splitlines()
    told = ["Force-released x (locks)", "Force-released x (default)", "Force-released order:2 (default)"]
    assert [line.split(",")[0] for line in printed] == told
    assert redislocks("clear", "--all", "--noinput").startswith("Force-released order:1 (locks)")
    assert redislocks("list") == "No locks are held.\n"


@pytest.mark.usefixtures("two_aliases")
def test_pools_of_all_aliases_are_listed_and_found() -> None:
    for pool, alias in (("a", "locks"), ("b", "default"), ("a", "default")):
        LockPool(pool, using=alias).extend(["x"])
    head, *rows = [line.split() for line in redislocks("pool").splitlines()]
    assert head[:2] == ["POOL", "ALIAS"]
    assert [row[:2] for row in rows] == [["a", "locks"], ["a", "default"], ["b", "default"]]
    assert redislocks("pool", "b").startswith("POOL     b\n")
    assert redislocks("pool", "a", "--using=default").startswith("POOL     a\n")
    fails(2, SEVERAL, "pool", "a")


@pytest.mark.usefixtures("two_aliases")
@pytest.mark.parametrize(("away", "trouble"), [(True, "cannot be reached"), (False, "Redis refuses to serve")])
@pytest.mark.parametrize("arguments", ["list", "show x", "pool x", "clear x --noinput", "clear --all"])
def test_one_alias_that_cannot_be_used_leads_to_using(
    arguments: str, away: bool, trouble: str, server: RedisServer, settings: Any
) -> None:
    hold("x", using="default")
    location = f"redis://127.0.0.1:{1 if away else server.port}/99"  # there is no such database
    settings.CACHES = {**settings.CACHES, "locks": {**NOWHERE["default"], "LOCATION": location}}
    settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 0.1}
    said = rf"{trouble} .*cache alias 'locks'.* \(With --using, only one alias is asked\.\)$"
    fails(69, said, *arguments.split())
    assert redislocks("list", "--using=default").startswith("NAME")
