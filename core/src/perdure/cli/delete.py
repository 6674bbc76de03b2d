"""`perdure delete`: remove one conversation, and prove that nothing of it is left."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import typer

from perdure.archives import readable_archives_of
from perdure.bundle import AgentStore
from perdure.cli.conversations import Conversation, IdArgument, key_of, read_conversation
from perdure.cli.exit_codes import ExitCode
from perdure.cli.output import CommandError, JsonOption, print_json, safe_line, say
from perdure.cli.store_url import StoreOption, opened
from perdure.cli.turns import standing, turn_facts
from perdure.contracts.checkpoints import IDLE
from perdure.contracts.ids import is_run
from perdure.conversations.claims import noted_archives


def delete(
    conversation: IdArgument,
    store: StoreOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also if somebody runs a turn right now: it is fenced off, and writes no more."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a conversation whole: transcript, archives, approvals and turn. Then look at every part for what is left.

    It asks first; without a terminal, and with --json, --yes is needed.
    """
    found, archives, told = asyncio.run(_look(store, conversation, ask=not yes))
    if told is not None:  # outside the event loop, which would keep Ctrl-C from the question
        _ask(told, as_json=as_json)
    left = asyncio.run(_delete(store, found, archives, force=force))
    result = {"conversation": found.key, "removed": _removed(found, archives), "left": left}
    code = ExitCode.FOUND if left else ExitCode.DONE
    if as_json:
        print_json("delete", result, code=code)
    elif result["left"]:
        say(f"Of {result['conversation']} there is still: {', '.join(result['left'])}.", style="red")
    else:
        say(f"Deleted {result['conversation']}. Looked at every part: nothing of it is left.")
    raise typer.Exit(code)


async def _look(url: str | None, given: str, *, ask: bool) -> tuple[Conversation, list[str], str | None]:
    """Return what there is to delete, the archives in it, and, to ask about it, all of it in words."""
    async with opened(url, reading=True) as store:
        found = await read_conversation(store, key_of(given))
        found.require(given)
        _require_session(found)
        archives = await _archives(store, found)
        return found, archives, await _told(store, found, archives) if ask else None


async def _delete(url: str | None, found: Conversation, archives: list[str], *, force: bool) -> list[str]:
    """Delete it, and return what is left."""
    async with opened(url) as store:
        await store.delete_session(found.key, force=force)
        return await _left(store, found, archives)


def _removed(found: Conversation, archives: list[str]) -> dict[str, Any]:
    return {
        "records": None if found.session is None else found.session.count,
        "archives": archives,
        "approvals": [approval.id for approval in found.approvals],
        "turn": None if found.journal is None or found.journal.head.status == IDLE else found.journal.head.run_id,
    }


def _require_session(found: Conversation) -> None:
    if is_run(found.key):
        raise CommandError(
            f"{found.key} is a run without a session",
            "`perdure prune` removes it, or agent.discard() while it is pending.",
        )


async def _archives(store: AgentStore, found: Conversation) -> list[str]:
    """Return the archives of the conversation: those that its transcript names, and those that a claim does."""
    return list(dict.fromkeys((*await readable_archives_of(store, found.key), *noted_archives(found.journal))))


async def _told(store: AgentStore, found: Conversation, archives: list[str]) -> str:
    parts = ["no transcript" if found.session is None else f"{found.session.count} records"]
    parts += [f"{len(archives)} archives"] if archives else []
    parts += [f"{len(found.approvals)} approvals"] if found.approvals else []
    if found.journal is not None and found.journal.head.status != IDLE:
        parts.append(f"a turn ({standing(await turn_facts(store, found.journal))})")
    parts += [safe_line(problem) for problem in found.damaged]
    return f"{found.key}: {', '.join(parts)}"


def _ask(told: str, *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise CommandError("nobody can be asked whether to delete", "Give --yes.", ExitCode.CANNOT)
    say(told, stderr=True)
    try:
        agreed = typer.confirm("Delete it for good?", default=False, err=True)
    except typer.Abort as stopped:  # it stands for Ctrl-C and for the end of the input
        say(stderr=True)
        if isinstance(stopped.__context__, KeyboardInterrupt):
            raise stopped.__context__ from None
        agreed = False
    if not agreed:
        raise CommandError("nothing was deleted")


async def _left(store: AgentStore, before: Conversation, archives: list[str]) -> list[str]:
    """Look at every part for what was there, and for what came since; return what is left."""
    again = await read_conversation(store, before.key)
    left = [*again.damaged]
    left += ["the transcript"] if again.session is not None else []
    left += ["the turn journal"] if again.journal is not None else []
    left += [f"archive {name}" for name in archives if await store.sessions.load(name, limit=0) is not None]
    known = dict.fromkeys(approval.id for approval in (*before.approvals, *again.approvals))
    return left + [f"approval {one}" for one in known if await store.approvals.get(one) is not None]
