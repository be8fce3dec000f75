"""Tokens as redis-py has them, chosen by the caller, and ours, which are made for one acquisition each."""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from hashlib import sha256

from .base.display import Secret, SecretBytes

DIGEST = 22  # characters, for 128 bits


def encode_token(token: object) -> SecretBytes:
    if isinstance(token, str):
        return SecretBytes(token.encode())
    if isinstance(token, bytes):
        return SecretBytes(token)
    raise TypeError(f"A token must be a str or bytes, not {type(token).__name__}.")  # it is a secret


def make_token(given: bytes) -> Secret:
    """A token of ours for one that the caller chose: it shows whose it is, and differs each time.

    Ours identifies the holder; redis-py's only permits a release, and several acquisitions may share it.
    """
    return Secret(_digest(given) + secrets.token_urlsafe(16))


def bears(token: bytes, stored: str) -> bool:
    """Whether ``stored``, a token of ours, is ``token`` itself or was made for it."""
    return token == stored.encode() or (len(stored) == 2 * DIGEST and stored.startswith(_digest(token)))


def _digest(given: bytes) -> str:
    return urlsafe_b64encode(sha256(given).digest()).decode()[:DIGEST]
