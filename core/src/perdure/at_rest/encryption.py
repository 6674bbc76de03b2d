"""AES-256-GCM, bound to the place where the data stands.

What is stored: ENVELOPE "E" 1 | id of the key, 8 bytes | nonce, 12 bytes | ciphertext | tag, 16 bytes.

Each journal (namespace, part and id) has a key of its own, derived from that of the ring; the nonce is drawn at random.
So the limit of GCM with random nonces, 2^32 encryptions by one key (NIST SP 800-38D, 8.3), holds for one
conversation, which never comes near it, and not for the store, which might.
"""

from __future__ import annotations

import os
import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from perdure import codec as json_codec
from perdure.at_rest.codecs import Codec, Location
from perdure.at_rest.key_ring import ID_SIZE, KeyRing
from perdure.contracts.records import ENVELOPE
from perdure.errors import (
    CodecLibraryError,
    InvalidArgumentError,
    NotEncryptedError,
    StoreCorruptedError,
    WrongKeyError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MARK: Final = ENVELOPE + b"E\x01"
NONCE_SIZE: Final = 12
TAG_SIZE: Final = 16
VARIABLE: Final = "PERDURE_KEYS"

_HEADER: Final = len(MARK) + ID_SIZE
_SMALLEST: Final = _HEADER + NONCE_SIZE + TAG_SIZE
_CIPHERS_KEPT: Final = 1024


class Encryption(Codec):
    """Encrypts and authenticates: what was changed, swapped, cut or moved to another place is refused when it is read.

    It needs the library cryptography: `pip install 'perdure[encrypt]'`.
    """

    hides = True

    def __init__(self, keys: KeyRing, *, accept_plaintext: bool = False) -> None:
        """Take the keys.

        Args:
            keys: The first one encrypts, all of them decrypt.
            accept_plaintext: Read what is not encrypted too, for the time in which a store that was in use before is
                re-encrypted. Whoever can write to the store can then put in what they like.
        """
        if not isinstance(keys, KeyRing):
            raise InvalidArgumentError("keys", f"must be a KeyRing, not a {type(keys).__name__}")
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise CodecLibraryError("cryptography", "encrypt") from error
        self._keys = keys
        self._accept_plaintext = accept_plaintext
        self._invalid: type[Exception] = InvalidTag

        def cipher(key_id: bytes, namespace: str, part: str, id: str) -> AESGCM | None:
            key = keys.derive(key_id, json_codec.encode([namespace, part, id], "place"))
            return None if key is None else AESGCM(key)

        self._cipher: Callable[[bytes, str, str, str], Any] = lru_cache(_CIPHERS_KEPT)(cipher)

    def encode(self, data: bytes, location: Location) -> bytes:
        """Encrypt by the first key."""
        header = MARK + self._keys.writing
        nonce = secrets.token_bytes(NONCE_SIZE)
        sealed: bytes = self._cipher(self._keys.writing, *location[:3]).encrypt(
            nonce, data, header + location.encoded()
        )
        return header + nonce + sealed

    def decode(self, stored: bytes, location: Location) -> bytes:
        """Decrypt what was encrypted by any of the keys, at this location."""
        if not stored.startswith(MARK):
            return self._plain(stored, location)
        if len(stored) < _SMALLEST:
            raise StoreCorruptedError(str(location), "the encrypted data is cut short")
        header, nonce, sealed = stored[:_HEADER], stored[_HEADER : _HEADER + NONCE_SIZE], stored[_HEADER + NONCE_SIZE :]
        key_id = header[len(MARK) :]
        cipher = self._cipher(key_id, *location[:3])
        if cipher is None:
            raise WrongKeyError(str(location), key_id.hex(), self._keys.ids)
        try:
            data: bytes = cipher.decrypt(nonce, sealed, header + location.encoded())
        except self._invalid:
            problem = "the encrypted data was changed, or was written for another place"
            raise StoreCorruptedError(str(location), problem) from None
        return data

    def is_current(self, stored: bytes) -> bool:
        """Whether it was encrypted by the first key."""
        return stored.startswith(MARK + self._keys.writing)

    def _plain(self, stored: bytes, location: Location) -> bytes:
        if self._accept_plaintext:
            return stored
        raise NotEncryptedError(str(location))


def encryption_from_environment() -> Encryption:
    """Return the encryption by the keys in the environment variable `PERDURE_KEYS`, as `KeyRing.parse` reads them."""
    text = os.environ.get(VARIABLE)
    if text is None:
        raise InvalidArgumentError(VARIABLE, "is not set: it has the keys in base64, the one that writes first")
    return Encryption(KeyRing.parse(text))
