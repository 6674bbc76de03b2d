"""Inputs that join a turn whose process dies, or whose store fails at any write: what was accepted is kept."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from core.tests.joining_world import Gate, Talk, begun, joined, policies, settled
from core.tests.processes import another, dead, elsewhere

from perdure import AgentStore, TurnResult
from perdure.errors import SessionConflictError, StoreUnavailableError
from perdure.runtime.turns import TurnPolicy
from perdure_conformance.interception import Call, Died, Interception, at
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


# --- crashes ---


class Story:
    """A turn that two inputs join, one while its tool runs and one while its last response is on its way."""

    TEXTS = ("work", "early", "late")

    def __init__(self, store: AgentStore, policy: TurnPolicy) -> None:
        self.store = store
        self.policy: TurnPolicy = policy

    async def live(self, interception: Interception, *, atomic: bool) -> list[BaseException | TurnResult]:
        """Tell it in a process of its own, and return what became of the three calls."""
        talk = Talk(another(self.store, interception, process=dead(), atomic=atomic))
        tool_gate, model_gate = Gate(), Gate()
        talk.in_tool = tool_gate

        async def last() -> None:
            if len(talk.asked) == 2:
                await model_gate()

        talk.after_delta = last
        calls = [asyncio.create_task(talk.session().send("work", input_id="work"))]
        for gate, text in ((tool_gate, "early"), (model_gate, "late")):
            await reached(gate, calls[0])
            calls.append(asyncio.create_task(talk.session(self.policy).send(text, input_id=text)))
            await settled(calls[-1])
            gate.opened.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    async def kept(self) -> list[str]:
        """Return the inputs that are in the journal or in the transcript."""
        found, transcript = await self.store.checkpoints.load("s"), await self.store.sessions.load("s")
        records = [*([] if transcript is None else transcript.records), *([] if found is None else found.entries)]
        return list(dict.fromkeys(record["input_id"] for record in records if "input_id" in record))

    async def check(self, kept: Sequence[str], outcomes: Sequence[object]) -> None:
        """Check what is left in the end: each input that was kept, once, in its place, and nothing open."""
        talk = Talk(self.store)
        texts = await talk.texts()
        assert [text for text in texts if text in self.TEXTS] == list(kept)
        for text, outcome in zip(self.TEXTS, outcomes, strict=True):
            assert text in kept or not isinstance(outcome, TurnResult), f"{text} was answered, and is lost"
        transcript = await self.store.sessions.load("s")
        assert transcript is not None
        roles = [record["message"]["role"] for record in transcript.records]
        for place, role in enumerate(roles):
            if role == "tool":
                assert roles[place - 1] == "assistant"  # nothing has come between a call and its result
        found = await self.store.checkpoints.load("s")
        assert found is None or (found.head.status, found.entries) == ("idle", ())
        assert sum("finish_reason" in record for record in transcript.records) == len(
            {record["run_id"] for record in transcript.records}
        )


async def reached(gate: Gate, task: asyncio.Task[Any]) -> None:
    """Wait until a gate is reached, or the turn has ended without it."""
    waiting = asyncio.create_task(gate.reached.wait())
    await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


DEATHS = ("die-before", "die-after")


@policies
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("outcome", [*DEATHS, "unavailable", "lost", "unknown"])
@pytest.mark.parametrize("odd", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["odd", "even"])
async def test_no_accepted_input_is_lost_whatever_write_fails(
    store: AgentStore, policy: TurnPolicy, atomic: bool, outcome: str, odd: bool
) -> None:
    """The user repeats each call after every second of the faults, and only resumes after the others."""
    for number in itertools.count(1):
        again = (number % 2 == 1) == odd
        story, interception = Story(store, policy), at(number, outcome)
        try:
            outcomes = await story.live(interception, atomic=atomic)
            kept = await story.kept()
            talk = Talk(another(store))
            if again:  # the user of each call repeats it
                kept = [*kept, *[text for text in Story.TEXTS if text not in kept]]
                for text in Story.TEXTS:
                    await talk.session().send(text, input_id=text)
            else:
                await talk.finish()
            if kept:
                await story.check(kept, outcomes)
        except BaseException as error:
            error.add_note(f"{outcome} at write {number} of {[str(call) for call in interception.calls]}")
            raise
        await store.delete_session("s")
        if len(interception.calls) < number:
            assert number > 8
            return


@policies
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("outcome", DEATHS)
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
async def test_no_accepted_input_is_lost_when_the_recovery_dies_too(
    store: AgentStore, policy: TurnPolicy, atomic: bool, outcome: str, every: int
) -> None:
    runs = 0
    for number in range(4, 16, every):
        for second in itertools.count(1):
            story = Story(store, policy)
            outcomes = await story.live(at(number, outcome), atomic=atomic)
            recovery = at(second, outcome)
            kept = await story.kept()
            try:
                session = Talk(another(store, recovery, process=dead(), atomic=atomic)).session()
                while await session.resume() is not None:
                    pass
            except Died:
                runs += 1
            await Talk(another(store)).finish()
            if kept:
                await story.check(kept, outcomes)
            await store.delete_session("s")
            if len(recovery.calls) < second:
                break
    assert runs > 5


async def test_an_input_that_was_not_taken_is_not_kept(store: AgentStore) -> None:
    interception = Interception()
    talk = Talk(another(store, interception))
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    number = len(interception.calls) + 1

    async def before(call: Call) -> None:
        if call.number == number:
            raise StoreUnavailableError("write", "key", "the test says so")

    interception.before = before
    with pytest.raises(StoreUnavailableError):
        await talk.session("queue").send("more")
    gate.opened.set()
    assert (await task).text == "re: worked"  # the turn goes on
    assert await talk.texts() == ["work", "", "worked", "re: worked"]


@policies
async def test_a_turn_without_a_checkpoint_store_takes_inputs(store: AgentStore, policy: TurnPolicy) -> None:
    talk = Talk(AgentStore(sessions=store.sessions, approvals=store.approvals, clock=store.clock))
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    more = await joined(talk, "more", policy)
    last = talk.after_delta = Gate()
    gate.opened.set()
    await last.reached.wait()
    late = await joined(talk, "late", policy)
    last.opened.set()
    assert await more == await task
    assert (await late).text == "re: late"


# --- dropped and taken over ---


async def test_a_turn_that_another_host_has_dropped_took_its_inputs_along(
    store: AgentStore, clock: ManualClock
) -> None:
    sleeper = Talk(another(store, process=elsewhere()))
    gate = sleeper.in_tool = Gate()
    task = await begun(gate, sleeper.session().send("work"))
    more = await joined(sleeper, "more", "queue")
    assert await Talk(store).session().discard_pending(force=True)
    gate.opened.set()
    with pytest.raises(SessionConflictError):
        await task
    with pytest.raises(SessionConflictError):
        await more
    assert await sleeper.texts() == []


async def test_an_input_of_a_turn_that_was_lost_opens_one(store: AgentStore) -> None:
    """The one who runs the turn does not know yet that it was dropped; the input finds out."""
    sleeper = Talk(another(store, process=elsewhere()))
    gate = sleeper.in_tool = Gate()
    task = await begun(gate, sleeper.session().send("work"))
    assert await Talk(store).session().discard_pending(force=True)
    more = await joined(sleeper, "more", "queue")
    gate.opened.set()
    with pytest.raises(SessionConflictError):
        await task
    assert (await more).text == "re: more"
    assert await sleeper.texts() == ["more", "re: more"]


async def test_an_input_of_a_turn_that_another_host_has_saved(store: AgentStore, clock: ManualClock) -> None:
    sleeper = Talk(another(store, process=elsewhere()))
    gate = sleeper.in_tool = Gate()
    task = await begun(gate, sleeper.session().send("work"))
    more = await joined(sleeper, "more", "queue")
    clock.advance(timedelta(hours=1))
    assert await Talk(store).finish() == ["work", "", "worked", "more", "re: more"]
    gate.opened.set()
    assert await more == await task
    assert (await more).text == "re: more"
