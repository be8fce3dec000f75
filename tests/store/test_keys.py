"""The Redis keys of locks, of pools and of their members."""

from __future__ import annotations

import pytest

from django_redislock.store.keys import make_keys, redis_type

NAMES = ["a", "{b}", "}{", "a{", "pool:accounts:alice", "pool:accounts:"]


@pytest.mark.parametrize("name", NAMES)
def test_all_keys_share_one_hash_tag_whatever_the_name(name: str) -> None:
    for key in make_keys("site:redislock{0}:", name).all:
        assert key[key.index("{") + 1 : key.index("}")] == "0"


def test_locks_share_the_index_and_the_fence_and_nothing_else() -> None:
    one, other = make_keys("p{0}:", "a"), make_keys("p{0}:", "b")
    assert one.all == ("p{0}:lock:a", "p{0}:queue:a", "p{0}:waiters:a", "p{0}:index", "p{0}:fence")
    assert set(one.all) & set(other.all) == {"p{0}:index", "p{0}:fence"}
    assert (one.stored, one.lock, one.queue, one.member, one.any) == ("key", "p{0}:lock:a", "p{0}:queue:a", None, False)


def test_a_member_is_a_field_of_the_keys_of_its_pool_and_has_a_queue_of_its_own() -> None:
    alice, bob = make_keys("p{0}:", "pool:accounts:alice"), make_keys("p{0}:", "pool:accounts:bob")
    assert alice.lock == bob.lock == "p{0}:held:pool:accounts:"
    assert (alice.stored, alice.member, alice.any) == ("member", "alice", False)
    assert set(alice.all) - set(bob.all) == {"p{0}:queue:pool:accounts:alice", "p{0}:waiters:pool:accounts:alice"}
    assert alice.line == bob.line == "p{0}:queue:pool:accounts:"


def test_a_request_for_any_member_touches_none_of_the_members_queues() -> None:
    alice, wanted = make_keys("p{0}:", "pool:accounts:alice"), make_keys("p{0}:", "pool:accounts:")
    assert (wanted.any, wanted.line) == (True, alice.line)
    assert set(alice.all) - set(wanted.all) == {alice.queue, "p{0}:waiters:pool:accounts:alice"}
    assert set(wanted.all) < set(alice.all)


def test_a_pool_whose_name_is_a_members_shares_no_key_with_it() -> None:
    member, pool = make_keys("p{0}:", "pool:a:b"), make_keys("p{0}:", "pool:a%3Ab:")
    assert set(member.all) & set(pool.all) == {"p{0}:index", "p{0}:fence"}


@pytest.mark.parametrize(
    ("key", "kind"),
    [("lock:queue:a", "string"), ("queue:a", "zset"), ("waiters:a", "hash"), ("index", "zset"), ("fence", "string")],
)
def test_the_type_that_a_key_should_have_is_known_by_its_first_word(key: str, kind: str) -> None:
    assert redis_type(f"p{{0}}:{key}", "p{0}:") == kind
