"""`perdure approvals`: what agents ask people for, and the decisions."""

from __future__ import annotations

import asyncio
import getpass
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from perdure.bundle import AgentStore
from perdure.cli.approval_facts import approval_facts, arguments_to_run, status_text
from perdure.cli.exit_codes import ExitCode
from perdure.cli.output import CommandError, JsonOption, print_json, print_table, say, warn, when
from perdure.cli.paging import CursorOption, LimitOption
from perdure.cli.sound_listing import Found, sound
from perdure.cli.store_url import StoreOption, opened
from perdure.cli.transcripts import compact
from perdure.contracts.approvals import Approval
from perdure.contracts.ids import conversation_of
from perdure.contracts.records import Record
from perdure.conversations.claims import journal_of, undecided
from perdure.errors import ApprovalAlreadyResolvedError, ApprovalNotFoundError, StoreCorruptedError

approvals = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", help="List, show and decide approvals."
)

ApprovalId = Annotated[str, typer.Argument(metavar="APPROVAL", help="The id of the approval.")]
NoteOption = Annotated[str | None, typer.Option(help="What the model is to read with the decision.")]
DeciderOption = Annotated[str | None, typer.Option("--by", help="Who decides. Default: the user's name.")]


@approvals.command("list")
def list_(
    store: StoreOption = None,
    status: Annotated[
        Literal["pending", "approved", "rejected", "cancelled", "all"], typer.Option(help="Only those of this status.")
    ] = "pending",
    session: Annotated[str | None, typer.Option(help="Only those of this session.")] = None,
    run: Annotated[str | None, typer.Option(help="Only those of this run.")] = None,
    limit: LimitOption = 50,
    cursor: CursorOption = None,
    as_json: JsonOption = False,
) -> None:
    """List approvals, the oldest first."""
    filters = {"session_id": session, "run_id": run, "status": None if status == "all" else status}
    found, facts = asyncio.run(_list(store, filters | {"limit": limit, "cursor": cursor}))
    code = ExitCode.FOUND if found.damaged else ExitCode.DONE
    if as_json:
        result = {"approvals": facts, "damaged": found.damaged, "cursor": found.cursor}
        print_json("approvals list", result, code=code)
    else:
        _print_list(found, facts, limit=limit)
    raise typer.Exit(code)


async def _list(url: str | None, filters: dict[str, Any]) -> tuple[Found[Approval], list[dict[str, Any]]]:
    async with opened(url, reading=True) as store:
        try:
            page = await store.approvals.list(**filters)
            found = Found(list(page.items), cursor=page.cursor)
        except StoreCorruptedError as error:
            if filters["cursor"] is not None:
                raise
            found = await _sound(error, store, filters)
        now = store.clock.now()
        return found, [approval_facts(approval, now) for approval in found.items]


async def _sound(error: StoreCorruptedError, store: AgentStore, filters: dict[str, Any]) -> Found[Approval]:
    wanted = {name: filters[name] for name in ("session_id", "run_id") if filters[name] is not None}

    async def load(approval_id: str) -> Approval | None:
        approval = await store.approvals.get(approval_id)
        fits = approval is not None and all(getattr(approval, name) == value for name, value in wanted.items())
        return approval if fits else None

    group = next((conversation_of(value) for value in wanted.values()), None)
    found = await sound(error, store.approvals, load, group=group, status=filters["status"])
    found.items.sort(key=lambda approval: (approval.created_at, approval.id))
    if len(found.items) > filters["limit"]:
        warn(f"{len(found.items) - filters['limit']} more are not shown; raise --limit")
    del found.items[filters["limit"] :]
    return found


def _print_list(found: Found[Approval], facts: list[dict[str, Any]], *, limit: int) -> None:
    if facts:
        print_table(
            ("approval", "asked", "status", "tool", "arguments"),
            (
                (one["id"], when(one["created_at"]), status_text(one), one["tool_name"], compact(arguments_to_run(one)))
                for one in facts
            ),
        )
    elif not found.damaged and limit:  # a limit of 0 tells nothing of what there is
        say("No approvals.")
    for problem in found.damaged:
        warn(problem)
    if found.cursor is not None:
        say(f"There are more: --cursor {found.cursor} goes on here, and --limit shows more at a time.", style="dim")


@approvals.command("show")
def show(approval: ApprovalId, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show one approval."""
    facts = asyncio.run(_show(store, approval))
    if as_json:
        print_json("approvals show", {"approval": facts})
        return
    rows = {
        "approval": facts["id"],
        "status": status_text(facts),
        "tool": facts["tool_name"],
        "arguments": compact(facts["arguments"]),
        "edited": None if arguments_to_run(facts) is facts["arguments"] else compact(arguments_to_run(facts)),
        "agent": facts["agent"],
        "session": facts["session_id"],
        "run": facts["run_id"],
        "asked": when(facts["created_at"]),
        "expires": when(facts["expires_at"]) if facts["expires_at"] else None,
        "decided": when(facts["decision"]["decided_at"]) if facts["decision"] else None,
        "metadata": compact(facts["metadata"]) if facts["metadata"] else None,
    }
    for name, value in rows.items():
        if value is not None:
            say(f"{name:10} {value}")


async def _show(url: str | None, approval_id: str) -> dict[str, Any]:
    async with opened(url, reading=True) as store:
        found = await store.approvals.get(approval_id)
        if found is None:
            raise ApprovalNotFoundError(approval_id)
        return approval_facts(found, store.clock.now())


@approvals.command()
def approve(
    approval: ApprovalId,
    store: StoreOption = None,
    arguments: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Run the tool with this JSON object instead; @FILE reads one, - reads standard input."
        ),
    ] = None,
    note: NoteOption = None,
    by: DeciderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Approve a call. The turn goes on when a worker or `perdure resume` takes it up.

    The same decision again is no error; another one is refused with exit code 1: the first stands.
    """
    edited = None if arguments is None else _object(arguments)
    _decide(
        "approve",
        store,
        approval,
        {"approved": True, "note": note, "arguments": edited, "decided_by": _who(by)},
        as_json,
    )


@approvals.command()
def reject(
    approval: ApprovalId,
    store: StoreOption = None,
    note: NoteOption = None,
    by: DeciderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reject a call: the model is told so, with the note, and the turn goes on as after an approval."""
    _decide("reject", store, approval, {"approved": False, "note": note, "decided_by": _who(by)}, as_json)


def _decide(name: str, url: str | None, approval_id: str, decision: dict[str, Any], as_json: bool) -> None:
    facts, left = asyncio.run(_decided(url, approval_id, decision))
    if as_json:
        print_json(f"approvals {name}", {"approval": facts, "undecided": left})
        return
    say(f"{facts['id']}  {status_text(facts)}")
    if left is None:
        say("Its turn is not waiting any more.")
    elif left:
        say(f"Its turn still waits for {', '.join(left)}.")
    else:
        say(
            f"Its turn can go on: a worker takes it, or: perdure resume MODULE:AGENT {facts['session_id'] or facts['run_id']}"
        )


async def _decided(
    url: str | None, approval_id: str, decision: dict[str, Any]
) -> tuple[dict[str, Any], list[str] | None]:
    """Decide; return the approval, and what its turn still waits for (`None`: it does not wait)."""
    async with opened(url) as store:
        try:
            approval = await store.decide(approval_id, **decision)
        except ApprovalAlreadyResolvedError as error:
            error.hint = f"The first decision stands: {status_text(approval_facts(error.approval, store.clock.now()))}."
            raise
        facts = approval_facts(approval, store.clock.now())
        if "checkpoints" not in store:
            return facts, None
        journal = await store.checkpoints.load(journal_of(approval))
        if journal is None or journal.head.run_id != approval.run_id:
            return facts, None
        return facts, list(await undecided(store, journal.head))


def _who(by: str | None) -> str:
    try:
        return getpass.getuser() if by is None else by
    except (OSError, KeyError):  # a container may run as a user without a name
        return "perdure approvals"


def _object(text: str) -> Record:
    """Return the JSON object that was given, in a file, or on standard input."""
    try:
        given = sys.stdin.read() if text == "-" else Path(text[1:]).read_text("utf-8") if text.startswith("@") else text
        value = json.loads(given, object_pairs_hook=_unambiguous)
    except (ValueError, RecursionError) as error:
        raise CommandError(
            f"--arguments is not JSON: {error}", "Quote it: --arguments '{...}'.", ExitCode.CANNOT
        ) from None
    if not isinstance(value, dict):
        raise CommandError("--arguments is no JSON object", 'Write {"name": value}.', ExitCode.CANNOT)
    return value


def _unambiguous(pairs: list[tuple[str, Any]]) -> Record:
    """Refuse a name that comes twice: which value was meant is for the human to say."""
    names = Counter(name for name, _ in pairs)
    if twice := [name for name, times in names.items() if times > 1]:
        raise CommandError(f"--arguments has {twice[0]!r} more than once", "Leave one of them out.", ExitCode.CANNOT)
    return dict(pairs)
