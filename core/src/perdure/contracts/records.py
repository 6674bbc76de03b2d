"""Settling arguments: records become bytes, times become UTC, bad values become typed errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from perdure import codec
from perdure.errors import (
    CodecMissingError,
    InvalidArgumentError,
    NotJsonError,
    RecordTooLargeError,
    StoreCorruptedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")
Record: TypeAlias = dict[str, Any]
"""A JSON object."""

MAX_RECORD = 64 * 1024 * 1024
"""The default limit of one encoded record, in bytes."""

ENVELOPE = b"\xf5P"
"""How everything begins that a codec made of JSON. The first byte never occurs in UTF-8, so no JSON begins so."""

MAX_SCOPE = 512
"""The longest scope or agent name, in bytes of UTF-8."""

MAX_VERSION = 2**62
LAST_VERSION = 2**63 - 1
LONGEST = timedelta(days=36_500)
MAX_CURSOR = 4096
ORDERS = ("id", "created", "recent")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a listing.

    Attributes:
        items: What is on the page; may be fewer than asked for, also when more pages follow.
        cursor: Opaque text that continues the listing; `None` at its end.
    """

    items: tuple[T, ...]
    cursor: str | None = None


class DecodableItems(Sequence[bytes]):
    """Encoded items that a backend decodes faster together than one by one; its items may be such a sequence."""

    @abstractmethod
    def decoded(self) -> Iterator[Record | bytes]:
        """Decode the items in their order.

        Returns:
            For each item the object that it is, new at each call; its bytes where it is none, or is to be decoded by
            itself. Bytes are let go once they are decoded, if nobody has this object any more.
        """


def encode_records(records: object, name: str, max_record: int) -> tuple[bytes, ...]:
    """Take the snapshot of a list of records, or raise with the place of the first offender."""
    if not isinstance(records, (list, tuple)):
        raise NotJsonError(name, f"a {type(records).__name__}, where a list of records is needed")
    items: list[bytes] = []
    for record in records:
        items.append(encode_object(record, (name, len(items)), max_record))
    return tuple(items)


def encode_object(value: object, where: codec.Place, max_record: int) -> bytes:
    """Encode one JSON object of limited size."""
    if type(value) is not dict:
        kind = type(value).__name__
        raise NotJsonError(codec.words(where), f"a value of type {kind}, where an object (dict) is needed")
    data = codec.encode(value, where)
    if len(data) > max_record:
        raise RecordTooLargeError(codec.words(where), len(data), max_record)
    return data


def decode_records(items: Sequence[bytes], where: str, start: int = 0) -> tuple[Record, ...]:
    """Decode stored records; damage names its place."""
    return take_records([*items], where, start)


def taken(items: Sequence[bytes]) -> list[bytes] | Iterator[Record | bytes]:
    """Return items as `take_records` takes them."""
    return items.decoded() if isinstance(items, DecodableItems) else [*items]


def take_records(items: list[bytes] | Iterator[Record | bytes], where: str, start: int = 0) -> tuple[Record, ...]:
    """Decode stored records, and take each off the list, so that bytes and what they become are not in memory together."""
    if not isinstance(items, list):
        return tuple(
            [decode_object(one, (where, at)) if isinstance(one, bytes) else one for at, one in enumerate(items, start)]
        )
    items.reverse()
    records: list[Record] = []
    while items:
        records.append(decode_object(items.pop(), (where, start + len(records))))
    return tuple(records)


def decode_object(data: bytes, where: codec.Place) -> Record:
    """Decode one stored object, or raise `StoreCorruptedError`; `CodecMissingError` if a codec has to read it first."""
    try:
        value = codec.decode(data)
    except ValueError as error:
        if data.startswith(ENVELOPE):
            raise CodecMissingError(codec.words(where)) from None
        raise StoreCorruptedError(codec.words(where), "the stored bytes are not JSON") from error
    if type(value) is not dict:
        kind = type(value).__name__
        raise StoreCorruptedError(codec.words(where), f"a stored {kind}, where an object is needed")
    return value


def check_time(value: object, name: str) -> datetime:
    """Return an aware instant in UTC."""
    if not isinstance(value, datetime):
        raise InvalidArgumentError(name, f"must be an aware datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidArgumentError(name, "is a naive datetime; give it a time zone")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidArgumentError(name, "is outside the years 1 to 9999 in UTC") from None


def check_optional_time(value: object, name: str) -> datetime | None:
    """Return an aware instant in UTC, or `None`."""
    return None if value is None else check_time(value, name)


def check_optional_duration(value: object, name: str) -> timedelta | None:
    """Return a duration that is kept to the microsecond, 0 or more, or `None`."""
    if value is not None and not isinstance(value, timedelta):
        raise InvalidArgumentError(name, f"must be a timedelta, not {type(value).__name__}")
    if value is not None and not timedelta(0) <= value <= LONGEST:
        raise InvalidArgumentError(name, f"must be from 0 to {LONGEST.days} days")
    return value


def check_count(value: object, name: str) -> int:
    """Return a whole number of 0 or more."""
    if type(value) is not int:
        raise InvalidArgumentError(name, f"must be a whole number, not {type(value).__name__}")
    if value < 0:
        raise InvalidArgumentError(name, "must not be negative")
    return value


def check_optional_place(value: object, name: str) -> int | None:
    """Return a whole number of 0 or more that counts what is stored, or `None`."""
    return None if value is None else check_place(value, name)


def check_limit(value: object) -> int:
    """Return how many a page may have: a whole number of 0 or more."""
    return check_place(value, "limit")


def check_place(value: object, name: str) -> int:
    """Return a whole number of 0 or more that counts what is stored. One beyond all stores is as good as the largest."""
    return min(check_count(value, name), MAX_VERSION)


def check_expected(value: object) -> int | None:
    """Return an expected version: 0 (absent), a version, or `None` (whatever it is)."""
    if value is None or (type(value) is int and 0 <= value <= LAST_VERSION):
        return value
    check_count(value, "expected_version")
    raise InvalidArgumentError("expected_version", f"must be at most {LAST_VERSION}, the last version there can be")


def check_first_version(value: object, expected_version: int | None) -> int:
    """Return the version that a new key shall start at."""
    version = check_count(value, "version")
    if not 1 <= version <= MAX_VERSION:
        raise InvalidArgumentError("version", f"must be from 1 to {MAX_VERSION}")
    if expected_version != 0:
        raise InvalidArgumentError("version", "goes with expected_version=0 only: it is the first version of a new key")
    return version


def check_text(value: object, name: str, max_bytes: int = MAX_SCOPE) -> str:
    """Return a text that every backend can keep and compare: Unicode without lone surrogates, of limited length."""
    if type(value) is not str:
        raise InvalidArgumentError(name, f"must be a str, not {type(value).__name__}")
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidArgumentError(name, "contains a lone surrogate") from None
    if size > max_bytes:
        raise InvalidArgumentError(name, f"is {size} bytes long, and the limit is {max_bytes}")
    return value


def check_optional_text(value: object, name: str, max_bytes: int = MAX_SCOPE) -> str | None:
    """Return a text, or `None`."""
    return None if value is None else check_text(value, name, max_bytes)


def check_order(value: object) -> str:
    """Return one of the orders of a listing."""
    if value not in ORDERS:
        raise InvalidArgumentError("order", f"must be one of {', '.join(ORDERS)}")
    return str(value)
