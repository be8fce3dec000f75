"""The memory mode: an alias on LocMemCache or DummyCache gets an in-process server that runs the same scripts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_redislock import Lock
from tests.helpers.actors import Crowd
from tests.helpers.operations import all_of_them
from tests.helpers.processes import Worker
from tests.helpers.state import NAME

from .conftest import Eventually, Exercise

LOCMEM = "django.core.cache.backends.locmem.LocMemCache"
DUMMY = "django.core.cache.backends.dummy.DummyCache"

KINDS = pytest.mark.parametrize("_memory", [LOCMEM, DUMMY], ids=["LocMemCache", "DummyCache"], indirect=True)


@pytest.fixture(autouse=True)
def _memory(request: pytest.FixtureRequest, settings: Any) -> None:
    """The default alias, and another one, have no Redis."""
    kind = getattr(request, "param", LOCMEM)
    settings.CACHES = {"default": {"BACKEND": kind}, "second": {"BACKEND": kind}}


# -- the same behaviour ---------------------------------------------------------------------------------------------


@KINDS
def test_locks_pools_and_values_work(crowd: Crowd, exercise: Exercise, eventually: Eventually) -> None:
    exercise()
    all_of_them(crowd, eventually)


# -- its server -----------------------------------------------------------------------------------------------------


@KINDS
def test_each_alias_has_a_server_of_its_own(crowd: Crowd, settings: Any) -> None:
    me, you = crowd(), crowd()
    me(Lock(NAME), "acquire")
    assert me(Lock(NAME, using="default"), "locked")
    assert not me(Lock(NAME, using="second"), "locked")
    assert me(Lock("other", using="second"), "acquire", blocking=False)
    assert not you(Lock("other"), "locked")
    settings.REDISLOCK = {"CACHE": "second"}
    assert you(Lock("other"), "locked")
    settings.CACHES = {**settings.CACHES}  # new servers
    assert not you(Lock("other"), "locked")


FORKED = """
from django.test import override_settings

def wait_for(held):
    thread = threading.Thread(target=Lock(name, blocking_timeout=60).acquire, daemon=True)
    thread.start()
    while held.info().waiters == 0:
        time.sleep(0.001)
    return thread

with override_settings(CACHES={"default": {"BACKEND": backend}}):
    lock = Lock(name)
    lock.acquire()
    waiting = wait_for(lock)  # its threads run at the time of the fork
    if os.fork() == 0:
        say("child", Lock(name).locked(), lock.token)
        lock = Lock(name)
        lock.acquire()
        waiting = wait_for(lock)
    else:
        os.wait()
    lock.release()
    waiting.join(30)
    say("next", waiting.is_alive())
    os._exit(0)
"""


def test_a_fork_starts_a_fresh_server_and_leaves_the_parent_alone(start: Callable[..., Worker]) -> None:
    worker = start(FORKED, name=NAME, backend=LOCMEM)
    assert worker.expect("child") == ["False", "None"]
    assert worker.expect("next") == ["False"]
    assert worker.expect("next") == ["False"]


@KINDS
def test_without_fakeredis_the_error_says_what_to_install(
    me: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.CACHES = {**settings.CACHES}
    monkeypatch.setitem(sys.modules, "fakeredis", None)
    with pytest.raises(ImproperlyConfigured, match=r"'default'.*pip install \"django-redislock\[memory\]\""):
        me(Lock(NAME), "acquire")


def test_its_begin_is_logged_once_unless_debug_is_on(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    def begin() -> int:
        caplog.clear()
        settings.CACHES = {**settings.CACHES}
        for prefix in "one", "other":
            with override_settings(REDISLOCK={"KEY_PREFIX": prefix}), Lock(NAME):
                pass
        return caplog.text.count("event=memory-mode alias=default detail=")

    assert begin() == 1
    settings.DEBUG = True
    assert begin() == 0


def test_where_redis_is_required_it_is_an_error(me: Any, settings: Any) -> None:
    message = r"^The cache alias 'default' is not Redis, and REDISLOCK\['REQUIRE_REDIS'\] is True: "
    for begun in False, True:
        settings.CACHES = {**settings.CACHES}
        if begun:
            me(Lock(NAME), "locked")
        with override_settings(REDISLOCK={"REQUIRE_REDIS": True}), pytest.raises(ImproperlyConfigured, match=message):
            me(Lock(NAME), "acquire")
    assert me(Lock(NAME), "acquire")
