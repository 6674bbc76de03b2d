"""Compactions over the store: whoever dies or sleeps in one, no message is lost, and none is there twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from perdure import Agent, Message, Session
from perdure.backend import Part as JournalPart
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.ownership.leases import Process
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, holds
from perdure_conformance.conversation_world import LAPSE
from perdure_conformance.interception import Call, Died, Interception, at
from perdure_conformance.laws.register import law
from perdure_conformance.laws.tapped import tapped
from perdure_conformance.laws.world import ALLOWED
from perdure_conformance.parts import PARTS, Stores

NEEDS: dict[str, Any] = {"parts": PARTS, "needs": ("list", "delete", "replace"), "timeout": 60.0}
INPUTS = ("m0", "m1", "m2")
LATER = "later"


def gist(messages: Sequence[Message]) -> str:
    """Return a summary that says to the letter what it stands for."""
    return f"<{'|'.join(message.text for message in messages)}>"


async def answer(request: ModelRequest) -> ModelResponse:
    """Answer an input."""
    return ModelResponse(text=f"did {request.messages[-1].text}")


def session(stores: Stores, pid: int, interception: Interception | None = None) -> Session:
    """Return the conversation as a process of a host of its own sees it."""
    store = tapped(stores, interception, process=Process(f"host-{pid}", "boot", "1", pid, "1"))
    return Agent(model=FunctionModel(answer), store=store).session("s1")


async def lived(bench: Bench) -> Stores:
    """Return a store at a fresh place with a conversation of three turns."""
    stores = await bench.open(bench.another_place())
    for given in INPUTS:
        await session(stores, 1).send(given)
    return stores


async def some_writes(bench: Bench) -> list[int]:
    """Return the numbers of the writes of a compaction that are tried; those to the transcript tell most."""
    undisturbed, stores = Interception(), await lived(bench)
    await session(stores, 2, undisturbed).compact(keep=1, summarize=gist)
    await holds_all(stores, INPUTS, "after a compaction that nobody disturbed")
    await stores.close()
    made = undisturbed.calls
    telling = [call.number for call in made if any(one.key.part == JournalPart.SESSIONS for one in call.operations)]
    return bench.effort.sweep([call.number for call in made], telling=telling)


async def holds_all(stores: Stores, inputs: Sequence[str], where: str) -> None:
    """Demand that each input and its answer is in the transcript or in its summary once, and that nothing is left open."""
    found = await stores.sessions.load("s1")
    assert found is not None
    messages = [Message.from_record(record["message"]) for record in found.records]
    told = "|".join(message.text for message in messages).replace("<", "|").replace(">", "|").split("|")
    texts = [text for given in inputs for text in (given, f"did {given}")]
    equal([text for text in told if text in texts], texts, f"{where}: what transcript and summary hold")
    turn = await stores.checkpoints.load("s1")
    equal(
        turn and (turn.head.status, turn.head.owner), ("idle", None), f"{where}: status and owner of the turn journal"
    )


@law("compaction-cut-anywhere-loses-nothing", **NEEDS)
async def cut_anywhere(bench: Bench) -> None:
    """A process dies before or after any write of a compaction: the next turn and the next compaction keep every message."""
    for outcome in ("die-before", "die-after"):
        for number in await some_writes(bench):
            stores = await lived(bench)
            with suppress(Died):
                await session(stores, 2, at(number, outcome)).compact(keep=1, summarize=gist)
            bench.clock.advance(LAPSE)
            await session(stores, 3).send(LATER)
            where = f"a compaction died at write {number} ({outcome}), and the next turn ran"
            await holds_all(stores, (*INPUTS, LATER), where)
            await session(stores, 3).compact(keep=1, summarize=gist)
            await holds_all(stores, (*INPUTS, LATER), f"{where}, and the next compaction")
            await stores.close()


@law("compaction-that-sleeps-loses-no-turn", **NEEDS)
async def sleeps_through_a_turn(bench: Bench) -> None:
    """A compaction that sleeps before any of its writes while another process runs a turn loses neither."""
    for number in await some_writes(bench):
        stores = await lived(bench)
        stands, wakes = asyncio.Event(), asyncio.Event()

        async def sleep(call: Call, number: int = number, events: Any = (stands, wakes)) -> None:
            if call.number == number:
                events[0].set()
                await events[1].wait()

        compacting = asyncio.create_task(session(stores, 2, Interception(before=sleep)).compact(keep=1, summarize=gist))
        standing = asyncio.create_task(stands.wait())
        await asyncio.wait({compacting, standing}, return_when=asyncio.FIRST_COMPLETED)
        standing.cancel()
        bench.clock.advance(LAPSE)
        await session(stores, 3).send(LATER)
        wakes.set()
        (outcome,) = await asyncio.gather(compacting, return_exceptions=True)
        where = f"a compaction slept before its write {number}, and a turn ran meanwhile"
        known = not isinstance(outcome, BaseException) or isinstance(outcome, ALLOWED)
        holds(known, f"{where}: it ended with {outcome!r:.200}")
        bench.clock.advance(LAPSE)
        await session(stores, 4).resume()
        await holds_all(stores, (*INPUTS, LATER), where)
        await stores.close()
