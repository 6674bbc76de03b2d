"""Deleting a conversation: nothing of it is left in any part, nothing of another is touched, wherever it is cut."""

from __future__ import annotations

from typing import Any

from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import InvalidIdError, SessionBusyError, VersionConflictError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, raises
from perdure_conformance.interception import Died, at
from perdure_conformance.laws.conversations import NOTHING, WHOLE, Left, left, lived, owned, unchanged, waiting, whole
from perdure_conformance.laws.register import law
from perdure_conformance.laws.tapped import ELSEWHERE, tapped
from perdure_conformance.parts import CHECKPOINTS, PARTS, SESSIONS, request

DELETE: dict[str, Any] = WHOLE | {"methods": ("bundle.delete_session",)}


@law("delete-session-leaves-nothing", **DELETE)
async def leaves_nothing(bench: Bench) -> None:
    """Session, turn journal and every approval of a conversation go, and nothing of one whose id begins alike."""
    store = bench.store
    await waiting(store, "s1", calls=3)
    for name in ("s10", "S1", "s1-", "s"):
        await lived(store, name)
    equal(await store.delete_session("s1"), True, "what delete_session answers")
    others: list[str] = sorted(("s10", "S1", "s1-", "s"))
    equal(await left(store), Left(others, others, sorted(f"{name}.turn-1.s0.c0" for name in others)), "what is left")
    equal(list((await store.approvals.list(session_id="s1")).items), [], "the listed approvals of the session")
    for part in PARTS:
        equal(await part.read(store, part.key("s1")), None, f"the {part.name} of the session")


@law("delete-session-tells-whether-there-was-anything", **DELETE)
async def tells_whether_there_was_anything(bench: Bench) -> None:
    """It answers True for a conversation of which any part is there, else False, and creates nothing."""
    store = bench.store
    equal(await store.delete_session("s1"), False, "deleting what never was")
    equal(await left(store), NOTHING, "what is there then")
    for number in range(3):
        if number == 0:
            await SESSIONS.make(store, "s1")
        elif number == 1:
            await store.approvals.create(request())
        else:
            await CHECKPOINTS.write(store, "s1", [], head=CheckpointHead("idle", session_id="s1"))
        equal(await store.delete_session("s1"), True, f"deleting what has one part, number {number}")
        equal(await store.delete_session("s1"), False, "deleting it a second time")
        equal(await left(store), NOTHING, "what is left")


@law("delete-session-has-no-cap", **DELETE)
async def has_no_cap(bench: Bench) -> None:
    """All approvals of a conversation go, however much more than a page they are."""
    await SESSIONS.make(bench.store, "s1")
    for number in range(102):
        await bench.store.approvals.create(request(f"s1.turn-1.s0.c{number}"))
    await bench.store.delete_session("s1")
    equal(await left(bench.store), NOTHING, "what is left of 102 approvals")


@law("delete-session-refuses-a-bad-id", **DELETE)
async def refuses_a_bad_id(bench: Bench) -> None:
    """An id that breaks the rule, or names a run, is refused and removes nothing."""
    await lived(bench.store)
    before = await whole(bench)
    ids: tuple[Any, ...] = ("", "s1.run", "s1\n", "s*", "%", "a/b", "x" * 129, None, 5)
    for bad in ids:
        await raises(InvalidIdError, f"delete_session of {bad!r:.40}", bench.store.delete_session, bad)
    await unchanged(bench, before, "the refusals")


@law("delete-session-respects-a-live-owner", **DELETE)
async def respects_a_live_owner(bench: Bench) -> None:
    """A turn that another process runs refuses the deletion and loses nothing; with `force` the owner is fenced off."""
    version = await owned(bench.store)
    before = await whole(bench)
    error = await raises(SessionBusyError, "delete_session of a running turn", bench.store.delete_session, "s1")
    await unchanged(bench, before, f"a refusal ({type(error).__name__})")
    equal(await bench.store.delete_session("s1", force=True), True, "what delete_session with force answers")
    equal(await left(bench.store), NOTHING, "what is left")
    head = CheckpointHead("in-progress", session_id="s1")
    append = bench.store.checkpoints.append
    await raises(
        VersionConflictError,
        "the next append of the fenced owner",
        append,
        "s1",
        [],
        expected_version=version,
        head=head,
    )


@law("delete-session-refuses-the-sleeper", **DELETE)
async def refuses_the_sleeper(bench: Bench) -> None:
    """Who read a conversation before it was deleted and begun anew can write to no part of it by what it read."""
    store = bench.store
    await lived(store)
    seen = [await part.read(store, part.key("s1")) for part in PARTS]
    await store.delete_session("s1")
    await lived(store)
    before = await whole(bench)
    session, journal, approval = (one.version for one in seen if one is not None)
    head = CheckpointHead("in-progress", session_id="s1")
    await raises(
        VersionConflictError, "a late append", store.sessions.append, "s1", [{"late": 1}], expected_version=session
    )
    await raises(
        VersionConflictError, "a late entry", store.checkpoints.append, "s1", [], expected_version=journal, head=head
    )
    await raises(
        VersionConflictError, "a late delete", store.approvals.delete, "s1.turn-1.s0.c0", expected_version=approval
    )
    await unchanged(bench, before, "the late writes")


@law("delete-session-cut-anywhere-can-be-repeated", **DELETE)
async def cut_anywhere(bench: Bench) -> None:
    """A deletion that dies before or after any of its writes is finished by the next one, and leaves nothing."""
    for number in range(2, 42):
        await waiting(bench.store, calls=2)
        await SESSIONS.write(bench.store, "s1", [{"n": 1}])
        where = f"{'after' if number % 2 else 'before'} its write {number // 2}"
        deleting = tapped(bench.store, at(number // 2, "die-after" if number % 2 else "die-before"), process=ELSEWHERE)
        died = False
        try:
            await deleting.delete_session("s1")
        except Died:
            died = True
        await bench.store.delete_session("s1", force=True)
        equal(await left(bench.store), NOTHING, f"what is left by a deletion after one that died {where}")
        if not died:
            return
    raise AssertionError("one conversation took a deletion more than 20 writes")


@law("delete-session-cut-short-keeps-its-journal-to-the-end", **DELETE)
async def journal_goes_last(bench: Bench) -> None:
    """While a deletion is under way its turn journal is there and says so: nobody takes what is half gone for whole."""
    for number in range(1, 20):
        await waiting(bench.store, calls=2)
        died = False
        try:
            await tapped(bench.store, at(number, "die-after"), process=ELSEWHERE).delete_session("s1")
        except Died:
            died = True
        found, gone = await bench.store.checkpoints.load("s1"), await left(bench.store)
        if not died or gone == NOTHING:
            return
        equal(found and found.head.status, "deleting", f"the status of the turn journal after write {number} of it")
        await bench.store.delete_session("s1", force=True)
    raise AssertionError("one conversation took a deletion more than 20 writes")
