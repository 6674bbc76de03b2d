"""Zstandard, each item on its own.

What is stored: ENVELOPE "Z" 1 | one zstd frame that tells its size; or the data itself where that is not longer.
"""

from __future__ import annotations

from typing import Final

from perdure.at_rest.codecs import Codec, Location
from perdure.contracts.records import ENVELOPE, MAX_RECORD
from perdure.errors import (
    CodecLibraryError,
    CodecMissingError,
    InvalidArgumentError,
    RecordTooLargeError,
    StoreCorruptedError,
)

MARK: Final = ENVELOPE + b"Z\x01"
SMALLEST: Final = 256
"""Less than so many bytes are not tried."""


class Compression(Codec):
    """Compresses what becomes smaller by it, and reads what is not compressed as it is.

    It needs the library zstandard: `pip install 'perdure[zstd]'`.
    """

    def __init__(self, *, level: int = 3, max_size: int = 2 * MAX_RECORD) -> None:
        """Take the settings.

        Args:
            level: The level of zstd, 1 (fast) to 22 (small).
            max_size: How large one item may be before it is compressed, in bytes. What says that it is larger is refused
                before any memory is taken for it. Raise it with `?max_record=`.
        """
        try:
            import zstandard
        except ImportError as error:
            raise CodecLibraryError("zstandard", "zstd") from error
        if type(level) is not int or not 1 <= level <= zstandard.MAX_COMPRESSION_LEVEL:
            raise InvalidArgumentError("level", f"must be from 1 to {zstandard.MAX_COMPRESSION_LEVEL}")
        if type(max_size) is not int or max_size < 1:
            raise InvalidArgumentError("max_size", "must be a whole number of bytes, 1 or more")
        self._level, self._max_size = level, max_size
        self._zstd = zstandard

    def encode(self, data: bytes, location: Location) -> bytes:
        """Compress, if that makes it smaller."""
        if len(data) > self._max_size:
            error = RecordTooLargeError(str(location), len(data), self._max_size)
            error.hint = "Store the large part elsewhere and keep a reference, or raise Compression(max_size=...)."
            raise error
        ours = data.startswith(ENVELOPE)  # what looks as if it were ours must become ours
        if len(data) < SMALLEST and not ours:
            return data
        made = MARK + self._zstd.ZstdCompressor(level=self._level).compress(data)
        return made if ours or len(made) < len(data) else data

    def decode(self, stored: bytes, location: Location) -> bytes:
        """Decompress what was compressed, up to the limit."""
        if not stored.startswith(MARK):
            if stored.startswith(ENVELOPE):
                raise CodecMissingError(str(location))
            return stored
        frame = stored[len(MARK) :]
        try:
            # The size is looked at first: the library takes the memory that a frame asks for.
            size = self._zstd.frame_content_size(frame)
            if not 0 <= size <= self._max_size:
                raise StoreCorruptedError(str(location), self._refusal(size))
            return self._zstd.ZstdDecompressor().decompress(frame, allow_extra_data=False)
        except self._zstd.ZstdError as error:
            raise StoreCorruptedError(str(location), f"the compressed data cannot be read: {error}") from error

    def _refusal(self, size: int) -> str:
        if size < 0:
            return "the compressed data does not tell its size"
        return f"the compressed data would be {size} bytes, and Compression(max_size=...) is {self._max_size}"
