"""Dying at any call: after it, what is stored is the state before a store call or after it, never one in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from perdure.contracts.checkpoints import CheckpointHead, CheckpointReplace
from perdure.contracts.sessions import SessionAppend
from perdure.errors import OutcomeUnknownError, StoreUnavailableError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import difference, equal
from perdure_conformance.interception import OUTCOMES, Died, Interception, at
from perdure_conformance.laws.register import law
from perdure_conformance.laws.tapped import tapped
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, PARTS, SESSIONS, Part, Stores, request

Step: TypeAlias = Callable[[Stores], Awaitable[Any]]
Script: TypeAlias = Callable[[Stores, str], list[Step]]


def sessions_script(stores: Stores, key: str) -> list[Step]:
    """Create, append, replace, keep, delete and create again."""
    sessions = stores.sessions
    able = sessions.capabilities
    steps: list[Step] = [
        lambda s: s.sessions.append(key, [{"n": 1}, {"n": 2}, {"n": 3}], state={"title": "a"}, scope="ann"),
        lambda s: s.sessions.append(key, [{"n": 4}, {"n": 5}]),
        lambda s: s.sessions.append(key, [], state={"title": "b"}),
        lambda s: s.sessions.append(key, [{"n": 6}], scope="ann"),
    ]
    if able.replace:
        steps += [
            lambda s: s.sessions.replace(key, [{"new": 1}, {"new": 2}], keep=2, expected_version=None),
            lambda s: s.sessions.replace(key, [{"all": 1}], expected_version=None, state={"title": "c"}),
        ]
    if able.delete:
        steps += [lambda s: s.sessions.delete(key), lambda s: s.sessions.append(key, [{"again": 1}, {"again": 2}])]
    return steps


def checkpoints_script(_: Stores, key: str) -> list[Step]:
    """Open a turn, go on, beat, close it, open the next one, and delete."""

    def head(status: str, attempts: int) -> CheckpointHead:
        return CheckpointHead(status, attempts=attempts)

    return [
        lambda s: s.checkpoints.append(key, [{"input": 1}], expected_version=0, head=head("in-progress", 1)),
        lambda s: s.checkpoints.append(key, [{"a": 1}, {"b": 1}], expected_version=None, head=head("in-progress", 2)),
        lambda s: s.checkpoints.append(key, [], expected_version=None, head=head("ready", 3)),
        lambda s: s.checkpoints.replace(key, [], expected_version=None, head=head("idle", 4)),
        lambda s: s.checkpoints.replace(key, [{"c": 1}, {"d": 1}], expected_version=None, head=head("finished", 5)),
        lambda s: s.checkpoints.delete(key),
        lambda s: s.checkpoints.append(key, [{"next": 1}], expected_version=0, head=head("in-progress", 6)),
    ]


def approvals_script(stores: Stores, key: str) -> list[Step]:
    """Ask, decide, cancel, and delete."""
    one, other = f"{key}.turn-1.s0.c0", f"{key}.turn-1.s0.c1"
    steps: list[Step] = [
        lambda s: s.approvals.create(request(one)),
        lambda s: s.approvals.create(request(other)),
        lambda s: s.approvals.decide(one, approved=True, note="n", arguments={"sum": 2}, decided_by="ann"),
        lambda s: s.approvals.cancel(other, reason="no"),
    ]
    if stores.approvals.capabilities.delete:
        steps.append(lambda s: s.approvals.delete(one))
    return steps


def closing_script(_: Stores, key: str) -> list[Step]:
    """Open a turn, and close it together with its transcript."""

    async def close(stores: Stores) -> None:
        session, journal = [await part.read(stores, key) for part in (SESSIONS, CHECKPOINTS)]
        assert session is not None
        assert journal is not None
        append = SessionAppend(key, [{"turn": 1}, {"turn": 2}], session.version)
        await stores.write(append, CheckpointReplace(key, [], CheckpointHead("idle"), journal.version))

    return [
        lambda s: s.sessions.append(key, []),
        lambda s: s.checkpoints.append(key, [{"n": 1}], expected_version=0, head=CheckpointHead("in-progress")),
        close,
    ]


async def shown(store: Stores, parts: tuple[Part, ...], name: str) -> dict[str, Any]:
    """Return what a reader sees, without what is drawn anew each time."""
    seen: dict[str, Any] = {}
    for part in parts:
        for key in (f"{name}.turn-1.s0.c0", f"{name}.turn-1.s0.c1") if part is APPROVALS else (name,):
            found = await part.read(store, key)
            seen[f"{part.name}{key.removeprefix(name)}"] = found and _without_versions(found.whole, found.values)
    return seen


def _without_versions(found: Any, values: tuple[Any, ...]) -> dict[str, Any]:
    head = getattr(found, "head", None)
    return {
        "values": list(values),
        "state": getattr(found, "state", None),
        "scope": getattr(found, "scope", None),
        "head": head and head.to_record(),
        "decision": getattr(found, "decision", None),
        "status": getattr(found, "status", None),
        "rewritten": bool(getattr(found, "rewritten", 0)),
    }


async def states_of(store: Stores, script: Script, parts: tuple[Part, ...]) -> tuple[list[Any], int]:
    """Run a script undisturbed; return what is shown before it and after each step, and how many writes it made."""
    states, writes = [await shown(store, parts, "whole")], Interception()
    undisturbed = tapped(store, writes)
    for step in script(store, "whole"):
        await step(undisturbed)
        states.append(await shown(store, parts, "whole"))
    return states, len(writes.calls)


async def cut_everywhere(bench: Bench, script: Script, *parts: Part) -> None:
    """Let the n-th write die before and after it, fail and lie, for every n, and compare what is shown."""
    store = bench.store
    states, writes = await states_of(store, script, parts)
    for outcome in OUTCOMES:
        for number in bench.effort.sweep(range(1, writes + 1)):
            key = f"{outcome}-{number}"
            made, ended = await run_cut(store, script(store, key), number, outcome)
            found = await shown(store, parts, key)
            told = outcome in ("die-before", "unavailable")
            allowed = [states[-1]] if ended else states[made : made + (1 if told else 2)]
            if all(difference(found, one, "") is not None for one in allowed):
                equal(found, allowed[0], f"what is stored when write {number} is {outcome}, in step {made + 1}")


async def run_cut(store: Stores, script: list[Step], number: int, outcome: str) -> tuple[int, bool]:
    """Run a script until its n-th write goes wrong; return how many steps were done, and whether it went to its end."""
    cut = tapped(store, at(number, outcome))
    for made, step in enumerate(script):
        try:
            await step(cut)
        except (Died, StoreUnavailableError, OutcomeUnknownError):
            return made, False
    return len(script), True


@law(
    "sessions-cut-anywhere-is-old-or-new", parts=[SESSIONS], promise=3, methods=["sessions.append", "sessions.replace"]
)
async def sessions_cut_anywhere(bench: Bench) -> None:
    """Wherever a process dies, or its backend fails, a transcript is as before a call or as after it."""
    await cut_everywhere(bench, sessions_script, SESSIONS)


@law(
    "checkpoints-cut-anywhere-is-old-or-new",
    parts=[CHECKPOINTS],
    promise=3,
    methods=["checkpoints.append", "checkpoints.replace"],
)
async def checkpoints_cut_anywhere(bench: Bench) -> None:
    """Wherever a process dies, or its backend fails, a turn journal is as before a call or as after it, head and all."""
    await cut_everywhere(bench, checkpoints_script, CHECKPOINTS)


@law("approvals-cut-anywhere-is-old-or-new", parts=[APPROVALS], promise=3, methods=["approvals.decide"])
async def approvals_cut_anywhere(bench: Bench) -> None:
    """Wherever a process dies, or its backend fails, an approval is as before a call or as after it."""
    await cut_everywhere(bench, approvals_script, APPROVALS)


@law(
    "atomic-write-cut-anywhere-is-both-or-none", parts=PARTS[:2], needs=("atomic",), promise=3, methods=["bundle.write"]
)
async def both_cut_anywhere(bench: Bench) -> None:
    """Wherever a process dies, or its backend fails, a turn is closed and in the transcript, or neither."""
    await cut_everywhere(bench, closing_script, SESSIONS, CHECKPOINTS)
