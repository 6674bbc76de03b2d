"""`perdure resume`: finish what is pending, here and now."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.bundle import AgentStore
from perdure.cli.agent_target import AgentArgument, load_agent
from perdure.cli.conversations import key_of, read_conversation
from perdure.cli.exit_codes import ExitCode
from perdure.cli.output import CommandError, JsonOption, explained, print_json, print_table, say
from perdure.cli.store_url import OwnStoreOption, opened
from perdure.contracts.checkpoints import IDLE
from perdure.contracts.ids import is_run
from perdure.contracts.store import describe
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.runtime.agent import Agent
    from perdure.runtime.results import TurnResult


def resume(
    agent: AgentArgument,
    conversation: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="A session id or a run id. Default: all turns of the agent that nobody runs."
        ),
    ] = None,
    store: OwnStoreOption = None,
    rebase: Annotated[
        bool, typer.Option("--rebase", help="Append the turn behind records that came in since it began. Needs ID.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Finish pending turns with an agent, and exit with 1 if one still waits, is run elsewhere, or fails.

    With an ID that turn is taken up whatever its last error was. Without, it is one sweep of `perdure worker`: turns that
    failed for good are left alone.
    """
    if rebase and conversation is None:
        raise typer.BadParameter("--rebase needs an ID.")
    if conversation is None:
        result, code = asyncio.run(_all(agent, store))
    else:
        result, code = asyncio.run(_one(agent, store, conversation, rebase=rebase))
    if as_json:
        print_json("resume", result, code=code)
    elif conversation is None:
        _print_all(result)
    else:
        _print_one(result)
    raise typer.Exit(code)


@asynccontextmanager
async def _ready(target: str, url: str | None) -> AsyncIterator[tuple[Agent, AgentStore]]:
    """Load the agent, and give it the store that was named, or leave it its own."""
    agent = await load_agent(target)
    if url is None and agent.store is not None:
        async with agent.store:
            yield agent, agent.store
        return
    async with opened(url) as store:
        yield agent.using(store), store


# --- one ---


async def _one(target: str, url: str | None, given: str, *, rebase: bool) -> tuple[dict[str, Any], ExitCode]:
    from perdure.runtime.results import AWAITING  # --help does without

    async with _ready(target, url) as (agent, store):
        found = await read_conversation(store, key_of(given))
        found.require(given)
        if found.journal is None or found.journal.head.status == IDLE:
            return {"conversation": found.key, "turn": None}, ExitCode.DONE
        run_id = found.journal.head.run_id or found.key
        try:
            if is_run(found.key):
                turn = await agent.resume(run_id)
            else:
                turn = await agent.session(found.key).resume(rebase=rebase)
        except PerdureError:
            raise
        except Exception as error:
            traceback.print_exception(error)
            raise CommandError(
                f"run {run_id} stopped by {describe(error)}, and stays pending", "Mend the cause and resume it again."
            ) from error
    if turn is None:
        return {"conversation": found.key, "turn": None}, ExitCode.DONE
    code = ExitCode.FOUND if turn.finish_reason == AWAITING else ExitCode.DONE
    return {"conversation": found.key, "turn": _facts(turn)}, code


def _facts(turn: TurnResult) -> dict[str, Any]:
    return {
        "run_id": turn.run_id,
        "finish_reason": turn.finish_reason,
        "text": turn.text,
        "approvals": list(turn.approval_ids),
        "usage": asdict(turn.usage),
    }


def _print_one(result: dict[str, Any]) -> None:
    turn = result["turn"]
    if turn is None:
        say(f"Nothing is pending in {result['conversation']}.")
        return
    say(f"{turn['run_id']}  {turn['finish_reason']}", style="bold")
    if turn["text"]:
        say(turn["text"])
    for approval_id in turn["approvals"]:
        say(f"Waits for approval {approval_id}: perdure approvals approve {approval_id}", style="yellow")


# --- all ---


async def _all(target: str, url: str | None) -> tuple[dict[str, Any], ExitCode]:
    from perdure.runtime.results import AWAITING  # --help does without
    from perdure.runtime.workers.worker import Worker

    async with _ready(target, url) as (agent, store):
        report = await Worker(agent, store=store).sweep(slow=True)
    problems = {one.session_id: _problem(one.error) for one in report.failed}
    aside = {one.session_id for one in report.set_aside}
    rows = [
        *({"conversation": one.session_id, "run_id": one.run_id, "what": one.finish_reason} for one in report.resumed),
        *(
            {
                "conversation": one.session_id,
                "run_id": one.run_id,
                "what": f"set aside ({one.reason}): {problems.get(one.session_id, one.last_error)}",
            }
            for one in report.set_aside
        ),
        *({"conversation": key, "run_id": None, "what": "waits"} for key in report.waiting if key not in problems),
        *({"conversation": key, "run_id": None, "what": "busy: somebody else runs it"} for key in report.busy),
        *({"conversation": key, "run_id": None, "what": "settled what was left of it"} for key in report.settled),
        *(
            {"conversation": one.session_id, "run_id": one.run_id, "what": f"failed: {_problem(one.error)}"}
            for one in report.failed
            if one.session_id not in aside
        ),
    ]
    waits = any(one.finish_reason == AWAITING for one in report.resumed)
    left = waits or report.set_aside or report.waiting or report.busy or report.failed
    return {"turns": rows}, ExitCode.FOUND if left else ExitCode.DONE


def _problem(error: Exception) -> str:
    return explained(error) if isinstance(error, PerdureError) else describe(error)


def _print_all(result: dict[str, Any]) -> None:
    if not result["turns"]:
        say("Nothing is pending.")
        return
    columns = ("conversation", "run_id", "what")
    print_table(("conversation", "run", "what"), ([row[name] for name in columns] for row in result["turns"]))
