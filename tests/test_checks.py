from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import redis
from django.core.checks import CheckMessage, run_checks

import django_redislock
from django_redislock import deploychecks
from redisserver import RedisServer, redis_server

SOURCE = Path(django_redislock.__file__).parent
README = SOURCE.parent / "README.rst"
BACKEND = "django_redis.cache.RedisCache"
DJANGOS = "django.core.cache.backends.redis.RedisCache"


def check(*, deploy: bool = False) -> list[CheckMessage]:
    found = run_checks(include_deployment_checks=deploy)
    ours = [message for message in found if (message.id or "").startswith("django_redislock")]
    assert all(message.hint for message in ours)
    return ours


def ids(*, deploy: bool = False) -> list[str]:
    return [(message.id or "").rpartition(".")[2] for message in check(deploy=deploy)]


@pytest.fixture(autouse=True)
def sound(settings: Any, server: RedisServer) -> None:
    """The site of these tests: its locks have a database of their own."""
    settings.CACHES = {
        **settings.CACHES,
        "locks": {"BACKEND": BACKEND, "LOCATION": f"redis://127.0.0.1:{server.port}/5"},
    }
    settings.REDISLOCK = {"CACHE": "locks"}


# -- settings ---------------------------------------------------------------------------------------------------------


def test_a_sound_site_passes() -> None:
    assert ids() == []
    assert ids(deploy=True) == []


def test_wrong_settings_are_found(settings: Any) -> None:
    settings.REDISLOCK = {"TLL": 3}
    assert ids() == ["E001"]


def test_every_wrong_setting_is_told(settings: Any) -> None:
    settings.REDISLOCK = {"TLL": 3, "TTL": "soon", "MAX_HOLD": 5, "VIEW_STATUS": 200}
    assert ids() == ["E001"] * 3
    assert [re.findall(r"'(\w+)'", message.msg)[0] for message in check()] == ["TLL", "TTL", "VIEW_STATUS"]
    settings.REDISLOCK = ["TTL"]
    assert ids() == ["E001"]


def test_an_alias_that_is_missing_is_found(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "nowhere"}
    ((message),) = check()
    assert message.id == "django_redislock.E002"
    assert "There are: default, memory, locks." in message.msg


def test_an_alias_that_is_no_redis_is_found(settings: Any, tmp_path: Path) -> None:
    files = {"BACKEND": "django.core.cache.backends.filebased.FileBasedCache", "LOCATION": str(tmp_path)}
    settings.CACHES = {**settings.CACHES, "locks": files}
    assert ids() == ["E003"]
    assert ids(deploy=True) == ["E003"]


def test_the_memory_mode_warns_where_it_is_not_for_development(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "memory"}
    ((message),) = check()
    assert message.id == "django_redislock.W001"
    assert "guard that process only" in message.msg
    assert ids(deploy=True) == ["W001"]
    settings.DEBUG = True
    assert ids() == []


@pytest.mark.parametrize("prefix", ["a{b}", "{", "}"])
def test_braces_in_a_prefix_are_found(prefix: str, settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "locks", "KEY_PREFIX": prefix}
    assert ids() == ["E004"]
    settings.REDISLOCK = {"CACHE": "locks", "KEY_PREFIX": prefix, "TTL": 0}
    assert ids() == ["E004", "E001"]


def test_braces_in_the_prefix_of_the_alias_are_found(settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "locks": {**settings.CACHES["locks"], "KEY_PREFIX": "{site}"}}
    ((message),) = check()
    assert message.id == "django_redislock.E004"
    assert "'{site}'" in message.msg


@pytest.mark.parametrize("path", ["nowhere.to.be.found", "tests.settings.SECRET_KEY", "plain"])
def test_an_answer_to_conflicts_that_cannot_be_called_is_found(path: str, settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "locks", "VIEW_ON_CONFLICT": path}
    assert ids() == ["E005"]


def test_an_answer_to_conflicts_that_can_be_called_passes(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "locks", "VIEW_ON_CONFLICT": "django.http.HttpResponse"}
    assert ids() == []


def test_a_max_hold_below_a_ttl_is_found(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "locks", "MAX_HOLD": 60, "TTL": 60, "TTLS": {"report:*": 600}}
    ((message),) = check()
    assert message.id == "django_redislock.W002"
    assert "(60 s) is shorter than REDISLOCK['TTLS']['report:*'] (600 s)" in message.msg


def test_a_ttl_too_short_to_be_renewed_in_time_is_found(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "locks", "TTL": 0.6, "TTLS": {"a": 1, "b": 0.5}}
    assert ids() == ["W003", "W003"]
    assert "renewed every 0.2 s" in check()[0].msg
    settings.REDISLOCK = {**settings.REDISLOCK, "AUTO_RENEW": False}
    assert ids() == []


# -- a cache beside the locks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [BACKEND, DJANGOS])
def test_a_cache_in_the_same_database_is_told(backend: str, settings: Any, server: RedisServer) -> None:
    pages = {"BACKEND": backend, "LOCATION": f"redis://localhost:{server.port}/5", "KEY_PREFIX": "pages"}
    settings.CACHES = {**settings.CACHES, "pages": pages}
    ((message),) = check()
    assert message.id == "django_redislock.I001"
    assert "the cache 'pages'" in message.msg
    settings.CACHES = {**settings.CACHES, "pages": {**pages, "LOCATION": f"redis://localhost:{server.port}/6"}}
    assert ids() == []


def test_locks_in_the_default_cache_are_told_as_that_one_is_cleared_by_cache_clear(settings: Any) -> None:
    settings.REDISLOCK = {}
    assert ids() == ["I001"]


def test_the_same_unix_socket_is_the_same_server(settings: Any, server: RedisServer) -> None:
    url = f"unix://{server.socket}?db=5"
    settings.CACHES = {
        "default": {"BACKEND": BACKEND, "LOCATION": url},
        "locks": {"BACKEND": DJANGOS, "LOCATION": url},
    }
    assert ids() == ["I001"]


def test_the_same_service_of_a_sentinel_is_the_same_server(settings: Any) -> None:
    sentinel = {
        "BACKEND": BACKEND,
        "LOCATION": "redis://main/0",
        "OPTIONS": {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
            "SENTINELS": [("127.0.0.1", 1)],
        },
    }
    settings.CACHES = {"default": sentinel, "locks": sentinel}
    settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.SentinelConnectionFactory"
    assert ids() == ["I001"]


def test_a_cache_that_cannot_be_used_is_somebody_elses_business(settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "broken": {**settings.CACHES["locks"], "LOCATION": "carrier-pigeon://"}}
    assert ids() == []


# -- the server -------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(settings: Any) -> Iterator[RedisServer]:
    """A server of this test alone, behind the alias of the locks."""
    with redis_server() as running:
        use(settings, running.url)
        yield running


def use(settings: Any, url: str) -> None:
    settings.CACHES = {**settings.CACHES, "locks": {"BACKEND": BACKEND, "LOCATION": url}}


@pytest.fixture
def pretender(settings: Any) -> Iterator[Callable[..., None]]:
    """A server that answers to each INFO like this, and like Redis to what else the check asks."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def pretend(info: bytes | None) -> None:
            use(settings, f"redis://127.0.0.1:{listening.getsockname()[1]}/0")

            def serve() -> None:
                connection, _ = listening.accept()
                with connection:
                    while data := connection.recv(65536):
                        if info is None:
                            continue
                        for command in re.findall(rb"(?:\A|(?<=\n))\*\d+\r\n\$\d+\r\n(\w+)", data):
                            text = {b"INFO": b"$%d\r\n%s\r\n" % (len(info), info), b"EVAL": b":0\r\n"}
                            connection.sendall(text.get(command, b"+OK\r\n"))

            threading.Thread(target=serve, daemon=True).start()

        yield pretend


def test_without_deploy_nobody_asks_the_server(settings: Any) -> None:
    use(settings, "redis://127.0.0.1:1/0")
    assert ids() == []


def test_a_server_out_of_reach_is_no_more_than_a_warning(settings: Any) -> None:
    use(settings, "redis://127.0.0.1:1/0")
    ((message),) = check(deploy=True)
    assert message.id == "django_redislock.W004"
    assert "refused" in message.msg


def test_a_server_that_does_not_answer_is_given_up_soon(
    pretender: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deploychecks.PATIENCE <= 2
    monkeypatch.setattr(deploychecks, "PATIENCE", 0.2)
    pretender(None)
    begin = monotonic()
    assert ids(deploy=True) == ["W004"]
    assert monotonic() - begin < 10


def test_checks_start_no_threads_and_leave_no_connection(
    own: RedisServer, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    with own.client() as client:
        eventually(lambda: len(client.client_list()) == 1)  # whoever started the server has left
        threads = threading.active_count()
        assert ids(deploy=True) == []
        assert threading.active_count() == threads
        eventually(lambda: len(client.client_list()) == 1)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_found(policy: str, own: RedisServer) -> None:
    with own.client() as client:
        client.config_set("maxmemory-policy", policy)
        ((message),) = check(deploy=True)
        assert message.id == "django_redislock.W005"
        assert f"as soon as it has a limit of memory (maxmemory-policy {policy})" in message.msg
        client.config_set("maxmemory", "100mb")
        assert "when its memory is full" in check(deploy=True)[0].msg
        client.config_set("maxmemory-policy", "noeviction")
    assert ids(deploy=True) == []


@pytest.mark.parametrize(("version", "expected"), [("6.0.16", ["E006"]), ("5.0.14", ["E006"]), ("6.2.0", []), ("", [])])
def test_a_server_that_is_too_old_is_found(version: str, expected: list[str], pretender: Callable[..., None]) -> None:
    pretender(f"# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\n".encode())
    assert ids(deploy=True) == expected


def acl(client: redis.Redis, *rights: str) -> None:
    client.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "~*", *rights)


@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        (["+@all", "resetchannels"], ["W006"]),
        (["+@all", "resetchannels", "&redislock*"], []),
        (["+@all", "&*", "-subscribe"], ["W006"]),
        (["+@all", "&*", "-info"], ["W004"]),
    ],
)
def test_missing_rights_are_found(rights: list[str], expected: list[str], own: RedisServer, settings: Any) -> None:
    with own.client() as client:
        acl(client, *rights)
    use(settings, f"redis://narrow:secret@127.0.0.1:{own.port}/0")
    assert ids(deploy=True) == expected


def test_where_all_locks_poll_nobody_needs_rights_to_channels(own: RedisServer, settings: Any) -> None:
    with own.client() as client:
        acl(client, "+@all", "resetchannels", "-subscribe")
    use(settings, f"redis://narrow:secret@127.0.0.1:{own.port}/0")
    assert ids(deploy=True) == ["W006"]
    settings.REDISLOCK = {**settings.REDISLOCK, "WAIT": "poll"}
    assert ids(deploy=True) == []


def test_the_hint_to_missing_rights_helps(own: RedisServer, settings: Any) -> None:
    with own.client() as client:
        acl(client, "+info", "resetchannels")
        use(settings, f"redis://narrow:secret@127.0.0.1:{own.port}/0")
        ((message),) = check(deploy=True)
        acl(client, "+info", "resetchannels", *(message.hint or "").rpartition("... ")[2].split())
    assert ids(deploy=True) == []


# -- all of them ------------------------------------------------------------------------------------------------------


def test_every_check_has_an_id_of_its_own_and_stands_in_the_readme() -> None:
    source = "".join((SOURCE / name).read_text("utf-8") for name in ("checks.py", "deploychecks.py"))
    used = re.findall(r'id="django_redislock\.([EWI]\d{3})"', source)
    assert len(used) == source.count("id=") == len(set(used))
    listed = re.findall(r"^``([EWI]\d{3})`` ", README.read_text("utf-8"), re.M)
    assert sorted(listed) == sorted(used)
