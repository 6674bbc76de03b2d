"""Promise 4, server kill: what a server acknowledged is there when it was killed and started again, and clients go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from perdure.errors import OutcomeUnknownError, StoreUnavailableError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import NotRunError, broken, equal
from perdure_conformance.laws.acknowledged import all_there, first_writes
from perdure_conformance.laws.many_writers import Writers
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.laws.storms import law_of_storm
from perdure_conformance.parts import LISTS, SESSIONS, WritablePart
from perdure_conformance.storm import COUNTED
from perdure_conformance.target import Place

T = TypeVar("T")

CLIENTS = 6
"""How many calls a client makes at once, so that it has several connections."""
TRIES = CLIENTS + 2
"""How often a call may tell that the store is unavailable: each of the connections may be found dead once."""
ANSWERS = (1, 20, 50)
"""After how many answers a server is killed in the middle of a storm."""


def killer(bench: Bench) -> Callable[[Place], Awaitable[None]]:
    """Return what kills the server of a place, while the event loop goes on, and returns when it serves again."""
    kill = bench.target.kill_server
    if kill is None:
        raise NotRunError("server kill is not tested: the target tells no way to kill a server")
    bench.needs_reopening()

    async def killed(place: Place) -> None:
        noted = bench.log.begin(f"the server of {place.name} is killed")
        await asyncio.to_thread(kill, place)
        noted.says("it serves again")

    return killed


async def survives_server_kill(bench: Bench, kind: str) -> None:
    """Kill the server behind the n-th write, and compare what is found then."""
    kill = killer(bench)
    for count in bench.effort.sweep(range(1, COUNTED + 1)):
        place = bench.another_place()
        client = await bench.open(place)
        versions = await first_writes(client, kind, count)
        await kill(place)
        await all_there(bench, place, kind, versions, "whose server was killed after")
        await client.close()


@law_of_storm("append", "survives-server-kill")
async def append_survives_server_kill(bench: Bench) -> None:
    """Every batch that a server acknowledged is there after it was killed, and the version goes on."""
    await survives_server_kill(bench, "append")


@law_of_storm("replace", "survives-server-kill")
async def replace_survives_server_kill(bench: Bench) -> None:
    """A replaced session has its new content, and nothing else, after its server was killed."""
    await survives_server_kill(bench, "replace")


@law_of_storm("delete", "survives-server-kill")
async def delete_survives_server_kill(bench: Bench) -> None:
    """A deleted session stays deleted after its server was killed, and one that was created again stays."""
    await survives_server_kill(bench, "delete")


@law_of_storm("turn", "survives-server-kill")
async def turn_survives_server_kill(bench: Bench) -> None:
    """Head and entries of a turn journal are those of its last acknowledged write after its server was killed."""
    await survives_server_kill(bench, "turn")


@law_of_storm("decide", "survives-server-kill")
async def decision_survives_server_kill(bench: Bench) -> None:
    """Every request and decision that a server acknowledged is there after it was killed."""
    await survives_server_kill(bench, "decide")


@law_of_each(
    "answers-hold-through-server-kill", parts=LISTS, needs=("durable",), promise=9, timeout=60, methods=["write"]
)
async def answers_hold_through_server_kill(bench: Bench, part: WritablePart) -> None:
    """Of writes under way when a server is killed: an answer means written whole and once, a refusal not at all, an unknown outcome at most once."""
    kill = killer(bench)
    for answers in bench.effort.sweep(ANSWERS):
        place = bench.another_place()
        writers = Writers(part, [await bench.open(place) for _ in range(2)], answers)
        await writers.write_through(partial(kill, place))
        await writers.check(await bench.open(place))


@law(
    "sessions-client-outlives-server-kill",
    parts=[SESSIONS],
    needs=("durable",),
    promise=9,
    timeout=60,
    methods=["sessions.load"],
)
async def client_outlives_server_kill(bench: Bench) -> None:
    """A client that was open when its server was killed tells so by a typed error, or goes on; it needs no new opening."""
    kill, store = killer(bench), bench.store
    keys = [f"s{number}" for number in range(CLIENTS)]
    versions = await asyncio.gather(*(SESSIONS.make(store, key) for key in keys))
    for number in bench.effort.sweep(range(1, 3)):
        await kill(bench.place)
        found = await asyncio.gather(*(served(partial(store.sessions.load, key)) for key in keys))
        told = [transcript and transcript.version for transcript in found]
        equal(told, list(versions), f"the versions that the client reads after kill {number}")
        versions = await asyncio.gather(
            *(appended(bench, key, version) for key, version in zip(keys, versions, strict=True))
        )


async def appended(bench: Bench, key: str, version: int) -> int:
    """Append with the client that was open; where the outcome is unknown, look what became of it."""

    async def append() -> int:
        try:
            return await bench.store.sessions.append(key, [{"at": version}], expected_version=version)
        except OutcomeUnknownError as error:
            found = await served(partial(bench.store.sessions.load, key))
            if found is not None and found.version == version + 1:
                return version + 1
            raise StoreUnavailableError("append", key, "it was not written") from error

    return await served(append)


async def served(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call until it is answered, as whoever is told that the store is unavailable does."""
    said = ""
    for _ in range(TRIES):
        try:
            return await call()
        except StoreUnavailableError as error:
            said = str(error)
    raise broken(f"expected the client to serve again, since its server does; {TRIES} calls said: {said}")
