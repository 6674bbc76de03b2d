"""Promise 13: lifecycle. Closing ends use; another loop and a forked child are told; nothing keeps a process alive."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import PerdureError, StoreClosedError, UnsupportedOperationError, WrongLoopError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import NotClaimedError, NotRunError, all_of, broken, equal, holds, raises
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.parts import APPROVALS, PARTS, SESSIONS, Part, Stores, request
from perdure_conformance.processes import error_of

HEAD = CheckpointHead("in-progress")
Calls = dict[str, Callable[[], Awaitable[Any]]]


def every_call(store: Stores, part: Part) -> Calls:
    """Return a call of each method of a part, by name."""
    sessions, checkpoints, approvals = store.sessions, store.checkpoints, store.approvals
    calls: dict[str, Calls] = {
        "sessions": {
            "load": lambda: sessions.load("s1"),
            "append": lambda: sessions.append("s1", [{"n": 1}]),
            "replace": lambda: sessions.replace("s1", [], expected_version=None),
            "delete": lambda: sessions.delete("s1"),
            "list": sessions.list,
            "list of nothing": lambda: sessions.list(limit=0),
        },
        "checkpoints": {
            "load": lambda: checkpoints.load("s1"),
            "append": lambda: checkpoints.append("s1", [{"n": 1}], expected_version=None, head=HEAD),
            "replace": lambda: checkpoints.replace("s1", [], expected_version=None, head=HEAD),
            "delete": lambda: checkpoints.delete("s1"),
            "list": checkpoints.list,
            "list of nothing": lambda: checkpoints.list(limit=0),
        },
        "approvals": {
            "get": lambda: approvals.get(request().id),
            "create": lambda: approvals.create(request()),
            "decide": lambda: approvals.decide(request().id, approved=True),
            "cancel": lambda: approvals.cancel(request().id, reason="no"),
            "expire": lambda: approvals.expire(request().id),
            "delete": lambda: approvals.delete(request().id),
            "list": approvals.list,
            "list of nothing": lambda: approvals.list(limit=0),
        },
    }
    declared = getattr(store, part.name).capabilities
    optional = {"replace", "delete", "list"} - {
        name for name in ("replace", "delete", "list") if getattr(declared, name)
    }
    return {name: call for name, call in calls[part.name].items() if name.partition(" ")[0] not in optional}


@law_of_each("closed-store-refuses", promise=13, methods=["read"])
async def closed_store_refuses(bench: Bench, part: Part) -> None:
    """After close every method raises `StoreClosedError`."""
    await part.make(bench.store, part.key("s1"))
    await bench.store.close()
    for name, call in every_call(bench.store, part).items():
        await raises(StoreClosedError, f"{name} after close", call)


@law("sessions-close-twice-is-fine", parts=[SESSIONS], promise=13)
async def close_twice_is_fine(bench: Bench) -> None:
    """Closing again does nothing, also at once and when nothing was ever done with the store."""
    unused = await bench.open(bench.another_place())
    await bench.store.sessions.append("s1", [{"n": 1}])
    for store in (bench.store, unused):
        await asyncio.gather(store.close(), store.close())
        await store.close()


@law("sessions-close-answers-calls-under-way", parts=[SESSIONS], promise=13)
async def close_answers_calls_under_way(bench: Bench) -> None:
    """A call under way when the store is closed gets its answer or a typed error: it neither hangs nor ends cancelled."""
    for steps in (0, 1, 2, 3, 5, 8):
        place = bench.another_place()
        store = await bench.open(place)
        calls = [store.sessions.append("s1", [{"n": number}]) for number in range(3)]
        tasks = [asyncio.ensure_future(call) for call in (*calls, store.sessions.load("s2"))]
        for _ in range(steps):
            await asyncio.sleep(0)
        await store.close()
        outcomes = await all_of(list(tasks))
        for outcome in outcomes:
            fine = not isinstance(outcome, BaseException) or isinstance(outcome, PerdureError)
            holds(
                fine, f"a call that was under way for {steps} steps when the store was closed came to {outcome!r:.200}"
            )
        if bench.capabilities("sessions").durable:
            found = await (await bench.open(place)).sessions.load("s1")
            written = sum(isinstance(outcome, int) for outcome in outcomes)
            count = found.count if found else 0
            holds(count >= written, f"{written} appends were answered while the store was closed, {count} are there")


@law_of_each("closing-one-handle-leaves-the-other", promise=13)
async def closing_one_handle(bench: Bench, part: Part) -> None:
    """Closing one handle of a place leaves every other one open."""
    await part.make(bench.store, part.key("s1"))
    second = await bench.open()
    await bench.store.close()
    holds(await part.read(second, part.key("s1")) is not None, "the other handle finds nothing any more")
    await part.make(second, part.key("s2"))


@law_of_each("other-loop-is-refused", promise=13, methods=["read"])
async def other_loop_is_refused(bench: Bench, part: Part) -> None:
    """A store that is used from another event loop says so at once, and works on in its own."""
    await part.make(bench.store, part.key("s1"))
    for name, call in every_call(bench.store, part).items():
        error = await asyncio.to_thread(in_another_loop, call)
        if not isinstance(error, WrongLoopError):
            raise broken(f"{name} from another event loop: expected WrongLoopError, got {error!r:.200}")
    holds(await part.read(bench.store, part.key("s1")) is not None, "the store finds nothing in its own loop any more")


def in_another_loop(call: Callable[[], Awaitable[Any]]) -> object:
    """Return the answer or the error of a call that is made from a loop of its own."""

    async def made() -> object:
        try:
            return await asyncio.wait_for(call(), 5)
        except (PerdureError, RuntimeError, TimeoutError) as error:
            return error

    return asyncio.run(made())


@law("sessions-forked-child-is-refused", parts=[SESSIONS], promise=13, timeout=60)
async def forked_child_is_refused(bench: Bench) -> None:
    """A forked child that uses its parent's store is told so, and the parent works on."""
    if not hasattr(os, "fork"):
        raise NotRunError("this system does not fork")
    worker = await bench.worker()
    answer = await worker.call("fork", key="s1")
    equal(error_of(answer), "WrongLoopError", f"what a forked child gets from its parent's store: {answer}")
    answer = await worker.call("load", key="s1")
    equal(answer and answer.get("records"), [{"by": "parent"}], f"what the parent finds then: {answer}")


@law("sessions-unclosed-store-lets-go", parts=[SESSIONS], promise=13, timeout=60)
async def unclosed_store_lets_go(bench: Bench) -> None:
    """A store that was never closed does not keep its process alive, and the process ends without an error."""
    worker = await bench.worker()
    answer = await worker.call("append", key="s1", records=[{"n": 1}], expected_version=None)
    equal(error_of(answer), None, f"an append by another process: {answer}")
    equal(await worker.end("leave"), 0, "the exit code of a process that left its store unclosed")


@law("sessions-opening-and-closing-leaks-nothing", parts=[SESSIONS], promise=13)
async def opening_and_closing_leaks_nothing(bench: Bench) -> None:
    """Opening, using and closing many times leaves no thread, no task and no file descriptor behind."""
    await opened_and_closed(bench, 2)
    before = resources()
    await opened_and_closed(bench, 10)
    for name, count in resources().items():
        holds(
            count <= before[name], f"after ten more openings there are {count} {name}, where {before[name]} were before"
        )


async def opened_and_closed(bench: Bench, times: int) -> None:
    """Open the place, write and close it, so many times."""
    for turn in range(times):
        store = await bench.open(bench.place)
        await store.sessions.append("s1", [{"turn": turn}])
        await store.close()
    for _ in range(100):
        await asyncio.sleep(0)


def resources() -> dict[str, int]:
    """Count what an opening may leave behind; descriptors where the system tells."""
    gc.collect()
    folder = Path("/proc/self/fd")
    descriptors = {"file descriptors": len(list(folder.iterdir()))} if folder.exists() else {}
    return {"threads": threading.active_count(), "tasks": len(asyncio.all_tasks())} | descriptors


@law_of_each("undeclared-operation-refuses", promise=13, methods=["delete"])
async def undeclared_operation_refuses(bench: Bench, part: Part) -> None:
    """What a store does not declare it refuses, with its name and that of the operation."""
    declared = bench.capabilities(part.name)
    undeclared = [name for name in ("replace", "delete", "list") if not getattr(declared, name) and name in part.verbs]
    if not undeclared:
        raise NotClaimedError(f"{part.name} declares every operation")
    await part.make(bench.store, part.key("s1"))
    store = part.store(bench.store)
    calls: Calls = {
        "replace": lambda: store.replace("s1", [], expected_version=None),
        "delete": lambda: store.delete(part.key("s1")),
        "list": store.list,
    }
    for name in undeclared:
        error = await raises(UnsupportedOperationError, f"{name}, which is not declared", calls[name])
        equal(error.operation, name, "the operation that the error names")
    holds(await part.read(bench.store, part.key("s1")) is not None, "the key is gone after refused operations")


@law_of_each("declared-operation-works", promise=13, methods=["delete"])
async def declared_operation_works(bench: Bench, part: Part) -> None:
    """What a store declares it does: no declared operation is unsupported."""
    for name, call in every_call(bench.store, part).items():
        if name in ("decide", "cancel", "expire"):
            continue
        await part.delete(bench.store, part.key("s1")) if bench.capabilities(part.name).delete else None
        if name in ("replace", "delete", "get", "load"):
            await part.make(bench.store, part.key("s1"))
        try:
            await call()
        except UnsupportedOperationError as error:
            raise broken(f"{name} is declared, or required, but the store says: {error}") from error


@law("sessions-many-calls-at-once", parts=[SESSIONS], promise=13)
async def many_calls_at_once(bench: Bench) -> None:
    """Hundreds of calls at once are served, each with its own answer."""
    await all_of([bench.store.sessions.append(f"s{number}", [{"of": number}]) for number in range(100)])
    found = await asyncio.gather(*(bench.store.sessions.load(f"s{number % 100}") for number in range(300)))
    for number, one in enumerate(found):
        equal(one and one.session_id, f"s{number % 100}", "the session id of an answer among 300")
        equal(one and list(one.records), [{"of": number % 100}], "the records of an answer among 300")


@law("approvals-close-ends-all-parts", parts=PARTS, promise=13)
async def close_ends_all_parts(bench: Bench) -> None:
    """Closing the bundle closes all three parts, also those that were not used yet."""
    await APPROVALS.make(bench.store, APPROVALS.key("s1"))
    await bench.store.close()
    for part in PARTS:
        await raises(StoreClosedError, f"reading {part.name} after close", part.read, bench.store, part.key("s1"))
