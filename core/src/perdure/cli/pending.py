"""`perdure pending`: the turns that have not ended."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from perdure.bundle import AgentStore
from perdure.cli.exit_codes import ExitCode
from perdure.cli.output import JsonOption, print_json, print_table, say, warn, when
from perdure.cli.sound_listing import Found, sound
from perdure.cli.store_url import StoreOption, opened
from perdure.cli.turns import standing, turn_facts
from perdure.contracts.checkpoints import (
    CLAIM_STATUSES,
    FINISHED,
    TURN_STATUSES,
    Checkpoint,
    CheckpointInfo,
)
from perdure.errors import StoreCorruptedError


def pending(
    store: StoreOption = None,
    agent: Annotated[str | None, typer.Option(help="Only turns of the agent of this name.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the turns that have not ended: running, interrupted, submitted, or waiting for approvals.

    If a turn journal is damaged it is named, the others are listed all the same, and the exit code is 1.
    """
    turns, damaged = asyncio.run(_pending(store, agent))
    code = ExitCode.FOUND if damaged else ExitCode.DONE
    if as_json:
        print_json("pending", {"turns": turns, "damaged": damaged}, code=code)
    else:
        _print(turns, damaged)
    raise typer.Exit(code)


async def _pending(url: str | None, agent: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    async with opened(url, reading=True) as store:
        found = await _unended(store, agent)
        turns = [await turn_facts(store, info) for info in found.items]
    damaged = found.damaged + [turn["damaged"] for turn in turns if turn["damaged"]]
    return sorted(turns, key=lambda turn: turn["updated_at"]), damaged


async def _unended(store: AgentStore, agent: str | None) -> Found[CheckpointInfo | Checkpoint]:
    found = Found[CheckpointInfo | Checkpoint]()
    for status in (*TURN_STATUSES, *CLAIM_STATUSES):
        part = await _of_status(store, status, agent)
        # A run without a session stays in its journal when it has ended.
        found.items += [one for one in part.items if one.head.session_id or one.head.status != FINISHED]
        found.damaged += part.damaged
    found.damaged = list(dict.fromkeys(found.damaged))
    return found


async def _of_status(store: AgentStore, status: str, agent: str | None) -> Found[Any]:
    found, cursor = Found[Any](), None
    try:
        while True:
            page = await store.checkpoints.list(status=status, agent=agent, cursor=cursor)
            found.items += page.items
            cursor = page.cursor
            if cursor is None:
                return found
    except StoreCorruptedError as error:
        return await sound(error, store.checkpoints, store.checkpoints.load, group=agent, status=status)


def _print(turns: list[dict[str, Any]], damaged: list[str]) -> None:
    if turns:
        print_table(
            ("conversation", "agent", "updated", "attempts", "stands"),
            (
                (turn["conversation"], turn["agent"], when(turn["updated_at"]), turn["attempts"], standing(turn))
                for turn in turns
            ),
        )
    elif not damaged:
        say("No turn is pending.")
    for problem in damaged:
        warn(problem)
