"""The process at the other end of a `Worker`: reads one command a line, and answers one line.

Its URL is a store URL, or `python:FILE:FUNCTION:TEXT` for a store that no plugin offers: the function of that file gets the
text and returns an awaitable of the bundle. Or it is `class:FILE:CLASS:TEXT`, for the test class of a store.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from operator import attrgetter
from types import ModuleType
from typing import Any, TextIO, cast

from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import PerdureError
from perdure_conformance.kill_points import SAYING, KillPoints
from perdure_conformance.parts import Stores, request
from perdure_conformance.storm import storm, storm_by_time, storm_cut

LONGEST = 60
"""How long a child may storm, in seconds: what became of a store that hangs is not to stay behind."""


def open_by(url: str) -> Awaitable[Stores]:
    """Open the store that a URL, or a function of a Python file, names."""
    return opener_of(url)()


def opener_of(url: str) -> Callable[[], Awaitable[Stores]]:
    """Return what opens the store that a URL, or a function of a Python file, names. Its modules are imported now."""
    kind, _, rest = url.partition(":")
    if kind not in ("python", "class"):
        import perdure

        return lambda: perdure.open_store(url)
    file, name, text = rest.split(":", 2)
    found = attrgetter(name)(module_of(file))
    if kind == "python":
        return lambda: cast("Awaitable[Stores]", found(text))
    from perdure_conformance.testing import open_by_class

    return lambda: open_by_class(found, text)


@functools.cache
def module_of(file: str) -> ModuleType:
    """Import a Python file."""
    specification = importlib.util.spec_from_file_location("perdure_conformance_target", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


_asked: TextIO
_answered: TextIO


def listen(descriptor: int) -> None:
    """Take commands from a socket, and answer on it; standard output is the store's."""
    global _asked, _answered
    _asked, _answered = os.fdopen(descriptor), os.fdopen(descriptor, "w", closefd=False)
    SAYING.append(_answered)


def say(answer: object) -> None:
    """Answer one line."""
    _answered.write(json.dumps(answer) + "\n")
    _answered.flush()


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


def storm_in_child(url: str, kind: str, **how: Any) -> object:
    """Let a forked child storm until it is killed, and tell by which signal. No store may be open here."""
    opener = opener_of(url)
    child = os.fork()
    if child:
        return {"ended": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}
    signal.alarm(LONGEST)
    say(asyncio.run(_answer(storming(opener(), kind, **how))))
    os._exit(1)


def storming(
    opening: Awaitable[Stores],
    kind: str,
    *,
    kill: list[int] | None = None,
    by_time: bool = False,
    directory: str | None = None,
    cut: list[int] | None = None,
) -> Awaitable[None]:
    """Return a storm: one that is cut, if it is told where the files are, or else killed."""
    if directory is not None:
        return storm_cut(opening, kind, directory, None if cut is None else (cut[0], cut[1]), say)
    if by_time:
        return storm_by_time(opening, kind, say)
    return storm(opening, kind, KillPoints(None if kill is None else (kill[0], kill[1])), say)


def import_all(modules: list[str]) -> object:
    """Import what a child has imported, so that the next ones need not: that would be points of its opening."""
    from perdure import plugins

    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    plugins.installed()  # it reads them once in a process
    gc.freeze()  # a collection in a child would copy all the memory of these modules
    return len(modules)


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
    for line in _asked:
        yield json.loads(line)


async def serve(url: str) -> None:
    """Answer commands; the store opens at the first that is no storm, and is left unclosed at `leave`."""
    stores: Stores | None = None
    for command in commands():
        name = command.pop("command")
        if name == "leave":
            return
        if name == "storm":
            say(storm_in_child(**command))
            continue
        if name == "import":
            say(import_all(**command))
            continue
        if stores is None:
            opened = await _answer(open_by(url))
            if isinstance(opened, dict):
                say(opened)
                continue
            stores = cast("Stores", opened)
        if name == "close":
            await stores.close()
            return
        say("open" if name == "open" else await _answer(COMMANDS[name](stores, **command)))
