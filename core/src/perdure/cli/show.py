"""`perdure show`: one conversation, to read."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer

from perdure.bundle import AgentStore
from perdure.cli.approval_facts import approval_facts, approval_line
from perdure.cli.conversations import Conversation, IdArgument, key_of, read_conversation
from perdure.cli.exit_codes import ExitCode
from perdure.cli.ls import session_facts
from perdure.cli.output import JsonOption, console, print_json, safe_line, warn, when
from perdure.cli.store_url import StoreOption, opened
from perdure.cli.transcripts import record_lines
from perdure.cli.turns import standing, turn_facts, turn_lines
from perdure.contracts.checkpoints import IDLE
from perdure.contracts.records import Record
from perdure.errors import StoreCorruptedError


def show(
    conversation: IdArgument,
    store: StoreOption = None,
    last: Annotated[int, typer.Option(min=0, help="Show so many of the newest records.")] = 50,
    all_records: Annotated[bool, typer.Option("--all", help="Show all records.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a conversation: its transcript with calls and results, where its turn stands, and its approvals.

    Nothing is run and nothing is written. What is damaged is named, the rest is shown all the same, and the exit code is 1.
    """
    shown = asyncio.run(_read(conversation, store, None if all_records else last))
    code = ExitCode.FOUND if shown["damaged"] else ExitCode.DONE
    if as_json:
        print_json("show", {name: value for name, value in shown.items() if name != "lines"}, code=code)
    else:
        _print(shown)
    raise typer.Exit(code)


async def _read(given: str, url: str | None, last: int | None) -> dict[str, Any]:
    async with opened(url, reading=True) as store:
        found = await read_conversation(store, key_of(given))
        found.require(given)
        start, records = await _records(store, found, last)
        turn = None if found.journal is None else await turn_facts(store, found.journal)
        now = store.clock.now()
    idle = found.journal is None or found.journal.head.status == IDLE
    return {
        "conversation": found.key,
        "session": None if found.session is None else session_facts(found.session),
        "start": start,
        "records": records,
        "turn": None if idle else turn,
        "entries": [] if found.journal is None or idle else list(found.journal.entries),
        "approvals": [approval_facts(approval, now) for approval in found.approvals],
        "lines": [] if found.journal is None or idle else _turn_lines(found),
        "damaged": found.damaged,
    }


async def _records(store: AgentStore, found: Conversation, last: int | None) -> tuple[int, list[Record | None]]:
    """Return the index of the first record to show, and the records; `None` is one that is damaged."""
    if found.session is None:
        return 0, []
    start = 0 if last is None else max(0, found.session.count - last)
    try:
        whole = await store.sessions.load(found.key, after=start)
    except StoreCorruptedError:
        return start, [await _record(store, found, place) for place in range(start, found.session.count)]
    return start, [] if whole is None else list(whole.records)


async def _record(store: AgentStore, found: Conversation, place: int) -> Record | None:
    try:
        one = await store.sessions.load(found.key, after=place, limit=1)
    except StoreCorruptedError as error:
        if str(error) not in found.damaged:  # a file tells the same of every record behind the damage
            found.damaged.append(str(error))
        return None
    return one.records[0] if one is not None and one.records else None


def _turn_lines(found: Conversation) -> list[tuple[str, str | None]]:
    assert found.journal is not None
    try:
        return list(turn_lines(found.journal, found.approvals))
    except StoreCorruptedError as error:
        found.damaged.append(str(error))
        return []


# --- text ---


def _print(shown: dict[str, Any]) -> None:
    out = console()

    def line(text: str, style: str | None = None) -> None:
        if style is None or not out.is_terminal:
            print(text)  # rich takes longer over a line than reading it took
        else:
            out.print(text, style=style, soft_wrap=True)

    for text, style in _head_lines(shown):
        line(text, style)
    for place, record in enumerate(shown["records"], shown["start"]):
        line("")
        for text, style in [(f"[{place}] is damaged", "red")] if record is None else record_lines(record, place):
            line(text, style)
    if shown["turn"] is not None:
        turn = shown["turn"]
        line("")
        line(f"turn {safe_line(turn['run_id'] or '')}".rstrip(), "bold")
        line(f"  {standing(turn)}", "yellow")
        line(f"  agent {safe_line(turn['agent'])}, {turn['attempts']} attempt(s), updated {when(turn['updated_at'])}")
        for text, style in shown["lines"]:
            line(text, style)
    if shown["approvals"]:
        line("")
        line("approvals", "bold")
        for approval in shown["approvals"]:
            line(f"  {approval_line(approval)}", "yellow" if approval["status"] == "pending" else None)
    for problem in shown["damaged"]:
        warn(problem)


def _head_lines(shown: dict[str, Any]) -> list[tuple[str, str | None]]:
    session = shown["session"]
    if session is None:
        return [(f"conversation {safe_line(shown['conversation'])}: no transcript yet", "bold")]
    facts = (
        f"{session['records']} records, created {when(session['created_at'])}, updated {when(session['updated_at'])}"
    )
    lines: list[tuple[str, str | None]] = [(f"session {session['session_id']}", "bold"), (f"  {facts}", None)]
    if session["scope"] is not None:
        lines.append((f"  scope {safe_line(session['scope'])}", None))
    if session["archive_of"] is not None:
        lines.append((f"  an archive of {session['archive_of']}", None))
    if session["state"]:
        lines.append((f"  state {safe_line(json.dumps(session['state'], ensure_ascii=False))}", None))
    if shown["start"]:
        lines.append((f"  {shown['start']} earlier records are not shown; --all shows them", "dim"))
    return lines
