"""Plain stored objects: dataclasses that become JSON objects and come back, keeping fields that they do not know."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, TypeVar

from perdure.contracts.records import Record
from perdure.errors import StoreCorruptedError

T = TypeVar("T")

EXTRA = "extra"
"""The field that keeps what a newer release wrote and this one does not know."""


def to_record(value: object) -> Record:
    """Return a dataclass as a JSON object: instants in ISO 8601, durations in seconds, `None` and `extra` unfolded."""
    record: Record = {}
    known = fields(value)  # type: ignore[arg-type]  # reason: called with dataclasses only
    names = {item.name for item in known}
    for item in known:
        content = getattr(value, item.name)
        if item.name == EXTRA:
            record.update({key: kept for key, kept in content.items() if key not in names})
        elif isinstance(content, datetime):
            record[item.name] = content.isoformat()
        elif isinstance(content, timedelta):
            record[item.name] = content.total_seconds()
        elif content is not None:
            record[item.name] = content
    return record


def from_record(kind: type[T], record: Record, where: str) -> T:
    """Make a dataclass from a stored object; what it does not know goes into `extra`.

    Raises:
        StoreCorruptedError: A field is missing, or is no instant or duration.
    """
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]  # reason: called with dataclasses only
    values: dict[str, Any] = {}
    extra: Record = {}
    for name, content in record.items():
        if name not in known or name == EXTRA:
            extra[name] = content
        elif name.endswith("_at") and content is not None:
            values[name] = _instant(content, f"{where}.{name}")
        elif name == "lease" and content is not None:
            values[name] = _duration(content, f"{where}.{name}")
        else:
            values[name] = content
    try:
        return kind(**values, **{EXTRA: extra})
    except TypeError as error:
        raise StoreCorruptedError(where, str(error)) from error


def _instant(content: object, where: str) -> datetime:
    try:
        instant = datetime.fromisoformat(content)  # type: ignore[arg-type]  # reason: a wrong type is caught below
    except (TypeError, ValueError) as error:
        raise StoreCorruptedError(where, "not an instant") from error
    if instant.utcoffset() is None:
        raise StoreCorruptedError(where, "an instant without a time zone")
    return instant


def _duration(content: object, where: str) -> timedelta:
    try:
        return timedelta(seconds=content)  # type: ignore[arg-type]  # reason: a wrong type is caught below
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreCorruptedError(where, "not a duration in seconds") from error
