"""JSON as bytes, exactly: what is decoded equals what was encoded, in value and in type.

`encode` accepts only plain JSON values (`dict` with `str` keys, `list`, `str`, `int`, `float`, `bool`, `None`; no
subclasses) and refuses everything else with the place of the first offender. orjson writes; what it cannot write
exactly (lone surrogates, integers beyond 64 bits) goes through a slow path in ASCII. `decode` reads with msgspec, and
with the standard library what msgspec refuses. The result is one line without a raw newline.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import orjson

from perdure.errors import NotJsonError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH = 200
"""How deep containers may nest: a record whose innermost container is the 200th is accepted."""

_LEAVES = frozenset({str, int, bool, type(None)})
_STRICT = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_SPLIT_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_decode_fast: Callable[[bytes], Any] = msgspec.json.Decoder().decode


Place: TypeAlias = "str | tuple[Place, object]"
"""Where a value is: the name of the root, or the place of its container and its key. It is put in words only for an error."""


def words(place: Place) -> str:
    """Return a place as text, such as `records[2].message`."""
    return place if isinstance(place, str) else _child(words(place[0]), place[1])


def encode(value: object, where: Place = "value") -> bytes:
    """Encode a JSON value exactly.

    Args:
        value: The value. It is not kept.
        where: Its place in error messages, the root of the path.

    Returns:
        UTF-8 JSON on one line.

    Raises:
        NotJsonError: A part of the value is not JSON; the message names its place and type, never the value.
    """
    _check(value, where, 1)
    try:
        # A copy: orjson leaves its bytes in a buffer of up to twenty times their size, which lives as long as they do.
        return b"%b" % orjson.dumps(value, option=_STRICT)
    except (TypeError, RecursionError):
        parts: list[str] = []
        _write(value, words(where), parts)
        return "".join(parts).encode("ascii")


def decode(data: bytes) -> Any:
    """Decode what `encode` made. Each call returns new objects.

    Raises:
        ValueError: The bytes are not JSON, or nested deeper than can be read.
    """
    try:
        try:
            return _decode_fast(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            text = str(data, "utf-8", "surrogatepass")  # of bytes, json would take other encodings and a BOM, too
            return json.loads(text, parse_int=_read_int, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested deeper than can be read") from error


def copied(value: Any) -> Any:
    """Return a JSON value of which no part is shared: `copy.deepcopy` for what can only be JSON, at a tenth of its cost."""
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    if type(value) is list:
        return [copied(item) for item in value]
    return value


def _child(where: str, key: object) -> str:
    if isinstance(key, int):
        return f"{where}[{key}]"
    text = str(key)
    return f"{where}.{text}" if _PLAIN_KEY.match(text) else f"{where}[{text!r}]"


def _check(value: Any, place: Place, depth: int) -> None:
    """Refuse what is not exactly JSON. A cycle shows as a depth over the limit."""
    kind = type(value)
    if kind is dict:
        if depth > MAX_DEPTH:
            raise NotJsonError(words(place), f"nested deeper than {MAX_DEPTH} levels, or a cycle")
        for key, item in value.items():
            if type(key) is not str:
                raise NotJsonError(words(place), f"a key of type {type(key).__name__}, where only str is allowed")
            kind = type(item)
            if kind not in _LEAVES and not (kind is float and isfinite(item)):
                _check(item, (place, key), depth + 1)
    elif kind is list:
        if depth > MAX_DEPTH:
            raise NotJsonError(words(place), f"nested deeper than {MAX_DEPTH} levels, or a cycle")
        for index, item in enumerate(value):
            kind = type(item)
            if kind not in _LEAVES and not (kind is float and isfinite(item)):
                _check(item, (place, index), depth + 1)
    elif kind is float:
        if not isfinite(value):
            raise NotJsonError(words(place), "a float that is not finite")
    elif kind not in _LEAVES:
        raise NotJsonError(words(place), f"a value of type {kind.__name__}")


def _write(value: Any, where: str, parts: list[str]) -> None:
    """Write a checked value in ASCII, for what orjson refuses."""
    if value is None:
        parts.append("null")
    elif value is True:
        parts.append("true")
    elif value is False:
        parts.append("false")
    elif type(value) is str:
        parts.append(_text(value, where))
    elif type(value) is int:
        parts.append(str(Decimal(value)))
    elif type(value) is float:
        parts.append(repr(value))
    elif type(value) is dict:
        opening = "{"
        for key, item in value.items():
            parts.extend((opening, _text(key, where), ":"))
            _write(item, _child(where, key), parts)
            opening = ","
        parts.append("}" if value else "{}")
    else:
        opening = "["
        for index, item in enumerate(value):
            parts.append(opening)
            _write(item, _child(where, index), parts)
            opening = ","
        parts.append("]" if value else "[]")


def _text(value: str, where: str) -> str:
    if _SPLIT_PAIR.search(value):
        # JSON has no way to write the two halves of a pair as two characters: reading joins them.
        raise NotJsonError(where, "a surrogate pair as two characters; join it to one")
    return encode_basestring_ascii(value)


def _read_int(text: str) -> int:
    """Read an integer of any length; `int()` alone stops at the interpreter's limit of digits."""
    return int(text) if len(text) < 4000 else int(Decimal(text))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
