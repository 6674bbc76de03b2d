"""Structured logging: what is logged of a run, at which level, and that no content is."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from core.tests.command_line import Program

from perdure import Agent, AgentStore, ToolCall, tool
from perdure.events import CompactionDone, CompactionStarted, ContextCleared, RunDone, RunFailed, RunStarted
from perdure.models import FunctionModel, ModelRequest, ScriptedModel
from perdure.observers.event_log import log_event
from perdure_conformance.manual_clock import START

pytestmark = pytest.mark.anyio

COMMON: dict[str, Any] = {"run_id": "s.turn-1", "session_id": "s", "seq": 1, "at": START}


@tool(needs_approval=True)
def refund(to: str) -> str:
    """Refund somebody."""
    return "secret result"


def facts(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)["perdure"] for record in caplog.records if record.name == "perdure.runs"]


async def test_the_story_of_a_turn_is_logged_without_its_content(
    store: AgentStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="perdure.runs")
    model = ScriptedModel([[ToolCall("c1", "refund", {"to": "secret"})], "secret answer"])
    session = Agent(model=model, tools=[refund], store=store, name="support").session("s")
    result = await session.send("secret question")
    await store.decide(result.approval_ids[0], approved=True, note="secret note")
    done = await session.resume()
    assert done is not None
    told = facts(caplog)
    assert [(fact["event"], fact["run_id"], fact["session_id"]) for fact in told] == [
        (event, result.run_id, "s")
        for event in ("run.started", "approval.requested", "run.resumed", "approval.decided", "run.done")
    ]
    assert told[1]["approval_id"] == told[3]["approval_id"] == result.approval_ids[0]
    assert (told[1]["tool_name"], told[1]["kind"], told[1]["agent"]) == ("refund", "approve", "support")
    assert (told[2]["attempt"], told[2]["agent_changed"], told[3]["status"]) == (2, False, "approved")
    assert (told[4]["finish_reason"], told[4]["approval_ids"]) == ("stop", [])
    assert told[4]["usage"]["requests"] == done.usage.requests
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    written = json.dumps(told) + caplog.text
    assert "secret" not in written
    assert f"run resumed run_id={result.run_id} session_id=s resumed=True attempt=2" in caplog.text


async def test_a_failure_is_a_warning_with_the_name_of_the_error_alone(
    store: AgentStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: ModelRequest) -> NoReturn:
        raise TimeoutError("secret detail")

    caplog.set_level(logging.WARNING, logger="perdure.runs")
    with pytest.raises(TimeoutError):
        await Agent(model=FunctionModel(fail), store=store).session("s").send("hello")
    (told,) = facts(caplog)
    assert (told["event"], told["error"], told["retryable"]) == ("error", "TimeoutError", None)
    assert caplog.records[-1].levelno == logging.WARNING
    assert caplog.records[-1].exc_info is None
    assert "secret" not in caplog.text


def test_compaction_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="perdure.runs")
    log_event(CompactionStarted(**COMMON))
    log_event(CompactionDone(**COMMON, replaced=7, archive_id="s.archive-1"))
    log_event(CompactionDone(**COMMON, replaced=0, error="ModelError: secret"))
    told = facts(caplog)
    assert [(fact.get("replaced"), fact.get("archive_id"), fact.get("failed")) for fact in told] == [
        (None, None, None),
        (7, "s.archive-1", False),
        (0, None, True),
    ]
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.INFO, logging.WARNING]
    assert "secret" not in caplog.text


def test_what_is_not_logged_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    nothing: Any = None  # reading a fact of it would raise
    caplog.set_level(logging.WARNING, logger="perdure.runs")
    log_event(RunDone(**COMMON, result=nothing))
    log_event(ContextCleared(**COMMON))
    assert caplog.records == []
    caplog.set_level(logging.ERROR, logger="perdure.runs")
    log_event(RunFailed(**COMMON, error=nothing))
    assert caplog.records == []
    caplog.set_level(logging.INFO, logger="perdure.runs")
    with pytest.raises(AttributeError):
        log_event(RunDone(**COMMON, result=nothing))


def test_no_handler_is_installed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="perdure.runs")
    loggers = [logging.getLogger(name) for name in ("", "perdure", "perdure.runs")]
    before = [list(logger.handlers) for logger in loggers]
    log_event(replace(RunStarted(**COMMON), resumed=True))
    assert [logger.handlers for logger in loggers] == before


FAILS = """
import asyncio, logging, sys
from perdure import Agent, open_store
from perdure.models import FunctionModel

async def away(request):
    raise ConnectionError("away")

async def main():
    async with open_store("memory:") as store:
        await Agent(model=FunctionModel(away), store=store).session("s").send("hello")

if "log" in sys.argv:
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
try:
    asyncio.run(main())
except ConnectionError:
    pass
"""


def test_nothing_is_printed_unless_the_application_sets_logging_up(tmp_path: Path) -> None:
    python = Program("python", tmp_path, {"PERDURE_OBSERVERS_OFF": "otel"})
    assert python("-c", FAILS, code=0).err == ""
    assert python("-c", FAILS, "log", code=0).err.startswith("WARNING perdure.runs run failed run_id=s.turn-")


def test_commands_show_logged_warnings_but_for_the_runs_that_they_tell_of(tmp_path: Path) -> None:
    code = (
        "import logging; from perdure.cli.application import _show_logged_warnings; _show_logged_warnings()\n"
        "for name in ('runs', 'observers'): logging.getLogger(f'perdure.{name}').warning('about %s', name)"
    )
    assert Program("python", tmp_path, {})("-c", code, code=0).err == "perdure: about observers\n"
