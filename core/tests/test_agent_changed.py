"""A turn that goes on with another agent than the one that began it."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from core.tests.processes import another, die_at

from perdure import Agent, AgentStore, ToolCall, codec, tool
from perdure.errors import AgentChangedError, InvalidArgumentError, TurnFailedError
from perdure.models import FunctionModel, ModelError, ModelRequest, ModelResponse, ScriptedModel
from perdure.runtime.agent import OnChange
from perdure_conformance.interception import Interception

pytestmark = pytest.mark.anyio


@tool(idempotent=True)
async def look() -> str:
    return "seen"


@tool(idempotent=True, needs_approval=True)
async def sign() -> str:
    return "signed"


@tool(idempotent=True, name="look")
async def look_closer(what: str = "all") -> str:
    return f"seen {what}"


def agent(store: AgentStore, **options: Any) -> Agent:
    script: list[Any] = [[ToolCall("c1", "look")], "done", "more"]
    settings: dict[str, Any] = {"model": ScriptedModel(script), "tools": [look], "instructions": "Be kind."}
    return Agent(**{**settings, **options}, store=store)


CHANGES: dict[str, dict[str, Any]] = {
    "model": {"model": ScriptedModel([[ToolCall("c1", "look")], "done", "more"], name="other")},
    "instructions": {"instructions": "Be quick."},
    "no instructions": {"instructions": None},
    "tools": {"tools": [look, sign]},
    "schema": {"tools": [look_closer]},
}


async def begun(store: AgentStore) -> None:
    """Have a process die when its model has answered."""
    await die_at(store, 3, lambda used: agent(used).session("s").send("go"))


async def test_a_model_that_changes_the_schemas_that_it_is_told_changes_no_agent(store: AgentStore) -> None:
    """An adapter bends schemas to what its provider takes; a turn that was begun behind that goes on with the agent as it was."""
    seen: list[Any] = []

    async def answer(request: ModelRequest) -> ModelResponse:
        for schema in request.tools:
            seen.append(codec.copied(schema.parameters))
            schema.parameters["properties"]["what"].pop("title")
            schema.parameters["strict"] = True
        return ModelResponse("", [ToolCall("c", "look")] if request.messages[-1].role == "user" else [])

    def bending(used: AgentStore) -> Agent:
        return Agent(model=FunctionModel(answer), tools=[look_closer], store=used, on_change="error")

    first = bending(store)
    before = first.fingerprint
    await first.session("s").send("one")
    await die_at(store, 3, lambda used: first.using(used).session("s").send("two"))
    assert await bending(store).session("s").resume() is not None
    assert first.fingerprint == before
    assert all(schema == look_closer.parameters for schema in seen)


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_told_and_logged(
    any_store: AgentStore, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    await begun(any_store)
    changed = agent(any_store, **CHANGES[change])
    async with changed.session("s").stream("next") as run:
        events = [event async for event in run]
    resumed = next(event for event in events if event.type == "run.resumed")
    assert (resumed.agent_changed, resumed.attempt) == (True, 2)
    assert "the agent has changed" in caplog.text
    assert run.result.text == "more"


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_stops_a_turn_that_forbids_it(any_store: AgentStore, change: str) -> None:
    await begun(any_store)
    before = await any_store.checkpoints.load("s")
    changed = agent(any_store, on_change="error", **CHANGES[change])
    for act in (changed.session("s").resume, lambda: changed.session("s").send("next")):
        with pytest.raises(AgentChangedError):
            await act()
    assert await any_store.checkpoints.load("s") == before  # not taken, not counted, not marked as failed
    result = await agent(any_store, on_change="error").session("s").resume()
    assert result is not None
    assert result.text == "done"


async def test_a_change_stops_a_stream(store: AgentStore) -> None:
    await begun(store)
    events: list[Any] = []
    run = agent(store, on_change="error", instructions="Be quick.").session("s").stream("next")
    raised: Exception | None = None
    try:
        async with run:
            events.extend([event async for event in run])
    except AgentChangedError as error:
        raised = error
    assert [event.type for event in events] == ["error"]
    assert events[0].error is raised


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_ignored_by_who_says_so(
    store: AgentStore, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    await begun(store)
    async with agent(store, on_change="ignore", **CHANGES[change]).session("s").stream("next") as run:
        events = [event async for event in run]
    assert not next(event for event in events if event.type == "run.resumed").agent_changed
    assert "has changed" not in caplog.text


@pytest.mark.parametrize("policy", get_args(OnChange))
async def test_the_same_agent_has_not_changed(
    store: AgentStore, caplog: pytest.LogCaptureFixture, policy: OnChange
) -> None:
    await begun(store)
    async with agent(store, on_change=policy).session("s").stream("next") as run:
        events = [event async for event in run]
    assert not next(event for event in events if event.type == "run.resumed").agent_changed
    assert "has changed" not in caplog.text


@pytest.mark.parametrize("policy", get_args(OnChange))
async def test_a_call_whose_tool_is_gone_stops_the_turn(store: AgentStore, policy: OnChange) -> None:
    """An error by name: not a result for the model, which would be told that the call failed."""
    await begun(store)
    with pytest.raises(AgentChangedError, match="tool"):
        await agent(store, on_change=policy, tools=[]).session("s").resume()
    found = await store.checkpoints.load("s")
    assert found is not None
    assert [entry["kind"] for entry in found.entries if entry["kind"] == "tool"] == []
    if policy != "error":
        with pytest.raises(TurnFailedError):
            await agent(store, on_change=policy, tools=[]).session("s").send("next")
    result = await agent(store).session("s").resume()
    assert result is not None
    assert [message.text for message in result.messages] == ["go", "", "seen", "done"]


@pytest.mark.parametrize("mended", [[look], [look, sign]], ids=["the release before", "a new release"])
async def test_a_mended_release_tries_a_failed_turn_once_by_itself(any_store: AgentStore, mended: list[Any]) -> None:
    """It need not know that there is something to resume; one that fails as well says so from then on."""
    await begun(any_store)
    broken = agent(any_store, tools=[])
    with pytest.raises(AgentChangedError, match="no tool 'look'"):
        await broken.session("s").send("next")
    before = await any_store.checkpoints.load("s")
    for _ in range(2):
        with pytest.raises(TurnFailedError):
            await broken.session("s").send("next")
    assert await any_store.checkpoints.load("s") == before
    with pytest.raises(AgentChangedError, match="no tool 'look'"):
        await agent(any_store, tools=[sign]).session("s").send("next")
    with pytest.raises(TurnFailedError, match="after 3 attempt"):
        await agent(any_store, tools=[sign]).session("s").send("next")
    result = await agent(any_store, tools=mended).session("s").send("next")
    assert result.text == "more"
    texts = [message.text for message in await agent(any_store).session("s").load()]
    assert texts == ["go", "", "seen", "done", "next", "more"]


async def test_a_mended_release_that_forbids_changes_says_so(store: AgentStore) -> None:
    await begun(store)
    with pytest.raises(AgentChangedError, match="no tool 'look'"):
        await agent(store, tools=[]).session("s").send("next")
    before = await store.checkpoints.load("s")
    with pytest.raises(AgentChangedError, match="are not those that the turn began with"):
        await agent(store, tools=[look, sign], on_change="error").session("s").send("next")
    assert await store.checkpoints.load("s") == before
    assert (await agent(store, on_change="error").session("s").send("next")).text == "more"


async def test_a_release_that_was_the_first_to_fail_has_tried(store: AgentStore) -> None:
    broken = agent(store, model=ScriptedModel([]))
    with pytest.raises(ModelError):
        await broken.session("s").send("go")
    with pytest.raises(TurnFailedError, match="after 1 attempt"):
        await broken.session("s").send("next")


async def test_a_gated_call_whose_tool_is_gone(store: AgentStore) -> None:
    model = ScriptedModel([[ToolCall("c1", "sign")], "done"])
    waiting = await agent(store, model=model, tools=[sign]).session("s").send("go")
    with pytest.raises(AgentChangedError, match="sign"):
        await agent(store, model=model).approvals.resolve(waiting.approval_ids[0], approved=True)
    result = await agent(store, model=model, tools=[sign]).session("s").resume()  # the decision stands
    assert result is not None
    assert result.text == "done"


@pytest.mark.parametrize("policy", get_args(OnChange))
async def test_a_turn_that_is_only_to_be_saved_asks_nobody(store: AgentStore, policy: OnChange) -> None:
    interception = Interception()
    session = agent(another(store, interception, atomic=False)).session("s")
    writes = len(await _calls(session, interception))
    await store.delete_session("s")
    await die_at(store, writes - 1, lambda used: agent(used).session("s").send("go"), atomic=False)
    found = await store.checkpoints.load("s")
    assert found is not None
    assert found.head.status == "finished"
    result = await agent(store, on_change=policy, tools=[], instructions=None).session("s").resume()
    assert result is not None
    assert result.text == "done"


async def _calls(session: Any, interception: Interception) -> list[Any]:
    await session.send("go")
    return interception.calls


async def test_a_policy_that_there_is_not(store: AgentStore) -> None:
    with pytest.raises(InvalidArgumentError, match="on_change"):
        agent(store, on_change="panic")


async def test_a_submitted_turn_that_nobody_has_run_begins_with_whoever_takes_it(any_store: AgentStore) -> None:
    run_id = await Agent(model=ScriptedModel(["old"]), store=any_store, instructions="old").session("s").submit("go")
    late = Agent(model=ScriptedModel(["new"]), store=any_store, instructions="new", on_change="error")
    result = await late.session("s").resume()
    assert result is not None
    assert (result.run_id, result.text) == (run_id, "new")
