"""Endless writing, for a process that will be killed in the middle of it, and what must be stored afterwards.

The n-th write of a storm and the state after it follow from n alone, so that what a killed process acknowledged tells
what must be there: the state after the last acknowledged write, or after the one that was under way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.contracts.checkpoints import CheckpointHead
from perdure_conformance.parts import Stores, request

KEY = "storm"
BATCH = 12


def batch(number: int) -> list[dict[str, Any]]:
    """Return the records of the n-th write: several, so that a torn batch shows."""
    return [{"write": number, "place": place, "text": "x" * 100} for place in range(BATCH)]


async def storm(stores: Stores, kind: str, stop: int, say: Callable[[object], None]) -> None:
    """Write until `stop` writes are done, 0: until killed, and say the number of each that was acknowledged."""
    number = 0
    version = 0
    while number != stop or not stop:
        number += 1
        version = await WRITERS[kind](stores, number, version)
        say(number)


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


WRITERS = {
    "append": write_append,
    "replace": write_replace,
    "turn": write_turn,
    "decide": write_decide,
    "delete": write_delete,
}


def state_after(kind: str, number: int) -> Any:
    """Return what `state_of` must find after the n-th write of a storm."""
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
    if kind != "decide":
        transcript = await stores.sessions.load(KEY)
        return transcript and {"state": transcript.state, "records": list(transcript.records)}
    found: dict[str, str | None] = {}
    while True:
        key = f"{KEY}.turn-1.s0.c{len(found) + 1}"
        approval = await stores.approvals.get(key)
        if approval is None:
            return found
        found[key] = approval.decision.note if approval.decision else None
