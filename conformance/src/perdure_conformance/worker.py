"""The process at the other end of a `Worker`: reads one command a line, and answers one line.

Run as `python -m perdure_conformance.worker URL`. The URL is a store URL, or `python:FILE:FUNCTION:TEXT` for a store that
no plugin offers: the function of that file gets the text and returns an awaitable of the bundle. Or it is
`class:FILE:CLASS:TEXT`, for the test class of a store.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from operator import attrgetter
from typing import Any, cast

from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import PerdureError
from perdure_conformance.parts import Stores, request
from perdure_conformance.storm import storm


def open_by(url: str) -> Awaitable[Stores]:
    """Open the store that a URL, or a function of a Python file, names."""
    kind, _, rest = url.partition(":")
    if kind not in ("python", "class"):
        import perdure

        return perdure.open_store(url)
    file, name, text = rest.split(":", 2)
    specification = importlib.util.spec_from_file_location("perdure_conformance_target", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    found = attrgetter(name)(module)
    if kind == "python":
        return cast("Awaitable[Stores]", found(text))
    from perdure_conformance.testing import open_by_class

    return open_by_class(found, text)


def say(answer: object) -> None:
    """Answer one line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def append(stores: Stores, key: str, records: list[Any], expected_version: int | None) -> object:
    """Append to a transcript."""
    return await stores.sessions.append(key, records, expected_version=expected_version)


async def turn(stores: Stores, key: str, entries: list[Any], expected_version: int | None, owner: str) -> object:
    """Append to a turn journal, as its owner."""
    head = CheckpointHead("in-progress", owner=owner)
    return await stores.checkpoints.append(key, entries, expected_version=expected_version, head=head)


async def load(stores: Stores, key: str) -> object:
    """Read a transcript."""
    found = await stores.sessions.load(key)
    return None if found is None else {"version": found.version, "records": list(found.records)}


async def create(stores: Stores, key: str) -> object:
    """Create a pending approval."""
    return (await stores.approvals.create(request(key))).version


async def decide(stores: Stores, key: str, note: str, approved: bool) -> object:
    """Decide an approval."""
    decided = await stores.approvals.decide(key, approved=approved, note=note)
    assert decided.decision is not None
    return decided.decision.note


async def fork(stores: Stores, key: str) -> object:
    """Use the store in a forked child, and tell what came of it."""
    await stores.sessions.append(key, [{"by": "parent"}])
    reading, writing = os.pipe()
    if os.fork() == 0:
        answer = asyncio.run(_answer(append(stores, key, [{"by": "child"}], None)))
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as child:
        told = child.read()
    await asyncio.to_thread(os.wait)
    return json.loads(told)


async def _answer(call: Awaitable[object]) -> object:
    try:
        return await call
    except PerdureError as error:
        return {"error": type(error).__name__, "says": str(error)}
    except Exception as error:  # noqa: BLE001 - the law judges what escaped
        return {"error": f"{type(error).__module__}.{type(error).__name__}", "says": str(error)}


COMMANDS: dict[str, Callable[..., Awaitable[object]]] = {
    "append": append,
    "turn": turn,
    "load": load,
    "create": create,
    "decide": decide,
    "fork": fork,
}


def commands() -> Iterator[dict[str, Any]]:
    """Read commands until the other end closes."""
    for line in sys.stdin:
        yield json.loads(line)


async def serve(url: str) -> None:
    """Answer commands; the store opens at the first, and is left unclosed at `leave`."""
    stores: Stores | None = None
    for command in commands():
        name = command.pop("command")
        if name == "leave":
            return
        if stores is None:
            opened = await _answer(open_by(url))
            if isinstance(opened, dict):
                say(opened)
                continue
            stores = cast("Stores", opened)
        if name == "close":
            await stores.close()
            return
        if name == "storm":
            await storm(stores, command["kind"], command["stop"], say)
            continue
        say("open" if name == "open" else await _answer(COMMANDS[name](stores, **command)))


if __name__ == "__main__":
    say("ready")
    asyncio.run(serve(sys.argv[1]))
