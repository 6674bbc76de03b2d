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
from perdure.conversation import noted_archives


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
    result, code = asyncio.run(_delete(store, conversation, ask=not yes, force=force, as_json=as_json))
    if as_json:
        print_json("delete", result, code=code)
    elif result["left"]:
        say(f"Of {result['conversation']} there is still: {', '.join(result['left'])}.", style="red")
    else:
        say(f"Deleted {result['conversation']}. Looked at every part: nothing of it is left.")
    raise typer.Exit(code)


async def _delete(
    url: str | None, given: str, *, ask: bool, force: bool, as_json: bool
) -> tuple[dict[str, Any], ExitCode]:
    key = key_of(given)
    async with opened(url) as store:
        found = await read_conversation(store, key)
        found.require(given)
        _require_session(found)
        archives = await _archives(store, found)
        if ask:
            await _ask(store, found, archives, as_json=as_json)
        await store.delete_session(key, force=force)
        left = await _left(store, found, archives)
    removed = {
        "records": None if found.session is None else found.session.count,
        "archives": archives,
        "approvals": [approval.id for approval in found.approvals],
        "turn": None if found.journal is None or found.journal.head.status == IDLE else found.journal.head.run_id,
    }
    result = {"conversation": key, "removed": removed, "left": left}
    return result, ExitCode.FOUND if left else ExitCode.DONE


def _require_session(found: Conversation) -> None:
    if found.key.endswith(".run"):
        raise CommandError(
            f"{found.key} is a run without a session",
            "`perdure prune` removes it, or agent.discard() while it is pending.",
        )


async def _archives(store: AgentStore, found: Conversation) -> list[str]:
    """Return the archives of the conversation: those that its transcript names, and those that a claim does."""
    return list(dict.fromkeys((*await readable_archives_of(store, found.key), *noted_archives(found.journal))))


async def _ask(store: AgentStore, found: Conversation, archives: list[str], *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise CommandError("nobody can be asked whether to delete", "Give --yes.", ExitCode.CANNOT)
    parts = ["no transcript" if found.session is None else f"{found.session.count} records"]
    parts += [f"{len(archives)} archives"] if archives else []
    parts += [f"{len(found.approvals)} approvals"] if found.approvals else []
    if found.journal is not None and found.journal.head.status != IDLE:
        parts.append(f"a turn ({standing(await turn_facts(store, found.journal))})")
    parts += [safe_line(problem) for problem in found.damaged]
    say(f"{found.key}: {', '.join(parts)}", stderr=True)
    if not await asyncio.to_thread(typer.confirm, "Delete it for good?", default=False, err=True):
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
