"""Promise 2: compare and set. A write happens only at the version that it expects, in one step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from perdure.errors import VersionConflictError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, holds, raises
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.parts import LISTS, SESSIONS, Part, Stores, WritablePart


def wrong_versions(version: int) -> tuple[int, ...]:
    """Return versions that a key at this version does not have."""
    return (0, 1, version - 1, version + 1, version + 2**20)


async def conflicts(
    what: str,
    call: Callable[..., Awaitable[object]],
    stores: Stores,
    key: str,
    *arguments: Any,
    expected: int | None,
    actual: int,
) -> VersionConflictError:
    """Demand that a write at a version that its key does not have is refused, and that the conflict carries its facts."""
    error = await raises(VersionConflictError, what, call, stores, key, *arguments, expected_version=expected)
    equal((error.key, error.expected, error.actual), (key, expected, actual), "the conflict's key, expected and actual")
    return error


@law_of_each("append-refuses-another-version", parts=LISTS, promise=2, methods=["write"])
async def append_refuses_another_version(bench: Bench, part: WritablePart) -> None:
    """An append at a version that the key does not have is a conflict and changes nothing."""
    version = await part.make(bench.store, "s1")
    before = await part.read(bench.store, "s1")
    for wrong in wrong_versions(version):
        what = f"an append at {wrong} to a key at {version}"
        await conflicts(what, part.write, bench.store, "s1", [{"n": 2}], expected=wrong, actual=version)
        equal(await part.read(bench.store, "s1"), before, f"the key after a refused append at {wrong}")


@law_of_each("append-at-the-version-writes", parts=LISTS, promise=2, methods=["write"])
async def append_at_the_version_writes(bench: Bench, part: WritablePart) -> None:
    """An append at the version that the key has writes, however often and however fast."""
    version = await part.make(bench.store, "s1", {"n": 0})
    for number in range(1, 41):
        version = await part.write(bench.store, "s1", [{"n": number}], expected_version=version)
    equal(await part.values(bench.store, "s1"), [{"n": number} for number in range(41)], "41 appends by one writer")


@law_of_each("equal-write-at-a-used-version-conflicts", parts=LISTS, promise=2, methods=["write"])
async def equal_write_at_a_used_version(bench: Bench, part: WritablePart) -> None:
    """Of two that write the same at one version the second is refused too: only one of them may go on."""
    version = await part.make(bench.store, "s1", {"n": 0})
    for values in ([{"n": 1}], [], [{"n": 2}, {"n": 2}]):
        await part.write(bench.store, "s1", values, expected_version=version)
        before = await part.read(bench.store, "s1")
        what = f"a second append of {values} at the version of the first"
        await conflicts(what, part.write, bench.store, "s1", values, expected=version, actual=version + 1)
        equal(await part.read(bench.store, "s1"), before, f"the key after {what}")
        version += 1


@law_of_each("expected-zero-means-absent", parts=LISTS, promise=2, methods=["write"])
async def expected_zero_means_absent(bench: Bench, part: WritablePart) -> None:
    """An append at version 0 creates the key, and is a conflict if it is there, an empty one too."""
    await part.write(bench.store, "s1", [], expected_version=0)
    before = await part.read(bench.store, "s1")
    await raises(
        VersionConflictError,
        "an append at 0 to an empty key that exists",
        part.write,
        bench.store,
        "s1",
        [{"n": 1}],
        expected_version=0,
    )
    equal(await part.read(bench.store, "s1"), before, "the key after a refused append at 0")


@law_of_each("expected-none-always-writes", parts=LISTS, promise=2, methods=["write"])
async def expected_none_always_writes(bench: Bench, part: WritablePart) -> None:
    """An append that expects no version writes to an absent key and to any version."""
    first = await part.write(bench.store, "s1", [{"n": 1}], expected_version=None)
    equal(await part.write(bench.store, "s1", [{"n": 2}], expected_version=None), first + 1, "a second append at None")
    equal(await part.values(bench.store, "s1"), [{"n": 1}, {"n": 2}], "two appends at None")


@law_of_each("append-to-absent-at-a-version-conflicts", parts=LISTS, promise=2, methods=["write"])
async def append_to_absent_conflicts(bench: Bench, part: WritablePart) -> None:
    """An append at a version of 1 or more to an absent key is a conflict, and creates nothing."""
    for wrong in (1, 2**39):
        what = f"an append at {wrong} to an absent key"
        await conflicts(what, part.write, bench.store, "s1", [{"n": 1}], expected=wrong, actual=0)
        equal(await part.read(bench.store, "s1"), None, "the key after the refused append")


@law_of_each("replace-refuses-another-version", parts=LISTS, needs=("replace",), promise=2, methods=["replace"])
async def replace_refuses_another_version(bench: Bench, part: WritablePart) -> None:
    """A replace at a version that the key does not have is a conflict and changes nothing."""
    version = await part.make(bench.store, "s1")
    before = await part.read(bench.store, "s1")
    for wrong in wrong_versions(version):
        what = f"a replace at {wrong} of a key at {version}"
        await conflicts(what, part.replace, bench.store, "s1", [], expected=wrong, actual=version)
        equal(await part.read(bench.store, "s1"), before, f"the key after a refused replace at {wrong}")


@law_of_each("replace-at-the-version-writes", parts=LISTS, needs=("replace",), promise=2, methods=["replace"])
async def replace_at_the_version_writes(bench: Bench, part: WritablePart) -> None:
    """A replace at the version that the key has, or at none, writes."""
    version = await part.make(bench.store, "s1")
    for number, expected in enumerate((version, None, version + 2)):
        await part.replace(bench.store, "s1", [{"n": number}], expected_version=expected)
        equal(await part.values(bench.store, "s1"), [{"n": number}], f"the key after a replace at {expected}")


@law_of_each("replace-of-absent-conflicts", parts=LISTS, needs=("replace",), promise=2, methods=["replace"])
async def replace_of_absent_conflicts(bench: Bench, part: WritablePart) -> None:
    """A replace of an absent key is a conflict at every expected version, and creates nothing."""
    for expected in (None, 0, 1):
        what = f"a replace at {expected} of an absent key"
        await conflicts(what, part.replace, bench.store, "s1", [{"n": 1}], expected=expected, actual=0)
        equal(await part.read(bench.store, "s1"), None, "the key after the refused replace")


@law(
    "sessions-keep-beyond-the-end-conflicts",
    parts=[SESSIONS],
    needs=("replace",),
    promise=2,
    methods=["sessions.replace"],
)
async def keep_beyond_the_end_conflicts(bench: Bench) -> None:
    """A replace that keeps more records than there are is a conflict, since its writer saw another list."""
    sessions = bench.store.sessions
    await sessions.append("s1", [{"n": 1}, {"n": 2}])
    before = await sessions.load("s1")
    await raises(
        VersionConflictError,
        "a replace that keeps 3 of 2 records",
        sessions.replace,
        "s1",
        [{"n": 3}],
        keep=3,
        expected_version=None,
    )
    equal(await sessions.load("s1"), before, "the session after the refused replace")


@law_of_each("delete-refuses-another-version", needs=("delete",), promise=2, methods=["delete"])
async def delete_refuses_another_version(bench: Bench, part: Part) -> None:
    """A delete at a version that the key does not have is a conflict and removes nothing."""
    key = part.key("s1")
    version = await part.make(bench.store, key)
    before = await part.read(bench.store, key)
    for wrong in wrong_versions(version):
        what = f"a delete at {wrong} of a key at {version}"
        await conflicts(what, part.delete, bench.store, key, expected=wrong, actual=version)
        equal(await part.read(bench.store, key), before, f"the key after a refused delete at {wrong}")
    holds(await part.delete(bench.store, key, expected_version=version), "a delete at the version: expected True")
    equal(await part.read(bench.store, key), None, "the key after a delete at its version")


@law_of_each("delete-of-absent-heeds-the-version", needs=("delete",), promise=2, methods=["delete"])
async def delete_of_absent(bench: Bench, part: Part) -> None:
    """A delete of an absent key answers False at None and at 0, and is a conflict at any other version."""
    key = part.key("s1")
    equal(await part.delete(bench.store, key), False, "a delete of an absent key")
    equal(await part.delete(bench.store, key, expected_version=0), False, "a delete at 0 of an absent key")
    await conflicts("a delete at 5 of an absent key", part.delete, bench.store, key, expected=5, actual=0)


@law_of_each("two-readers-one-writer", parts=LISTS, promise=2, methods=["write"])
async def two_readers_one_writer(bench: Bench, part: WritablePart) -> None:
    """Of two that read the same version the second to write is refused, and nothing of the first is lost."""
    version = await part.make(bench.store, "s1", {"n": 0})
    await part.write(bench.store, "s1", [{"by": "first"}], expected_version=version)
    what = "the second write at the version that both had read"
    error = await conflicts(
        what, part.write, bench.store, "s1", [{"by": "second"}], expected=version, actual=version + 1
    )
    await part.write(bench.store, "s1", [{"by": "second"}], expected_version=error.actual)
    expected = [{"n": 0}, {"by": "first"}, {"by": "second"}]
    equal(await part.values(bench.store, "s1"), expected, "both writes after the second was repeated")
