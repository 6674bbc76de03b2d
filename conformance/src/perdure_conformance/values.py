"""JSON values that stores are known to change, by kind, and values that are not JSON."""

from __future__ import annotations

import enum
import functools
import math
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

INTEGERS: tuple[Any, ...] = (
    *(0, 1, -1, 255, 256, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1),
    *(2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 2**64 + 1, 10**20 + 1, 3**300, -(3**300)),
    *(10**4400 + 7, [2**70, -(2**70)], {"deep": [{"n": 2**65 + 1}]}),
)
FLOATS: tuple[Any, ...] = (
    *(0.0, -0.0, 1.0, -1.0, 1.5, 0.1, 0.1 + 0.2, 1e16, 1e22, 1e23, 123456789012345680.0, 2.0**53, 2.0**63, 1e308),
    *(1.7976931348623157e308, 5e-324, -5e-324, 2.2250738585072014e-308, math.pi, -math.e, 1e-7, 1e-5, 100.0),
    *([0.0, -0.0], {"x": -0.0}),
)
BOOLEANS_AND_NUMBERS: tuple[Any, ...] = (
    *(True, False, 1, 0, 1.0, 0.0, [True, 1, 1.0], [False, 0, 0.0, -0.0], {"t": True, "one": 1, "f": 1.0}),
    {"zero": [0, False, 0.0, None, "", [], {}]},
)
EMPTINESS: tuple[Any, ...] = (
    *(
        None,
        "",
        [],
        {},
        [[]],
        [{}],
        {"": []},
        {"": {}},
        {"a": None},
        {"a": {}},
        {"a": []},
        {"a": ""},
        [None],
        [None, None],
    ),
    {"a": {"b": None}, "c": [None, {}, [], ""]},
)
BYTES: tuple[bytes, ...] = (
    *(
        b"{}",
        b"",
        b"\xff\xfe",
        b" blank ",
        b"\n",
        b"\r\n",
        b"\ttwo\n\nlines\n",
        b"\0nul\0",
        b"no JSON",
        bytes(range(256)),
    ),
    *(
        b'{"b" : 1, "a": 1.0, "a": 2}\n',
        b'"\\u00e9"',
        b"\xef\xbb\xbf[]",
        b"\xed\xa0\x80",
        b"e\xcc\x81",
        b"null",
        b"base64==",
    ),
    bytes(range(256)) * 2**10,
)
TEXTS: tuple[Any, ...] = (
    *("\0", "a\0b", "\0\0", "end\0", "\ud800", "\udfff", "ok \ud800 end", "\udc00\ud800", "\udfff text"),
    *("😀", "a😀b", "\U0010ffff", "\uffff", "\ufffe", "\ufeffbom", "é", "e\u0301", "ﬁ", "Å", "\u212b", "\u1e9e"),
    *("\u2028", "\u2029", "\x85", "\u00a0", "\u200b", "\u202e", "\x7f", "\x1b[31m", "\x01\x02\x1f"),
    *(" ", "  lead", "trail  ", "\n", "\r\n", "\r", "\t", "line\nline", "trail\n", "\ntwo\n\n", "\v\f"),
    *('"', "\\", "\\n", "\\u0000", "/", "'", "''", "'; DROP TABLE sessions; --", "%", "_", "%s", "{}", "${x}", "<&>"),
    *("null", "true", "NaN", "0", "1.0", "-0", "日本語", "עברית", "Ꮳ", "x" * 1000, "é" * 500),
    *({"\0": "\0"}, {"\ud800": 1}, {"\U0001f600": {"": "\0"}}, ["\ud83d", "\ude00"]),
)
KEYS: tuple[Any, ...] = (
    *({"b": 1, "a": 2}, {"z": 1, "y": {"b": 1, "a": 2}, "a": 3}, {"10": 1, "9": 2, "1": 3}, {"": 1, " ": 2, "\0": 3}),
    *({"A": 1, "a": 2}, {"é": 1, "e\u0301": 2}, {"__proto__": 1, "constructor": 2}, {"a.b": 1, "a": {"b": 2}}),
    *({"$ref": "x", "@type": "y", "_id": 1, "id": 2, "version": 3, "records": [], "state": {}, "key": "k"},),
    *({f"key-{number}": number for number in range(99, -1, -1)}, {"type": "unknown", "new_field": {"nested": [1]}}),
)
SIZES = (2**16 - 1, 2**16, 2**16 + 1, 2**20 - 1, 2**20, 2**20 + 1)
"""Lengths of text about which stores are known to cut."""
LARGE = 500_000
"""A length of text beyond what stores keep beside their other columns: it goes to files, to objects, to tables of its own."""


def nested(depth: int, *, lists: bool) -> Any:
    """Return a value of so many containers within each other, the outermost counted."""
    value: Any = [] if lists else {}
    for _ in range(depth - 1):
        value = [value] if lists else {"d": value}
    return value


class Colour(enum.StrEnum):
    """A text that is more than a text."""

    RED = "red"


class Level(enum.IntEnum):
    """A number that is more than a number."""

    LOW = 1


class Text(str):
    """A subclass of str."""

    __slots__ = ()


class Number(int):
    """A subclass of int."""


class Real(float):
    """A subclass of float."""


class Items(list[Any]):
    """A subclass of list."""


def cycle() -> Any:
    """Return a value that contains itself."""
    value: dict[str, Any] = {}
    value["again"] = [value]
    return value


NOT_JSON: dict[str, Callable[[], Any]] = {
    "nan": lambda: math.nan,
    "infinity": lambda: math.inf,
    "-infinity": lambda: -math.inf,
    "bytes": lambda: b"bytes",
    "bytearray": lambda: bytearray(b"x"),
    "memoryview": lambda: memoryview(b"x"),
    "datetime": lambda: datetime(2031, 1, 1, tzinfo=UTC),
    "date": lambda: date(2031, 1, 1),
    "decimal": lambda: Decimal("1.10"),
    "complex": lambda: 1j,
    "set": lambda: {1},
    "frozenset": lambda: frozenset({1}),
    "tuple": lambda: (1, 2),
    "empty tuple": tuple,
    "range": lambda: range(3),
    "generator": lambda: (n for n in ""),
    "str enum": lambda: Colour.RED,
    "int enum": lambda: Level.LOW,
    "str subclass": lambda: Text("x"),
    "int subclass": lambda: Number(1),
    "float subclass": lambda: Real(1.5),
    "list subclass": lambda: Items([1]),
    "ordered dict": lambda: OrderedDict(a=1),
    "default dict": lambda: defaultdict(list),
    "mapping": lambda: UserDict(a=1),
    "object": lambda: SimpleNamespace(secret=1),
    "function": lambda: cycle,
    "int key": lambda: {1: "x"},
    "none key": lambda: {None: "x"},
    "bool key": lambda: {True: "x"},
    "tuple key": lambda: {(1, 2): "x"},
    "bytes key": lambda: {b"k": "x"},
    "enum key": lambda: {Colour.RED: "x"},
    "cycle": cycle,
    "surrogate pair as two characters": lambda: "\ud83d\ude00",
    "depth of lists": lambda: nested(200, lists=True),
    "depth of objects": lambda: nested(200, lists=False),
    "depth of thousands": functools.cache(lambda: nested(100_000, lists=True)),  # to make it takes longer than its laws
}
"""What is not JSON inside a record, by name; each call makes it."""


def json_values() -> SearchStrategy[Any]:
    """Return a strategy of JSON values, half of them made of the values above."""
    from hypothesis import strategies as st

    text = st.text(st.characters(exclude_categories=()), max_size=12).filter(_no_split_pair)
    nasty = st.sampled_from([value for value in (*INTEGERS[:22], *FLOATS[:23], *TEXTS[:60]) if not _container(value)])
    leaves = st.one_of(
        nasty, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), text
    )
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
    )


def lists_of_objects() -> SearchStrategy[list[dict[str, Any]]]:
    """Return a strategy of lists of JSON objects, to be written one by one."""
    from hypothesis import strategies as st

    text = st.text(st.characters(exclude_categories=()), max_size=8).filter(_no_split_pair)
    return st.lists(st.dictionaries(text, json_values(), max_size=4), min_size=3, max_size=8)


def _container(value: object) -> bool:
    return isinstance(value, (list, dict))


def _no_split_pair(text: str) -> bool:
    return not any("\ud800" <= one <= "\udbff" and "\udc00" <= two <= "\udfff" for one, two in pairwise(text))
