"""Promise 1: versions. Each write adds one, and no version of a key comes twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

from perdure.errors import VersionConflictError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, holds, raises
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, LISTS, SESSIONS, Part, Seen, WritablePart, request


async def seen(bench: Bench, part: Part, key: str) -> Seen:
    """Return what is stored under a key that must be there."""
    found = await part.read(bench.store, key)
    holds(found is not None, f"{key} was written, but reading answers None")
    assert found is not None
    return found


@law_of_each("write-adds-one", parts=LISTS, promise=1, methods=["write"])
async def write_adds_one(bench: Bench, part: WritablePart) -> None:
    """Each successful write adds one to the version."""
    version = await part.make(bench.store, "s1")
    writes = [[{"n": 1}], [], [{"n": 2}, {"n": 3}, {"n": 4}], []]
    for count, values in enumerate(writes, 1):
        answered = await part.write(bench.store, "s1", values, expected_version=None if count % 2 else version)
        equal(answered, version + 1, f"the version after an append of {len(values)} at version {version}")
        version = answered
        equal((await seen(bench, part, "s1")).version, version, "the version that load tells after the append")


@law_of_each("replace-adds-one", parts=LISTS, needs=("replace",), promise=1, methods=["replace"])
async def replace_adds_one(bench: Bench, part: WritablePart) -> None:
    """A replace adds one to the version; it never resets or lowers it."""
    version = await part.make(bench.store, "s1")
    for values in ([], [], [{"n": 1}, {"n": 2}], [{"n": 3}], [{"n": 3}], []):  # by what is there already, too
        answered = await part.replace(bench.store, "s1", values, expected_version=version)
        equal(answered, version + 1, f"the version after a replace by {len(values)} at version {version}")
        version = answered
        equal((await seen(bench, part, "s1")).version, version, "the version that load tells after the replace")


@law(
    "sessions-write-that-changes-nothing-adds-one",
    parts=[SESSIONS],
    needs=("replace",),
    promise=1,
    methods=["sessions.append", "sessions.replace"],
)
async def write_that_changes_nothing_adds_one(bench: Bench) -> None:
    """A write adds one to the version, and refuses who comes at the one before, though it leaves all as it was."""
    sessions, records, state = bench.store.sessions, [{"n": 1}, {"n": 2}], {"title": "t"}
    version = await sessions.append("s1", records, state=state)
    writes: tuple[tuple[str, Callable[[int], Awaitable[int]]], ...] = (
        ("a replace that keeps all", lambda at: sessions.replace("s1", [], keep=2, expected_version=at)),
        ("an append of nothing", lambda at: sessions.append("s1", [], expected_version=at)),
        ("an append of the same state", lambda at: sessions.append("s1", [], state=state, expected_version=at)),
        ("a replace by the same", lambda at: sessions.replace("s1", records, expected_version=at, state=state)),
    )
    for what, write in writes * 2:
        equal(await write(version), version + 1, f"the version after {what} at version {version}")
        await raises(VersionConflictError, f"{what} at the version before", write, version)
        version += 1
        equal((await seen(bench, SESSIONS, "s1")).version, version, f"the version that load tells after {what}")


@law("approvals-decision-adds-one", parts=[APPROVALS], promise=1, methods=["approvals.decide"])
async def approvals_decision_adds_one(bench: Bench) -> None:
    """A decision adds one to the version of its approval, and later calls add nothing."""
    approvals = bench.store.approvals
    asked = await approvals.create(request())
    decided = await approvals.decide(asked.id, approved=True)
    equal(decided.version, asked.version + 1, "the version after the decision")
    equal((await approvals.decide(asked.id, approved=True)).version, decided.version, "after the same decision again")
    equal((await approvals.create(request())).version, decided.version, "after creating it again")
    equal((await seen(bench, APPROVALS, asked.id)).version, decided.version, "the version that get tells")


@law_of_each("version-is-at-least-one", promise=1, methods=["make"])
async def version_is_at_least_one(bench: Bench, part: Part) -> None:
    """A key that exists has a version of 1 or more, since 0 means absent."""
    version = await part.make(bench.store, part.key("s1"))
    holds(type(version) is int and version >= 1, f"the first version: expected an int of 1 or more, got {version!r}")


@law_of_each("first-version-is-drawn", promise=1, methods=["make"])
async def first_version_is_drawn(bench: Bench, part: Part) -> None:
    """The first version of a key is drawn at random: not from its length, nor the clock."""
    first = [await part.make(bench.store, part.key(f"s{number}")) for number in range(24)]
    holds(
        len(set(first)) == len(first), f"first versions of 24 keys under a clock that stands: some are equal: {first}"
    )
    steps = {later - earlier for earlier, later in pairwise(first)}
    holds(len(steps) > 12, f"first versions of 24 keys follow a pattern, so a sleeper could guess one: {first}")
    holds(
        max(first) >= 2**32, f"first versions are small numbers, so they will repeat; the largest of 24 is {max(first)}"
    )


@law_of_each("first-version-can-be-given", parts=LISTS, promise=1, methods=["write"])
async def first_version_can_be_given(bench: Bench, part: WritablePart) -> None:
    """An append that creates a key starts it at the version given."""
    equal(await part.write(bench.store, "s1", [{"n": 1}], expected_version=0, version=77), 77, "append(version=77)")
    equal((await seen(bench, part, "s1")).version, 77, "the version that load tells")
    equal(await part.write(bench.store, "s1", [], expected_version=77), 78, "the version after the next append")
    large = 2**62 - 5
    equal(await part.write(bench.store, "s2", [], expected_version=0, version=large), large, "a large first version")
    equal((await seen(bench, part, "s2")).version, large, "a large first version, loaded")


@law_of_each("version-never-repeats", needs=("delete",), promise=1, methods=["make", "delete"])
async def version_never_repeats(bench: Bench, part: Part) -> None:
    """A version never repeats for a key, not even after it is deleted and created again, however it is created."""
    key, lives = part.key("s1"), 12
    used: set[int] = set()
    for life in range(lives):
        if isinstance(part, WritablePart) and life % 3 == 2:
            version = await part.write(bench.store, key, [{"life": life}], expected_version=None)
        else:
            version = await part.make(bench.store, key)
        holds(version not in used, f"life {life} of {key} starts at version {version}, which an earlier life had")
        used.add(version)
        if isinstance(part, WritablePart):
            used.add(await part.write(bench.store, key, [{"life": life}], expected_version=version))
        await part.delete(bench.store, key)


@law_of_each("sleeper-is-refused-after-re-creation", parts=LISTS, needs=("delete",), promise=1, methods=["delete"])
async def sleeper_is_refused(bench: Bench, part: WritablePart) -> None:
    """A writer that slept through a deletion is refused, also after the key is created again."""
    slept = await part.make(bench.store, "s1", {"life": 1})
    await part.delete(bench.store, "s1")
    error = await raises(
        VersionConflictError,
        "a late append to a deleted key",
        part.write,
        bench.store,
        "s1",
        [{"late": 1}],
        expected_version=slept,
    )
    equal(error.actual, 0, "the actual version of a deleted key")
    equal(await part.read(bench.store, "s1"), None, "a deleted key after a late append")
    await part.make(bench.store, "s1", {"life": 2})
    before = await seen(bench, part, "s1")
    await raises(
        VersionConflictError,
        "a late append at a version of the life before",
        part.write,
        bench.store,
        "s1",
        [{"late": 2}],
        expected_version=slept,
    )
    equal(await seen(bench, part, "s1"), before, "the key after the late append")


@law("approvals-sleeper-cannot-delete", parts=[APPROVALS], needs=("delete",), promise=1, methods=["approvals.delete"])
async def approvals_sleeper_cannot_delete(bench: Bench) -> None:
    """A delete at a version of a former life removes nothing."""
    approvals = bench.store.approvals
    slept = (await approvals.create(request())).version
    await approvals.delete(request().id)
    again = await approvals.create(request())
    await raises(
        VersionConflictError,
        "a delete at a version of the life before",
        approvals.delete,
        again.id,
        expected_version=slept,
    )
    equal(await approvals.get(again.id), again, "the approval after it")


@law(
    "sessions-rewritten-names-the-last-replace",
    parts=[SESSIONS],
    needs=("replace",),
    promise=1,
    methods=["sessions.replace"],
)
async def rewritten_names_the_last_replace(bench: Bench) -> None:
    """`rewritten` is the version of the last replace, 0 if there was none."""
    sessions = bench.store.sessions
    await sessions.append("s1", [{"n": 1}])
    found = await sessions.load("s1", limit=0)
    equal(found and found.rewritten, 0, "rewritten before any replace")
    replaced = await sessions.replace("s1", [{"n": 2}], expected_version=None)
    await sessions.append("s1", [{"n": 3}])
    found = await sessions.load("s1", limit=0)
    equal(found and found.rewritten, replaced, "rewritten after a replace and an append")
    replaced = await sessions.replace("s1", [], keep=1, expected_version=None)
    found = await sessions.load("s1", last=0)
    equal(found and found.rewritten, replaced, "rewritten after a second replace that keeps a record")
    for records in ([{"n": 4}], []):
        replaced = await sessions.replace("s1", list(records), keep=found.count if found else 0, expected_version=None)
        found = await sessions.load("s1", limit=0)
        equal(found and found.rewritten, replaced, f"rewritten after a replace that keeps all and adds {records}")


@law_of_each("versions-agree", needs=("list",), promise=1, methods=["list"])
async def versions_agree(bench: Bench, part: Part) -> None:
    """Every way of reading tells the same version."""
    for name in ("s1", "s2", "s3"):
        await part.make(bench.store, part.key(name))
    if isinstance(part, WritablePart):
        await part.write(bench.store, "s2", [{"n": 2}])
    else:
        await bench.store.approvals.decide(part.key("s2"), approved=False)
    listed = {part.id_of(item): item.version for item in (await part.page(bench.store)).items}
    for name in ("s1", "s2", "s3"):
        key = part.key(name)
        equal(listed.get(key), (await seen(bench, part, key)).version, f"the version of {key} in the listing")


@law(
    "checkpoints-closing-and-reopening-a-turn-goes-on",
    parts=[CHECKPOINTS],
    needs=("replace",),
    promise=1,
    methods=["checkpoints.replace"],
)
async def closing_and_reopening_goes_on(bench: Bench) -> None:
    """A turn journal that is closed and opened again goes on counting, so that no run id comes twice."""
    versions = [await CHECKPOINTS.make(bench.store, "s1")]
    for turn in range(5):
        versions.append(await CHECKPOINTS.replace(bench.store, "s1", [], expected_version=versions[-1]))
        versions.append(await CHECKPOINTS.write(bench.store, "s1", [{"turn": turn}], expected_version=versions[-1]))
    equal(versions, list(range(versions[0], versions[0] + 11)), "the versions of a journal over five turns")
