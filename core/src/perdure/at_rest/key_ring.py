"""The keys of an encrypted store: one to write with, and any number to read with."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Final

from perdure.errors import InvalidArgumentError

KEY_SIZE: Final = 32
ID_SIZE: Final = 8

_BETWEEN: Final = re.compile(r"[\s,]+")
_WAY: Final = "Make one with: python -c 'from perdure.at_rest import KeyRing; print(KeyRing.new_key())'"


class KeyRing:
    """Keys of 256 bits. The first one encrypts what is written; all of them read.

    A key is told by an id of 64 bits that is derived from it, stands in the clear beside everything that was encrypted
    with it, and tells nothing of it. No message and no `repr` shows a key.

    Attributes:
        ids: The ids of the keys, in hexadecimal digits, in their order.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Take one key or more, each 32 bytes drawn at random, such as `secrets.token_bytes(32)`; never a password."""
        if not isinstance(keys, (list, tuple)) or not keys:
            raise InvalidArgumentError("keys", "must be a list of one key or more")
        if any(type(key) is not bytes or len(key) != KEY_SIZE for key in keys):
            raise InvalidArgumentError("keys", f"must be {KEY_SIZE} random bytes each. {_WAY}")
        self._keys = {_id_of(key): key for key in keys}
        if len(self._keys) != len(keys):
            raise InvalidArgumentError("keys", "must not have a key twice")
        self.ids = tuple(known.hex() for known in self._keys)
        self.writing = next(iter(self._keys))
        """The id of the key that encrypts, as bytes."""

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """Make a ring of keys in base64, separated by spaces, newlines or commas; the first one writes."""
        if not isinstance(text, str):
            raise InvalidArgumentError("keys", f"must be text, not a {type(text).__name__}")
        keys: list[bytes] = []
        for number, word in enumerate(filter(None, _BETWEEN.split(text)), 1):
            try:
                key = base64.b64decode(word, altchars=b"-_" if re.search("[-_]", word) else None, validate=True)
            except (binascii.Error, ValueError):
                key = b""
            if len(key) != KEY_SIZE:
                raise InvalidArgumentError("keys", f"must be {KEY_SIZE} bytes in base64; key {number} is not. {_WAY}")
            keys.append(key)
        return cls(keys)

    @staticmethod
    def new_key() -> str:
        """Return a new random key in base64."""
        return base64.b64encode(secrets.token_bytes(KEY_SIZE)).decode("ascii")

    def derive(self, key_id: bytes, purpose: bytes) -> bytes | None:
        """Return the key of 256 bits that a key of the ring gives for a purpose; `None` if the ring has no such key."""
        key = self._keys.get(key_id)
        return None if key is None else _expand(key, b"data " + purpose)

    def __repr__(self) -> str:
        return f"<KeyRing {', '.join(self.ids)}>"


def _id_of(key: bytes) -> bytes:
    return _expand(key, b"id")[:ID_SIZE]


def _expand(key: bytes, info: bytes) -> bytes:
    """Return the first block of HKDF-Expand with SHA-256 (RFC 5869, 2.3); a random key needs no extraction (3.3)."""
    return hmac.digest(key, b"perdure at rest 1 " + info + b"\x01", hashlib.sha256)
