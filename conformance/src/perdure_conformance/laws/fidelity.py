"""Promise 6: fidelity. What is loaded equals what was given, in value and in type; all else is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure.backend import Append, Head, Journal, Key, Replace
from perdure.backend import Part as JournalPart
from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import NotJsonError, RecordTooLargeError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import NotClaimedError, equal, holds, raises
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.laws.tapped import journal_behind
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, LISTS, SESSIONS, Part, Stores, WritablePart, request
from perdure_conformance.values import (
    BOOLEANS_AND_NUMBERS,
    BYTES,
    EMPTINESS,
    FLOATS,
    INTEGERS,
    KEYS,
    LARGE,
    NOT_JSON,
    SIZES,
    TEXTS,
    lists_of_objects,
    nested,
)

KEPT_AS = {"sessions": JournalPart.SESSIONS, "checkpoints": JournalPart.RUNS, "approvals": JournalPart.APPROVALS}


async def comes_back(bench: Bench, part: Part, values: Iterable[Any]) -> None:
    """Put values wherever a part keeps JSON, and demand all of them back, by load and by listing."""
    objects = [{"value": value} for value in values]
    if part is SESSIONS:
        await session_keeps(bench.store, objects)
    elif part is CHECKPOINTS:
        await turn_keeps(bench.store, objects)
    else:
        await approval_keeps(bench.store, objects)


async def session_keeps(store: Stores, objects: list[dict[str, Any]]) -> None:
    """Records and state."""
    state = {str(index): one for index, one in enumerate(objects)}
    await store.sessions.append("s1", objects, state=state)
    found = await store.sessions.load("s1")
    assert found is not None
    equal(found.records, objects, "the records that came back")
    equal(found.state, state, "the state that came back")
    if store.sessions.capabilities.list:
        equal((await store.sessions.list()).items[0].state, state, "the state that the listing gives")


async def turn_keeps(store: Stores, objects: list[dict[str, Any]]) -> None:
    """Entries, and fields of the head that this release does not know."""
    head = CheckpointHead("in-progress", extra={"later": objects})
    await store.checkpoints.append("s1", objects, expected_version=0, head=head)
    found = await store.checkpoints.load("s1")
    assert found is not None
    equal(found.entries, objects, "the entries that came back")
    equal(found.head.extra, {"later": objects}, "the unknown fields of the head that came back")
    equal((await store.checkpoints.list()).items[0].head.extra, {"later": objects}, "the head that the listing gives")


async def approval_keeps(store: Stores, objects: list[dict[str, Any]]) -> None:
    """Arguments, metadata, unknown fields, and the edited arguments of a decision."""
    kept = {str(index): one for index, one in enumerate(objects)}
    asked = request(arguments=kept, metadata=kept, extra={"later": objects})
    equal((await store.approvals.create(asked)).arguments, kept, "the arguments that create answers")
    edited = {"edited": objects}
    await store.approvals.decide(asked.id, approved=True, arguments=edited)
    found = await store.approvals.get(asked.id)
    listed = (await store.approvals.list()).items[0]
    assert found is not None
    for seen, how in ((found, "get"), (listed, "list")):
        equal(seen.arguments, kept, f"the arguments that came back by {how}")
        equal(seen.metadata, kept, f"the metadata that came back by {how}")
        equal(seen.extra, {"later": objects}, f"the unknown fields that came back by {how}")
        equal(seen.effective_arguments, edited, f"the edited arguments that came back by {how}")


@law_of_each("integers-come-back", promise=6, methods=["make"])
async def integers_come_back(bench: Bench, part: Part) -> None:
    """Integers of any size come back exactly, never as floats."""
    await comes_back(bench, part, INTEGERS)


@law_of_each("numbers-beside-the-list-come-back", parts=LISTS, promise=6, methods=["write"])
async def numbers_beside_the_list(bench: Bench, part: WritablePart) -> None:
    """A state, or a head's unknown field, comes back exactly whatever single number it holds."""
    for number, value in enumerate((2**53 + 1, 2**63, -(2**63) - 1, 2**64, 2**70 + 1, 1.0, -0.0, 1e22, True)):
        key, kept = f"s{number}", {"value": value}
        if part is SESSIONS:
            await bench.store.sessions.append(key, [], state=kept)
            session = await bench.store.sessions.load(key)
            equal(session and session.state, kept, "the state that came back")
        else:
            await part.write(bench.store, key, [], head=CheckpointHead("in-progress", extra=kept))
            turn = await bench.store.checkpoints.load(key)
            equal(turn and turn.head.extra, kept, "the unknown fields of the head that came back")


@law_of_each("floats-come-back", promise=6, methods=["make"])
async def floats_come_back(bench: Bench, part: Part) -> None:
    """Floats come back bit for bit, the negative zero too, and never as integers."""
    await comes_back(bench, part, FLOATS)


@law_of_each("booleans-are-not-numbers", promise=6, methods=["make"])
async def booleans_are_not_numbers(bench: Bench, part: Part) -> None:
    """True, 1 and 1.0 are three values, and so are False, 0, 0.0 and null."""
    await comes_back(bench, part, BOOLEANS_AND_NUMBERS)


@law_of_each("text-comes-back", promise=6, methods=["make"])
async def text_comes_back(bench: Bench, part: Part) -> None:
    """All Unicode text comes back: NUL, lone surrogates, blanks at the ends, line ends, composed and decomposed."""
    await comes_back(bench, part, TEXTS)


@law_of_each("emptiness-comes-back", promise=6, methods=["make"])
async def emptiness_comes_back(bench: Bench, part: Part) -> None:
    """Empty objects, lists and texts, null, and a missing key are different things."""
    await comes_back(bench, part, EMPTINESS)


@law_of_each("keys-come-back", promise=6, methods=["make"])
async def keys_come_back(bench: Bench, part: Part) -> None:
    """Keys come back in the order given, whatever they are called; unknown fields stay."""
    await comes_back(bench, part, KEYS)


@law_of_each("long-text-comes-back", promise=6, methods=["make"])
async def long_text_comes_back(bench: Bench, part: Part) -> None:
    """Long texts come back whole, about every length at which stores cut, and in the place of other ones."""
    for number, size in enumerate(SIZES):
        key = part.key(f"s{number}")
        value = {"text": "ab" * (size // 2) + "e" * (size % 2)}
        await part.make(bench.store, key, value)
        seen = await part.read(bench.store, key)
        assert seen is not None
        equal(seen.values, [value], f"a text of {size} characters")
    if isinstance(part, WritablePart) and bench.capabilities(part.name).replace:
        # What a store keeps elsewhere for its length goes with the write and the place that it came with.
        for letter in "xy":
            pair = [{"text": letter * LARGE}, {"text": letter.upper() * LARGE}]
            await part.replace(bench.store, "s0", pair)
            equal(await part.values(bench.store, "s0"), pair, f"two texts of {LARGE} {letter} in the place of others")


@law("sessions-record-of-16-mib-comes-back", parts=[SESSIONS], promise=6, methods=["sessions.append"])
async def record_of_16_mib_comes_back(bench: Bench) -> None:
    """A record of more than 16 MiB comes back whole, and so does the batch that it is in."""
    batch: list[dict[str, Any]] = [{"n": 1}, {"text": "é" * (2**23 + 10)}, {"n": 2}]
    await bench.store.sessions.append("s1", batch)
    found = await bench.store.sessions.load("s1")
    assert found is not None
    equal(found.records, batch, "a batch with a record of more than 16 MiB")


@law_of_each("deep-nesting-comes-back", promise=6, methods=["make"])
async def deep_nesting_comes_back(bench: Bench, part: Part) -> None:
    """Containers nest up to 200 deep, the record itself counted; of an approval's arguments, the approval too."""
    for number, lists in enumerate((True, False)):
        key = part.key(f"s{number}")
        value = {"d": nested(199 - (part is APPROVALS), lists=lists)}
        await part.make(bench.store, key, value)
        seen = await part.read(bench.store, key)
        assert seen is not None
        equal(seen.values, [value], "a record of 200 containers within each other")


@law_of_each("any-json-comes-back", promise=6, methods=["make"], cases=lists_of_objects, examples=12)
async def any_json_comes_back(bench: Bench, part: Part, values: list[dict[str, Any]]) -> None:
    """Any JSON object comes back as it was given."""
    for number, value in enumerate(values):
        key = part.key(f"s{number}")
        await part.make(bench.store, key, value)
        seen = await part.read(bench.store, key)
        assert seen is not None, f"{key} was written, but reading answers None"
        equal(seen.values, [value], "the object that came back")


@law_of_each("refuses-what-is-not-json", promise=6, methods=["make"])
async def refuses_what_is_not_json(bench: Bench, part: Part) -> None:
    """What is not exactly JSON is refused before anything is written, and the key stays absent."""
    key = part.key("s1")
    for name, make in NOT_JSON.items():
        for value in ({"value": make()}, {"deep": [{"value": make()}]}):
            await raises(NotJsonError, f"writing {name}", part.make, bench.store, key, value)
            equal(await part.read(bench.store, key), None, f"the key after {name} was refused")


@law_of_each("refuses-records-that-are-no-objects", parts=(SESSIONS, CHECKPOINTS), promise=6, methods=["write"])
async def refuses_what_is_no_object(bench: Bench, part: Any) -> None:
    """A record is a JSON object with text keys: anything else is refused, and so is a batch that is no list."""
    records: list[Any] = [[], "text", 1, 1.5, True, None, (), {"a"}]
    records += [{1: "x"}, {None: "x"}, {True: "x"}, {b"k": "x"}, {"a": 1, 2.5: "x"}]
    for bad in records:
        what = f"appending a record of type {type(bad).__name__}: {bad!r:.40}"
        await raises(NotJsonError, what, part.write, bench.store, "s1", [bad])
    batches: list[Any] = [{"a": 1}, "text", None, 5, iter([{"a": 1}])]
    for bad in batches:
        await raises(
            NotJsonError, f"appending a batch of type {type(bad).__name__}", part.write, bench.store, "s1", bad
        )
    equal(await part.read(bench.store, "s1"), None, "the key after the refusals")


@law("sessions-refuses-bad-state", parts=[SESSIONS], promise=6, methods=["sessions.append"])
async def refuses_bad_state(bench: Bench) -> None:
    """A state is held to the same rules as a record, and a bad one writes nothing."""
    sessions = bench.store.sessions
    states: list[Any] = [[], "text", 1, {"n": float("nan")}, {1: "x"}, {"when": b"x"}]
    for state in states:
        await raises(NotJsonError, "an append with a bad state", sessions.append, "s1", [{"n": 1}], state=state)
        equal(await sessions.load("s1"), None, "the session after its bad state was refused")


@law("checkpoints-refuses-a-bad-head", parts=[CHECKPOINTS], promise=6, methods=["checkpoints.append"])
async def refuses_bad_head(bench: Bench) -> None:
    """A head is held to the same rules as an entry, and a bad one writes nothing."""
    for extra in ({"n": float("nan")}, {"when": b"x"}, {"deep": {1: 2}}):
        head = CheckpointHead("in-progress", extra=extra)
        await raises(
            NotJsonError,
            "an append with a bad head",
            bench.store.checkpoints.append,
            "s1",
            [{"n": 1}],
            expected_version=0,
            head=head,
        )
        equal(await bench.store.checkpoints.load("s1"), None, "the turn journal after its bad head was refused")


@law("approvals-refuses-bad-edits", parts=[APPROVALS], promise=6, methods=["approvals.decide"])
async def refuses_bad_edits(bench: Bench) -> None:
    """Edited arguments are held to the same rules, and bad ones decide nothing."""
    approvals = bench.store.approvals
    asked = await approvals.create(request())
    for bad in ({"n": float("inf")}, {"x": (1,)}, {1: 2}, [1]):
        edited: Any = bad
        await raises(
            NotJsonError, "a decision with bad arguments", approvals.decide, asked.id, approved=True, arguments=edited
        )
        equal(await approvals.get(asked.id), asked, "the approval after bad arguments were refused")


@law("sessions-refusal-names-the-place", parts=[SESSIONS], promise=6, methods=["sessions.append"])
async def refusal_names_the_place(bench: Bench) -> None:
    """A refusal names the place and the type of the offender, and never shows the value."""
    good = {"n": 1}
    bad = {"message": {"parts": [{"score": b"secret-value"}]}}
    error = await raises(
        NotJsonError, "an append with bytes in its third record", bench.store.sessions.append, "s1", [good, good, bad]
    )
    text = str(error)
    equal(error.where, "records[2].message.parts[0].score", "the place that the refusal names")
    holds("bytes" in text and error.where in text, f"the message names no place or no type: {text}")
    holds("secret-value" not in text, f"the message shows the value: {text}")


@law_of_each("record-over-the-limit-is-refused", promise=6, methods=["make"])
async def record_over_the_limit(bench: Bench, part: Part) -> None:
    """A record over the store's limit is refused with its size and writes nothing; one at the limit is stored."""
    store = await bench.open(max_record=1000)
    key = part.key("s1")
    overhead = len('{"text":""}')
    error = await raises(
        RecordTooLargeError,
        "a record of 1001 bytes where 1000 are allowed",
        part.make,
        store,
        key,
        {"text": "x" * (1001 - overhead)},
    )
    equal((error.size, error.limit), (1001, 1000), "the size and the limit that the error names")
    equal(await part.read(store, key), None, "the key after the refusal")
    await part.make(store, key, {"text": "x" * (1000 - overhead)})
    seen = await part.read(store, key)
    equal(seen and seen.values, ({"text": "x" * (1000 - overhead)},), "a record of 1000 bytes where 1000 are allowed")


def journal_of(bench: Bench, part: Part) -> Journal:
    """Return the journal that a part is made of, which is given bytes and is not to know what they are."""
    journal = journal_behind(part.store(bench.store))
    if journal is None:
        raise NotClaimedError(f"the store of {part.name} is made of no journal, which is given bytes")
    return journal


@law_of_each("items-come-back-byte-for-byte", promise=6)
async def items_come_back_byte_for_byte(bench: Bench, part: Part) -> None:
    """A journal gives back the very bytes of each item, whatever they are: what a codec makes of one is no JSON and no text."""
    journal, key, at = journal_of(bench, part), Key(KEPT_AS[part.name], part.key("s1")), bench.clock.now()
    for item in BYTES:
        await journal.write([Append(key, (item,), Head(), None, at, 1)])
    await items_are(bench, part, key, BYTES)
    await journal.write([Append(key, BYTES, Head(), None, at, 1)])
    await items_are(bench, part, key, BYTES * 2)
    await journal.write([Replace(key, len(BYTES), BYTES[::-1], Head(), None, at)])
    await items_are(bench, part, key, BYTES + BYTES[::-1])
    if bench.target.reopens:
        await bench.reopen()
        await items_are(bench, part, key, BYTES + BYTES[::-1])


async def items_are(bench: Bench, part: Part, key: Key, items: tuple[bytes, ...]) -> None:
    """Demand these items of a key in the journal."""
    found = await journal_of(bench, part).read(key)
    equal(None if found is None else list(found.items), list(items), "the items that the journal reads")


@law_of_each("heads-come-back-byte-for-byte", promise=6)
async def heads_come_back_byte_for_byte(bench: Bench, part: Part) -> None:
    """A journal gives back the very bytes of a head's data, whatever they are; none at all take the place of others too."""
    journal, kept_as, at = journal_of(bench, part), KEPT_AS[part.name], bench.clock.now()
    heads = {part.key(f"s{number:02}"): data for number, data in enumerate(BYTES)}
    for name, data in heads.items():
        for one in (b"before", data):
            await journal.write([Append(Key(kept_as, name), (), Head(data=one), None, at, 1)])
    await heads_are(bench, part, heads)
    if bench.target.reopens:
        await bench.reopen()
        await heads_are(bench, part, heads)


async def heads_are(bench: Bench, part: Part, heads: dict[str, bytes]) -> None:
    """Demand these data of the heads in the journal, by id."""
    journal, kept_as = journal_of(bench, part), KEPT_AS[part.name]
    read = {name: await journal.read(Key(kept_as, name)) for name in heads}
    equal({name: found and found.head.data for name, found in read.items()}, heads, "the heads that the journal reads")
    everything: dict[str, Any] = dict.fromkeys(("group", "status", "before", "after"))
    listed = await journal.scan(kept_as, **everything, order="id", limit=len(heads))
    equal({info.id: info.head.data for info in listed}, heads, "the heads that the journal lists")
