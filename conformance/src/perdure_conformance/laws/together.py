"""The capability `atomic`: a session and its turn journal are written in one step."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from perdure.contracts.checkpoints import CheckpointHead, CheckpointReplace
from perdure.contracts.sessions import SessionAppend
from perdure.errors import NotJsonError, UnsupportedOperationError, VersionConflictError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import NotClaimedError, all_of, equal, holds, raises
from perdure_conformance.laws.cancellation import STEPS, cancelled
from perdure_conformance.laws.register import law
from perdure_conformance.parts import CHECKPOINTS, SESSIONS

IDLE = CheckpointHead("idle")
BOTH = (SESSIONS, CHECKPOINTS)


async def opened(bench: Bench, key: str = "s1") -> tuple[int, int]:
    """Make a session with a turn in progress, and return both versions."""
    return await SESSIONS.make(bench.store, key), await CHECKPOINTS.write(bench.store, key, [{"n": 1}, {"n": 2}])


@law("atomic-write-writes-both", parts=BOTH, needs=("atomic",), promise=3, methods=["bundle.write"])
async def atomic_write_writes_both(bench: Bench) -> None:
    """Closing a turn appends to the transcript and empties the turn journal, each version one higher."""
    session, journal = await opened(bench)
    at = bench.clock.advance(timedelta(seconds=5))
    closed = CheckpointHead("idle", agent="ann")
    versions = await bench.store.write(
        SessionAppend("s1", [{"turn": 1}, {"turn": 2}], session, {"title": "t"}),
        CheckpointReplace("s1", [], closed, journal),
    )
    equal(versions, (session + 1, journal + 1), "the versions that the write answers")
    found = await bench.store.sessions.load("s1")
    told = found and (found.version, found.count, found.state, found.updated_at)
    equal(told, (session + 1, 3, {"title": "t"}, at), "the session")
    turn = await bench.store.checkpoints.load("s1")
    written = turn and (turn.version, list(turn.entries), turn.head, turn.updated_at)
    equal(written, (journal + 1, [], closed, at), "the turn journal")
    for status, agent in (("idle", "ann"), ("in-progress", None)):
        listed = await CHECKPOINTS.ids(bench.store, status=status, agent=agent)
        equal(listed, ["s1"] * (status == "idle"), f"list(status={status!r}, agent={agent!r}) then")


@law("atomic-write-is-all-or-none", parts=BOTH, needs=("atomic",), promise=3, methods=["bundle.write"])
async def atomic_write_is_all_or_none(bench: Bench) -> None:
    """When one of the two has another version, or something in it is not JSON, neither is written."""
    session, journal = await opened(bench)
    before = [await part.read(bench.store, "s1") for part in BOTH]
    good, bad = SessionAppend("s1", [{"turn": 1}], session), SessionAppend("s1", [{"turn": 1}], session + 1)
    for append, version in ((good, journal + 1), (bad, journal), (bad, journal + 1), (good, 0)):
        close = CheckpointReplace("s1", [], IDLE, version)
        error = await raises(
            VersionConflictError, "a write of both at a wrong version", bench.store.write, append, close
        )
        equal(error.key, "s1", "the key that the conflict names")
        equal(
            [await part.read(bench.store, "s1") for part in BOTH], before, "session and turn journal after the conflict"
        )
    nan = SessionAppend("s1", [{"turn": float("nan")}], session)
    close = CheckpointReplace("s1", [], IDLE, journal)
    await raises(NotJsonError, "a write of both with a NaN", bench.store.write, nan, close)
    equal([await part.read(bench.store, "s1") for part in BOTH], before, "session and turn journal after the refusal")


@law("atomic-write-is-seen-whole", parts=BOTH, needs=("atomic",), promise=3, methods=["bundle.write"])
async def atomic_write_is_seen_whole(bench: Bench) -> None:
    """A write of both that is cancelled, whenever that is, changed both or neither."""
    for steps in STEPS:
        key = f"s{steps}"
        session, journal = await opened(bench, key)
        append = SessionAppend(key, [{"turn": 1}], session)
        await cancelled(bench.store.write(append, CheckpointReplace(key, [], IDLE, journal)), steps)
        await asyncio.sleep(0)
        seen = [await part.read(bench.store, key) for part in BOTH]
        moved = [one.version - was for one, was in zip(seen, (session, journal), strict=True) if one is not None]
        holds(moved in ([0, 0], [1, 1]), f"versions moved by {moved} when the write was cancelled after {steps} steps")


@law("atomic-write-conflicts-beside-other-writes", parts=BOTH, needs=("atomic",), promise=3, methods=["bundle.write"])
async def atomic_write_conflicts_beside_others(bench: Bench) -> None:
    """A write of both that is refused writes neither, also while others are written, and these are written whole."""
    for number in range(4):
        key = f"s{number}"
        session, journal = await opened(bench, key)
        before = [await part.read(bench.store, key) for part in BOTH]
        refused = bench.store.write(
            SessionAppend(key, [{"turn": 1}], session), CheckpointReplace(key, [], IDLE, journal + 1)
        )
        others = [SESSIONS.write(bench.store, f"other-{number}-{by}", [{"by": by}]) for by in range(3)]
        outcomes = await all_of([*others[:number], refused, *others[number:]])
        error = outcomes.pop(number)
        holds(isinstance(error, VersionConflictError), f"a write of both at a wrong version came to {error!r:.200}")
        holds(all(isinstance(one, int) for one in outcomes), f"the writes beside it came to {outcomes!r:.200}")
        equal([await part.read(bench.store, key) for part in BOTH], before, "session and turn journal after it")
        for by in range(3):
            equal(await SESSIONS.values(bench.store, f"other-{number}-{by}"), [{"by": by}], "a write beside it")


@law("undeclared-atomic-write-refuses", parts=BOTH, promise=3, methods=["bundle.write"])
async def undeclared_atomic_write_refuses(bench: Bench) -> None:
    """A bundle whose stores do not declare `atomic` refuses to write both at once, and writes neither."""
    if all(bench.capabilities(part.name).atomic for part in BOTH):
        raise NotClaimedError("the store declares atomic")
    session, journal = await opened(bench)
    append, close = SessionAppend("s1", [{"n": 3}], session), CheckpointReplace("s1", [], IDLE, journal)
    before = [await part.read(bench.store, "s1") for part in BOTH]
    await raises(UnsupportedOperationError, "a write of both, which is not declared", bench.store.write, append, close)
    equal([await part.read(bench.store, "s1") for part in BOTH], before, "session and turn journal after the refusal")
