"""How those who ask for a lock are described to people."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from django_redislock import Lock
from django_redislock.owner import MAX_BYTES, describe_owner

HERE = f"{socket.gethostname()}:{os.getpid()}:{threading.current_thread().name}"


def test_an_owner_is_host_process_thread_and_purpose() -> None:
    assert describe_owner("/orders/42") == f"{HERE} /orders/42"


def test_an_owner_without_a_purpose_ends_with_its_thread() -> None:
    assert describe_owner("") == HERE


def test_letters_of_any_language_stay_in_a_purpose() -> None:
    assert describe_owner("/straße/注文") == f"{HERE} /straße/注文"


@pytest.mark.parametrize("hostile", ["\n", "\r", "\x1b", "\0", "\u202e", "\u2028"], ids=repr)
def test_what_could_deceive_a_terminal_is_replaced(hostile: str) -> None:
    assert describe_owner(f"/a{hostile}b") == f"{HERE} /a?b"


def test_half_a_character_is_replaced() -> None:
    assert describe_owner("/a\ud800b") == f"{HERE} /a?b"


@pytest.mark.parametrize("long", ["a" * 500, "ß" * 500, "x" + "注" * 500, "😀" * 500], ids=lambda long: long[:2])
def test_a_long_owner_is_cut_at_a_whole_character(long: str) -> None:
    owner = describe_owner(long)
    assert f"{HERE} {long}".startswith(owner)
    assert MAX_BYTES - 3 <= len(owner.encode()) <= MAX_BYTES


def test_a_hostile_purpose_is_harmless_in_redis() -> None:
    lock = Lock("a")
    lock.purpose = "/a b\n\ud800" + "ß" * 300
    lock.acquire()
    info = lock.info()
    assert info is not None
    assert info.owner.startswith(f"{HERE} /a b??ß")
    assert lock.extend(1)
    lock.release()
