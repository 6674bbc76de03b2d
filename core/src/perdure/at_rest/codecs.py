"""What a codec is, and several of them in a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from perdure import codec as json_codec
from perdure.errors import InvalidArgumentError


class Location(NamedTuple):
    """Where a piece of data belongs, and with what it belongs together.

    Attributes:
        namespace: The tenant.
        part: Which of the three stores.
        id: The key within it.
        sequence: The index of an item in its list, from 0; `None`: the head.
        group: Of a head, the group beside it.
        status: Of a head, the status beside it.
    """

    namespace: str
    part: str
    id: str
    sequence: int | None
    group: str | None = None
    status: str | None = None

    def encoded(self) -> bytes:
        """Return bytes that no other location has."""
        return json_codec.encode([*self], "location")

    def __str__(self) -> str:
        what = "its head" if self.sequence is None else f"item {self.sequence}"
        return f"{self.part} {self.id} in namespace {self.namespace}: {what}"


class Codec(ABC):
    """Turns data into what is stored, and back.

    It is called from several threads at once, and must give back exactly what it was given. What it makes begins with
    `perdure.contracts.records.ENVELOPE`, or is the data itself.
    """

    hides: bool = False
    """Whether what it makes looks random: whatever comes after it finds nothing to compress."""

    @abstractmethod
    def encode(self, data: bytes, location: Location) -> bytes:
        """Return what is stored for data at a location.

        Raises:
            RecordTooLargeError: The codec does not take so much. Nothing was written.
        """

    @abstractmethod
    def decode(self, stored: bytes, location: Location) -> bytes:
        """Return the data of what is stored at a location.

        Raises:
            CodecError: Another codec or another key is needed.
            StoreCorruptedError: It is not what was stored there.
        """

    def is_current(self, stored: bytes) -> bool:
        """Whether what is stored is in the form, and by the key, that `encode` uses now."""
        return True


class Codecs(Codec):
    """Several codecs, in the order in which they work on what is written."""

    def __init__(self, codecs: Sequence[Codec]) -> None:
        """Take the codecs, one or more; those that hide come last."""
        self._codecs = tuple(codecs)
        if not self._codecs or not all(isinstance(one, Codec) for one in self._codecs):
            raise InvalidArgumentError("codec", "must be a codec, or a list of one or more")
        if any(one.hides for one in self._codecs[:-1]):
            raise InvalidArgumentError("codec", "must compress before it encrypts: what is encrypted looks random")
        self.hides = self._codecs[-1].hides

    def encode(self, data: bytes, location: Location) -> bytes:
        """Encode by each, the first one first."""
        for one in self._codecs:
            data = one.encode(data, location)
        return data

    def decode(self, stored: bytes, location: Location) -> bytes:
        """Decode by each, the last one first."""
        for one in reversed(self._codecs):
            stored = one.decode(stored, location)
        return stored

    def is_current(self, stored: bytes) -> bool:
        """Ask the last one, since only what it made can be seen."""
        return self._codecs[-1].is_current(stored)


AnyCodec: TypeAlias = "Codec | Sequence[Codec]"
"""What `codec=` takes."""


def one_codec(given: Any) -> Codec:
    """Return what was given as one codec, or raise `InvalidArgumentError`."""
    if isinstance(given, Codec):
        return given
    return Codecs(given if isinstance(given, (list, tuple)) else ())
