"""What a person reads when something went wrong: the way out, who is in the way, and decisions that could never run."""

from __future__ import annotations

import pickle
import traceback
from uuid import uuid4

import pytest

from perdure import Agent, ToolCall, open_store, tool
from perdure.errors import InvalidArgumentError, InvalidIdError, SessionBusyError, StoreClosedError
from perdure.models import ScriptedModel

pytestmark = pytest.mark.anyio


def test_a_traceback_shows_the_hint_below_the_message() -> None:
    lines = traceback.format_exception_only(StoreClosedError("memory:"))
    assert lines == ["perdure.errors.StoreClosedError: memory: is closed\n", StoreClosedError.hint + "\n"]


def test_a_hint_that_the_message_has_already_is_not_shown_twice() -> None:
    error = InvalidIdError("session id", "a b", "no blanks", "Use a dash.")
    assert "".join(traceback.format_exception_only(error)).count("Use a dash.") == 1


def test_notes_are_kept_beside_the_hint_and_pickle() -> None:
    error = StoreClosedError("memory:")
    error.add_note("said by the test")
    again = pickle.loads(pickle.dumps(error))
    assert error.__notes__ == again.__notes__ == [StoreClosedError.hint, "said by the test"]


def test_a_busy_session_names_the_process_and_the_host() -> None:
    error = SessionBusyError("s", "vm/boot/4026/77/1234/ab12")
    assert "process 77 on vm" in str(error)
    assert error.owner == "vm/boot/4026/77/1234/ab12"


async def test_edited_arguments_that_do_not_fit_are_refused_before_they_are_decided() -> None:
    @tool(needs_approval=True)
    def pay(to: str, amount: int) -> str:
        return f"{amount} to {to}"

    async with open_store(f"memory:{uuid4().hex}") as store:
        model = ScriptedModel([[ToolCall("c1", "pay", {"to": "ann", "amount": 3})], "Paid."])
        agent = Agent(model=model, tools=[pay], store=store)
        waits = await agent.session("s").send("pay")
        for decide in (agent.approvals.decide, agent.approvals.resolve):
            with pytest.raises(InvalidArgumentError, match="amount"):
                await decide(waits.approval_ids[0], approved=True, arguments={"to": "ann", "amount": "many"})
        stored = await store.approvals.get(waits.approval_ids[0])
        assert stored is not None
        assert stored.status == "pending"
        result = await agent.approvals.resolve(
            waits.approval_ids[0], approved=True, arguments={"to": "bob", "amount": 1}
        )
        assert [message.text for message in result.messages if message.role == "tool"] == ["1 to bob"]


async def test_an_error_of_the_pending_turn_says_that_the_new_input_was_not_taken() -> None:
    async with open_store(f"memory:{uuid4().hex}") as store:
        session = Agent(model=ScriptedModel([ConnectionError("away"), "two"]), store=store).session("s")
        with pytest.raises(ConnectionError) as first:
            await session.send("one")
        assert not hasattr(first.value, "__notes__")
        with pytest.raises(ConnectionError) as second:
            await session.send("two")
        pending = await session.pending()
        assert pending is not None
        assert second.value.__notes__ == [f"The pending run {pending.run_id} raised this; the new input was not taken."]
