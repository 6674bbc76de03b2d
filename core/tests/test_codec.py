"""The codec: what is decoded equals what was encoded, in value and type, or it is refused with its place."""

from __future__ import annotations

import json
import math
import sys
import tracemalloc
from collections import OrderedDict, defaultdict, deque
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import codec
from perdure.contracts.records import decode_object
from perdure.errors import NotJsonError, StoreCorruptedError

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**60, max_value=2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.text(st.characters(categories=["Cs", "Cc", "Lu"]))
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def same(one: Any, other: Any) -> bool:
    """Equal in value and in type, keys in the same order, floats bit for bit."""
    if type(one) is not type(other):
        return False
    if type(one) is dict:
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if type(one) is list:
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) is float:
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


def kind_of(value: Any) -> str:
    """The id of a case: the same in every process, and no long one."""
    return type(value).__name__


@given(VALUES)
def test_round_trip(value: Any) -> None:
    try:
        data = codec.encode(value)
    except NotJsonError as error:
        if "surrogate pair" not in str(error):
            raise
        return
    assert b"\n" not in data
    assert same(codec.decode(data), value)


@pytest.mark.parametrize(
    "value",
    [
        *(2**63, 2**64, -(2**63) - 1, 10**400, 10**5000, -(10**5000)),
        *(True, 1, 1.0, 0, -0.0, 0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e22, 1e23),
        *("", "\0", "\ud800", "\udfff", "ok \ud800 end", "cut \ud83d", "\u2028\u2029", "\x7f", "😀", "\ufffe"),
        *({}, [], {"": {}}, [[]], {"a": None}, {"\ud800": 1}, {"\0": 1}),
        {"b": 1, "a": 2},
        {"big": [2**64, {"x": "\ud800", "y": -0.0, "z": True, "e": {}, "l": []}]},
    ],
    ids=kind_of,
)
def test_exactly(value: Any) -> None:
    assert same(codec.decode(codec.encode(value)), value)


class Colour(Enum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Pair(NamedTuple):
    a: int


class Text(str):
    __slots__ = ()


REFUSED: list[Any] = [
    *(float("nan"), float("inf"), -float("inf"), b"x", bytearray(b"x"), memoryview(b"x"), {1}, frozenset(), (1,)),
    *(Decimal("1.10"), Fraction(1, 3), UUID(int=0), datetime(2031, 1, 1, tzinfo=UTC), timedelta(0), 1j, range(3)),
    *(Colour.RED, Number.ONE, Pair(1), Text("x"), OrderedDict(a=1), defaultdict(list), deque([1]), PurePosixPath("a")),
    *({1: "a"}, {(1, 2): 3}, {None: 1}, {True: 1}, {Text("a"): 1}, object(), "\ud83d\ude00"),
]


@pytest.mark.parametrize("value", REFUSED, ids=kind_of)
def test_refused_with_its_place_and_without_its_value(value: Any) -> None:
    with pytest.raises(NotJsonError) as caught:
        codec.encode({"a": [0, {"b c": value}]}, "records[2]")
    assert caught.value.where == "records[2].a[1]['b c']"
    assert "Decimal('1.10')" not in str(caught.value)


def nested(depth: int, innermost: type = dict) -> Any:
    value: Any = 1
    for level in range(depth) if innermost is dict else range(1, depth + 1):
        value = [value] if level % 2 else {"x": value}
    return value


@pytest.mark.parametrize("innermost", [dict, list])
def test_depth(innermost: type) -> None:
    deepest = nested(codec.MAX_DEPTH, innermost)
    assert same(codec.decode(codec.encode(deepest)), deepest)
    for depth in (codec.MAX_DEPTH + 1, 1_000):
        with pytest.raises(NotJsonError, match="nested deeper"):
            codec.encode(nested(depth, innermost))


def test_cycles() -> None:
    cycle: dict[str, Any] = {}
    cycle["self"] = [cycle]
    with pytest.raises(NotJsonError, match="cycle"):
        codec.encode(cycle)


def test_what_orjson_cannot_write_is_refused_inside_a_value_that_it_cannot_write() -> None:
    with pytest.raises(NotJsonError, match="bytes"):
        codec.encode([2**70, b"x"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nul",
        b"NaN",
        b"Infinity",
        b"[1,]",
        b"'a'",
        b"\xff",
        b'{"a":1}x',
        b"\xef\xbb\xbf[]",
        "[]".encode("utf-16"),
    ],
)
def test_what_is_not_json_is_not_decoded(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # reason: msgspec and the standard library word it differently
        codec.decode(data)


@pytest.mark.parametrize("opening", ["[", '{"a":', '["\\ud800",'])
def test_what_is_nested_too_deep_to_be_read_is_not_decoded(opening: str) -> None:
    deep = opening.encode() * 100_000
    with pytest.raises(ValueError, match="nested deeper than can be read"):
        codec.decode(deep)
    with pytest.raises(StoreCorruptedError, match="session s: state is damaged: the stored bytes are not JSON"):
        decode_object(deep, "session s: state")


def test_decoded_values_are_new_each_time() -> None:
    data = codec.encode({"a": []})
    codec.decode(data)["a"].append(1)
    assert codec.decode(data) == {"a": []}


def test_what_others_wrote_is_read() -> None:
    written = json.dumps({"n": 10**30, "s": "😀"}, indent=1)
    assert codec.decode(written.encode()) == {"n": 10**30, "s": "😀"}


def test_a_copy_is_equal_and_shares_nothing_that_can_change() -> None:
    value: dict[str, Any] = {"a": [1, {"b": [None, "c"]}, []], "d": {}, "e": 1.5}
    found = codec.copied(value)
    assert found == value
    found["a"][1]["b"].append(2)
    found["d"]["new"] = True
    assert value == {"a": [1, {"b": [None, "c"]}, []], "d": {}, "e": 1.5}


@pytest.mark.parametrize("length", [1 << 10, 1 << 14, 1 << 17])
def test_what_is_encoded_takes_no_more_memory_than_its_length(length: int) -> None:
    value = {"text": "x" * length}
    tracemalloc.start()
    try:
        kept = [codec.encode(value) for _ in range(20)]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 1.2 * sum(map(sys.getsizeof, kept))
