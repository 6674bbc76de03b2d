"""Planted stores of the chapter on fidelity: what is loaded is not what was given."""

from __future__ import annotations

import asyncio
import json
import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from conformance.tests.faults.planting import HEAD, Around, Fault, Items, Scene, outcome

from perdure.backend import Append, Head, JournalInfo, Key, Part
from perdure.journal.stores import JournalCheckpoints, JournalSessions


def through(change: Callable[[Any], Any]) -> type[Items]:
    """Return a journal that changes every value inside a record."""

    class Changes(Items):
        def one(self, item: bytes) -> bytes:
            return json.dumps(walk(json.loads(item))).encode()

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            value = {change(key): walk(inner) for key, inner in value.items()}
        elif isinstance(value, list):
            value = [walk(inner) for inner in value]
        return change(value)

    return Changes


def on(kind: type, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: change(value) if type(value) is kind else value


BigIntsAsFloats = through(on(int, lambda n: float(n) if 2**64 < abs(n) < 2**900 else n))


TrimsNul = through(on(str, lambda text: text.rstrip("\0")))


TrimsBlanks = through(on(str, str.strip))


Normalises = through(on(str, lambda text: unicodedata.normalize("NFC", text)))


ReplacesSurrogates = through(on(str, lambda text: text.encode("utf-8", "replace").decode()))


LosesNegativeZero = through(on(float, lambda x: x + 0.0))


FloatsAsInts = through(on(float, lambda x: int(x) if x.is_integer() and x < 2**53 else x))


BooleansAsNumbers = through(on(bool, int))


SortsKeys = through(on(dict, lambda value: dict(sorted(value.items()))))


DropsNulls = through(on(dict, lambda value: {key: inner for key, inner in value.items() if inner is not None}))


EmptyListsAsNull = through(on(list, lambda value: value or None))


class LateSnapshot(JournalSessions):
    async def append(self, *args: Any, **options: Any) -> int:  # type: ignore[misc]  # reason: the fault
        await asyncio.sleep(0)
        return await JournalSessions.append(self, *args, **options)


class RemembersAnswers(JournalSessions):
    """Gives every reader of a version the same objects."""

    async def load(self, session_id: str, **window: Any) -> Any:  # type: ignore[misc]  # reason: the fault
        found = await JournalSessions.load(self, session_id, **window)
        answers: dict[Any, Any] = vars(self).setdefault("answers", {})
        return found and answers.setdefault((session_id, found.version, tuple(window.items())), found)


ReplacesLineSeparators = through(on(str, lambda text: text.replace("\u2028", "\n")))
CutsAtNul = through(on(str, lambda text: text.partition("\0")[0]))
LosesAstral = through(on(str, lambda text: "".join(one if ord(one) < 2**16 else "?" for one in text)))
RoundsFloats = through(on(float, lambda x: float(f"{x:.15g}") if math.isfinite(x) else x))
IntsAsFloats = through(on(int, lambda n: float(n) if n == 2**53 else n))
WrapsAt64Bits = through(on(int, lambda n: n - 2**64 if 2**63 <= n < 2**64 else n))
UnwrapsLists = through(on(list, lambda value: value[0] if len(value) == 1 else value))
EmptyObjectsDropped = through(on(dict, lambda value: {key: one for key, one in value.items() if one != {}}))
UnknownFieldsDropped = through(on(dict, lambda value: {key: one for key, one in value.items() if key != "new_field"}))
LowersKeys = through(on(dict, lambda value: {key.lower(): one for key, one in value.items()}))


def cut_at(size: int) -> type[Items]:
    """Return a journal that cuts texts at a length."""

    class Cuts(Items):
        def one(self, item: bytes) -> bytes:
            return item if len(item) <= size else json.dumps(_shorter(json.loads(item), size)).encode()

    return Cuts


def _shorter(value: Any, size: int) -> Any:
    if isinstance(value, str):
        return value[: size // 2]
    return {key: _shorter(one, size) for key, one in value.items()} if isinstance(value, dict) else value


class FlattensDeepOnes(Items):
    """What is nested more than a hundred deep comes back as text."""

    def one(self, item: bytes) -> bytes:
        deep = max(item.count(b"[" * 100), item.count(b'{"d":' * 100))
        return json.dumps({"d": item.decode()}).encode() if deep else item


class AcceptsNaN(JournalSessions):
    """What is not JSON is stored as text."""

    async def append(self, session_id: str, records: Any, **options: Any) -> int:  # type: ignore[misc]  # reason: the fault
        made = json.loads(json.dumps(records, default=str, skipkeys=True), parse_constant=str)
        return await JournalSessions.append(self, session_id, made, **options)


class KeysAsText(JournalSessions):
    """Keys that are no text are made text."""

    async def append(self, session_id: str, records: Any, **options: Any) -> int:  # type: ignore[misc]  # reason: the fault
        made = [{str(key): value for key, value in one.items()} if type(one) is dict else one for one in records]
        return await JournalSessions.append(self, session_id, made, **options)


class LateHead(JournalCheckpoints):
    """The snapshot of a turn's entries is taken a moment after the call."""

    async def append(self, *args: Any, **options: Any) -> int:  # type: ignore[misc]  # reason: the fault
        await asyncio.sleep(0)
        return await JournalCheckpoints.append(self, *args, **options)


class StateIsTheCallers(JournalSessions):
    """The state that is given back is the object that was given."""

    async def append(self, session_id: str, records: Any, *, state: Any = None, **options: Any) -> int:  # type: ignore[misc]  # reason: the fault
        version = await JournalSessions.append(self, session_id, records, state=state, **options)
        if state is not None:
            vars(self).setdefault("states", {})[session_id] = state
        return version

    async def load(self, session_id: str, **window: Any) -> Any:  # type: ignore[misc]  # reason: the fault
        found = await JournalSessions.load(self, session_id, **window)
        states = vars(self).get("states", {})
        return found and replace(found, state=states.get(session_id, found.state))


class NormalisesKeys(Items):
    """Keys that look alike become one."""

    def one(self, item: bytes) -> bytes:
        return json.dumps(_normal(json.loads(item))).encode()


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        return {unicodedata.normalize("NFC", key): _normal(one) for key, one in value.items()}
    return [_normal(one) for one in value] if isinstance(value, list) else value


class ItemsAsText(Items):
    """Items are kept as text: what is no UTF-8 is lost, though no JSON is."""

    def one(self, item: bytes) -> bytes:
        return item.decode("utf-8", "replace").encode()


class StripsItems(Items):
    """Blanks and line ends around an item, which JSON has none of, are lost."""

    def one(self, item: bytes) -> bytes:
        return item.strip()


class RewritesJson(Items):
    """Items that are JSON are kept as JSON, and written anew when they are read."""

    def one(self, item: bytes) -> bytes:
        try:
            return json.dumps(json.loads(item), ensure_ascii=False, separators=(",", ":")).encode()
        except ValueError:
            return item


class HeadsAsText(Around):
    """The data of heads are kept as text."""

    def change(self, operation: Any) -> Any:
        if getattr(operation, "head", Head()).data is None:
            return operation
        data = operation.head.data.decode("utf-8", "replace").encode()
        return replace(operation, head=replace(operation.head, data=data))


class ListsHeadsAsText(Around):
    """The data of heads are as they were when a key is read, and text in listings."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        found = await super().scan(part, **options)
        data = [(info.head.data or b"").decode("utf-8", "replace").encode() for info in found]
        return [replace(info, head=replace(info.head, data=one)) for info, one in zip(found, data, strict=True)]


class EmptyHeadsAreNone(Around):
    """An empty head keeps what is there, as one that is not given does."""

    def change(self, operation: Any) -> Any:
        if getattr(operation, "head", Head()).data != b"":
            return operation
        return replace(operation, head=replace(operation.head, data=None))


# --- witnesses ---

VALUES: tuple[Any, ...] = (
    *(2**70, 2**53, 2**63 + 1, True, 1.0, 0.1 + 0.2, None, [], {}, [1], "end\0", "a\0b", " blank ", "e\u0301"),
    *("\ud800", "\U0001f600", "a\u2028b", {"b": 1, "a": {}}, {"a": None}, {"A": 1, "a": 2}, {"new_field": 1}),
    *({"e\u0301": 1}, -0.0, "x" * 2**17),
)


async def values(scene: Scene) -> Any:
    """Many values, as they come back, with their types."""
    await scene.store.sessions.append("s1", [{"value": value} for value in VALUES])
    return [repr(record) for record in await scene.records()]


async def long_and_deep(scene: Scene) -> Any:
    deep: Any = []
    for _ in range(150):
        deep = [deep]
    await scene.store.sessions.append("s1", [{"text": "x" * (2**20 + 5)}, {"text": "x" * 2**16}, {"d": deep}])
    await scene.store.sessions.append("s1", [{"text": "x" * (2**24 + 5)}])
    return [len(str(record)) for record in await scene.records()]


async def raw_bytes(scene: Scene) -> Any:
    """Bytes that are no JSON, or JSON with blanks, as a journal gives them back of each part."""
    journal = scene.store.sessions.journal  # type: ignore[attr-defined]  # reason: planted stores are made of journals
    seen = []
    for part in Part:
        for data in (b"\xff\xfe", b""):
            head = Head(data=data)
            await journal.write([Append(Key(part, "s1"), (b" \xff\n", b'{"a" : 1}'), head, None, scene.clock.now(), 1)])
            found = await journal.read(Key(part, "s1"))
            listed = await journal.scan(part, group=None, status=None, before=None, order="id", after=None, limit=1)
            seen += [list(found.items), found.head.data, listed[0].head.data]
    return seen


async def not_json(scene: Scene) -> Any:
    records: tuple[Any, ...] = ({"n": math.nan}, {1: "x"}, {"b": b"x"})
    return [await outcome(scene.store.sessions.append("s1", [record])) for record in records]


async def aliases(scene: Scene) -> Any:
    """What becomes of what is stored when the objects that were given, and got, are changed."""
    record, state = {"n": [1]}, {"title": ["a"]}
    call = scene.store.sessions.append("s1", [record], state=state)
    entry = {"n": [1]}
    other = scene.store.checkpoints.append("s1", [entry], expected_version=0, head=HEAD)
    record["n"].append(2)
    entry["n"].append(2)
    await call
    await other
    state["title"].append("b")
    found = await scene.store.sessions.load("s1")
    assert found is not None
    found.records[0]["n"].append(3)
    again = await scene.store.sessions.load("s1")
    assert again is not None
    return list(again.records), again.state, (await scene.entries())[1]


def of(name: str, journal: type[Items], law: str, witness: Any = values) -> Fault:
    return Fault(name, (f"sessions-{law}", f"checkpoints-{law}"), witness, journal)


def raw(journal: type[Around], what: str) -> Fault:
    parts = ("sessions", "checkpoints", "approvals")
    return Fault(
        journal.__name__, tuple(f"{part}-{what}-come-back-byte-for-byte" for part in parts), raw_bytes, journal
    )


def alias(store: type[Any], *laws: str, witness: Any = aliases) -> Fault:
    if issubclass(store, JournalCheckpoints):
        return Fault(store.__name__, laws, witness, checkpoints=store)
    return Fault(store.__name__, laws, witness, sessions=store)


FAULTS = (
    of("big-ints-as-floats", BigIntsAsFloats, "integers-come-back"),
    of("ints-as-floats", IntsAsFloats, "integers-come-back"),
    of("wraps-at-64-bits", WrapsAt64Bits, "integers-come-back"),
    of("rounds-floats", RoundsFloats, "floats-come-back"),
    of("floats-as-ints", FloatsAsInts, "floats-come-back"),
    of("loses-negative-zero", LosesNegativeZero, "floats-come-back"),
    of("booleans-as-numbers", BooleansAsNumbers, "booleans-are-not-numbers"),
    of("any-change-is-found", BooleansAsNumbers, "any-json-comes-back"),
    of("trims-nul", TrimsNul, "text-comes-back"),
    of("cuts-at-nul", CutsAtNul, "text-comes-back"),
    of("trims-blanks", TrimsBlanks, "text-comes-back"),
    of("normalises", Normalises, "text-comes-back"),
    of("normalises-keys", NormalisesKeys, "keys-come-back"),
    of("replaces-surrogates", ReplacesSurrogates, "text-comes-back"),
    of("loses-astral", LosesAstral, "text-comes-back"),
    of("replaces-line-separators", ReplacesLineSeparators, "text-comes-back"),
    of("sorts-keys", SortsKeys, "keys-come-back"),
    of("lowers-keys", LowersKeys, "keys-come-back"),
    of("unknown-fields-dropped", UnknownFieldsDropped, "keys-come-back"),
    of("drops-nulls", DropsNulls, "emptiness-comes-back"),
    of("empty-lists-as-null", EmptyListsAsNull, "emptiness-comes-back"),
    of("empty-objects-dropped", EmptyObjectsDropped, "emptiness-comes-back"),
    of("unwraps-lists", UnwrapsLists, "emptiness-comes-back"),
    of("cuts-at-64-kib", cut_at(2**16), "long-text-comes-back", long_and_deep),
    of("cuts-at-1-mib", cut_at(2**20), "long-text-comes-back", long_and_deep),
    Fault("cuts-at-16-mib", ("sessions-record-of-16-mib-comes-back",), long_and_deep, cut_at(2**24)),
    of("flattens-deep-ones", FlattensDeepOnes, "deep-nesting-comes-back", long_and_deep),
    raw(ItemsAsText, "items"),
    raw(StripsItems, "items"),
    raw(RewritesJson, "items"),
    raw(HeadsAsText, "heads"),
    raw(ListsHeadsAsText, "heads"),
    raw(EmptyHeadsAreNone, "heads"),
    alias(AcceptsNaN, "sessions-refuses-what-is-not-json", witness=not_json),
    alias(KeysAsText, "sessions-refuses-records-that-are-no-objects", witness=not_json),
    alias(LateSnapshot, "sessions-snapshot-is-taken-at-the-call"),
    alias(LateHead, "checkpoints-snapshot-is-taken-at-the-call"),
    alias(StateIsTheCallers, "sessions-state-is-a-snapshot"),
    alias(RemembersAnswers, "sessions-output-is-new-each-time"),
)
