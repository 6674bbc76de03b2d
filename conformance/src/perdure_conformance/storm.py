"""Writing, for a process that dies in the middle of it, and what must be stored afterwards.

The n-th write of a storm and the state after it follow from n alone, so that what a killed process acknowledged tells
what must be there: the state after the last acknowledged write, or after the one that was under way.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from perdure.contracts.checkpoints import CheckpointHead, CheckpointReplace
from perdure.contracts.sessions import SessionAppend
from perdure.errors import OutcomeUnknownError, StoreUnavailableError
from perdure_conformance.file_limits import WrittenFiles, limit_files
from perdure_conformance.kill_points import KillPoints
from perdure_conformance.parts import CHECKPOINTS, SESSIONS, Stores, request

KEY = "storm"
BATCH = 12
COUNTED = 4
"""How many writes are killed at counted points: of each kind they create, add to, replace and delete what is there."""
SHORTEST = 1e-6
"""The shortest time of a timer, in seconds; none at all switches it off."""


def batch(number: int) -> list[dict[str, Any]]:
    """Return the records of the n-th write: several, so that a torn batch shows."""
    return [{"write": number, "place": place, "text": "x" * 100} for place in range(BATCH)]


async def storm(opening: Awaitable[Stores], kind: str, points: KillPoints, say: Callable[[object], None]) -> None:
    """Open a store, write, say the number of each write that was acknowledged, and be killed right after the last one.

    Args:
        opening: Opens the store.
        kind: Which writes, a key of `WRITERS`.
        points: Where to be killed before that.
        say: Takes what is to be said: `{"write": 1}`, and at the end `{"points": [...]}`, how many points were passed.
    """
    points.watch()
    stores = await opening
    points.passed()
    version = 0
    for number in range(1, COUNTED + 1):
        version = await WRITERS[kind](stores, number, version)
        points.passed()
        say({"write": number})
    say({"points": points.counts[:-1]})
    os.kill(os.getpid(), signal.SIGKILL)


async def storm_by_time(opening: Awaitable[Stores], kind: str, say: Callable[[object], None]) -> None:
    """Open a store, write, say what was acknowledged, and be killed half a write after one is.

    That can be inside of a call of a driver that is not written in Python, where there is no point to count. Before it,
    say which modules all that took, as `{"modules": [...]}`.
    """
    stores, version = await opening, 0
    for number in itertools.count(1):
        began = time.perf_counter()
        version = await WRITERS[kind](stores, number, version)
        took = time.perf_counter() - began
        say({"write": number})
        if number == COUNTED:
            say({"modules": sorted(sys.modules)})
            # Where nobody listens to it, this signal ends the process as SIGKILL does.
            signal.setitimer(signal.ITIMER_REAL, took / 2 + SHORTEST)


async def storm_cut(
    opening: Awaitable[Stores],
    kind: str,
    directory: str,
    cut: tuple[int, int] | None,
    say: Callable[[object], None],
) -> None:
    """Open a store, write, say what was acknowledged, and be killed in the middle of writing a file.

    Args:
        opening: Opens the store.
        kind: Which writes.
        directory: Where the store has its files.
        cut: From which write on, 0: the opening, and the size that no file may pass from then on; `None`: any, and what
            each write, the opening first, wrote of the files is said at the end as `{"written": [...], "modules": [...]}`.
        say: Takes what is to be said; `{"refused": why}`, if the store tells that the system did not take the write.
    """
    try:
        said = await _cut_writes(opening, kind, WrittenFiles(Path(directory)), {} if cut is None else dict([cut]), say)
    except (StoreUnavailableError, OutcomeUnknownError) as error:  # a driver that looks how much was written
        if cut is None:
            raise
        said = {"refused": str(error)}
    say(said)
    os.kill(os.getpid(), signal.SIGKILL)


async def _cut_writes(
    opening: Awaitable[Stores], kind: str, files: WrittenFiles, limits: dict[int, int], say: Callable[[object], None]
) -> dict[str, Any]:
    """Make the writes of a storm, with a limit from a write on, and return what each wrote of the files."""
    limit_files(limits.get(0))
    stores, version = await opening, 0
    written = [files.written()]
    for number in range(1, COUNTED + 1):
        limit_files(limits.get(number))
        version = await WRITERS[kind](stores, number, version)
        say({"write": number})
        written.append(files.written())
    return {"written": written, "modules": sorted(sys.modules)}


async def write_append(stores: Stores, number: int, version: int) -> int:
    """Append one more batch."""
    return await stores.sessions.append(KEY, batch(number), expected_version=version, state={"write": number})


async def write_replace(stores: Stores, number: int, version: int) -> int:
    """Put a batch in the place of the last one."""
    if number == 1:
        return await write_append(stores, number, version)
    return await stores.sessions.replace(KEY, batch(number), expected_version=version, state={"write": number})


async def write_turn(stores: Stores, number: int, version: int) -> int:
    """Take a turn forward; every fourth write closes it."""
    head = CheckpointHead("in-progress" if number % 4 else "idle", attempts=number)
    if number % 4:
        return await stores.checkpoints.append(KEY, batch(number), expected_version=version, head=head)
    return await stores.checkpoints.replace(KEY, [], expected_version=version, head=head)


async def write_decide(stores: Stores, number: int, version: int) -> int:
    """Ask for a decision, or decide what was asked by the write before."""
    key = f"{KEY}.turn-1.s0.c{(number + 1) // 2}"
    if number % 2:
        return (await stores.approvals.create(request(key))).version
    return (await stores.approvals.decide(key, approved=True, note=f"write {number}")).version


async def write_delete(stores: Stores, number: int, version: int) -> int:
    """Create a session, or delete it again."""
    if number % 2:
        return await write_append(stores, number, 0)
    await stores.sessions.delete(KEY, expected_version=version)
    return 0


async def write_commit(stores: Stores, number: int, version: int) -> int:
    """Take a turn forward, or close it and append to its transcript in one step."""
    journal, session = await stores.checkpoints.load(KEY), await stores.sessions.load(KEY)
    at = 0 if journal is None else journal.version
    if number % 2:
        return await stores.checkpoints.append(KEY, batch(number), expected_version=at, head=CheckpointHead("ready"))
    append = SessionAppend(KEY, batch(number), 0 if session is None else session.version)
    return (await stores.write(append, CheckpointReplace(KEY, [], CheckpointHead("idle"), at)))[0]


WRITERS = {
    "append": write_append,
    "replace": write_replace,
    "turn": write_turn,
    "decide": write_decide,
    "delete": write_delete,
    "commit": write_commit,
}


def state_after(kind: str, number: int) -> Any:
    """Return what `state_of` must find after the n-th write of a storm, 0: before the first."""
    if kind == "commit":
        committed = [one for n in range(2, number + 1, 2) for one in batch(n)]
        entries = (batch(number) if number % 2 else []) if number else None
        return {"records": committed or None, "entries": entries}
    if number == 0:
        return {} if kind == "decide" else None
    if kind == "append":
        return {"state": {"write": number}, "records": [one for n in range(1, number + 1) for one in batch(n)]}
    if kind == "replace":
        return {"state": {"write": number}, "records": batch(number)}
    if kind == "turn":
        first = number - number % 4 + 1
        entries = [one for n in range(first, number + 1) for one in batch(n)] if number % 4 else []
        return {"attempts": number, "entries": entries}
    if kind == "delete":
        return {"state": {"write": number}, "records": batch(number)} if number % 2 else None
    asked = (number + 1) // 2
    return {f"{KEY}.turn-1.s0.c{n}": f"write {2 * n}" if 2 * n <= number else None for n in range(1, asked + 1)}


async def state_of(stores: Stores, kind: str) -> Any:
    """Return what is stored, in the form of `state_after`."""
    if kind == "turn":
        journal = await stores.checkpoints.load(KEY)
        return journal and {"attempts": journal.head.attempts, "entries": list(journal.entries)}
    if kind == "commit":
        parts = {"records": await SESSIONS.read(stores, KEY), "entries": await CHECKPOINTS.read(stores, KEY)}
        return {name: seen and list(seen.values) for name, seen in parts.items()}
    if kind != "decide":
        transcript = await stores.sessions.load(KEY)
        return transcript and {"state": transcript.state, "records": list(transcript.records)}
    found: dict[str, str | None] = {}
    while True:
        key = f"{KEY}.turn-1.s0.c{len(found) + 1}"
        approval = await stores.approvals.get(key)
        if approval is None:
            return found
        found[key] = (approval.decision.note or approval.status) if approval.decision else None
