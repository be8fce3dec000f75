"""Answers of Redis as values and errors."""

from __future__ import annotations

import pytest
from redis.exceptions import MovedError, ResponseError

from django_redislock.store.wire import CLUSTER_ERRORS, classified, wording


@pytest.mark.parametrize("word", CLUSTER_ERRORS)
def test_errors_of_a_cluster_have_their_own_classes(word: str) -> None:
    """redis-py 5 leaves these to the parser of its own cluster client."""
    error = classified(ResponseError(f"{word} 7 127.0.0.1:6379"))
    assert type(error) is CLUSTER_ERRORS[word]
    assert wording(error) == f"{word} 7 127.0.0.1:6379"
    assert classified(error) is error


def test_a_redirection_names_its_node() -> None:
    error = classified(ResponseError("MOVED 7 127.0.0.1:6379"))
    assert isinstance(error, MovedError)
    assert (error.slot_id, error.host, error.port) == (7, "127.0.0.1", 6379)


def test_other_errors_keep_their_class() -> None:
    error = ResponseError("OOM command not allowed")
    assert classified(error) is error
    assert wording(error) == "OOM command not allowed"
