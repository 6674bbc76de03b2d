"""`perdure ls`: the sessions of a store."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import typer

from perdure.archives import archive_of
from perdure.cli.durations import duration
from perdure.cli.exit_codes import ExitCode
from perdure.cli.output import JsonOption, print_json, print_table, say, warn, when
from perdure.cli.paging import CursorOption, LimitOption
from perdure.cli.sound_listing import Found, sound
from perdure.cli.store_url import StoreOption, opened
from perdure.contracts.sessions import SessionInfo, SessionStore, Transcript
from perdure.errors import StoreCorruptedError

_STATE_SHOWN = 60


def ls(
    store: StoreOption = None,
    scope: Annotated[str | None, typer.Option(help="Only sessions that were created for this scope.")] = None,
    older_than: Annotated[
        timedelta | None,
        typer.Option(parser=duration, metavar="DURATION", help="Only sessions last written longer ago, such as 7d."),
    ] = None,
    order: Annotated[
        Literal["recent", "created", "id"],
        typer.Option(help="Last written first, oldest first, or by id."),
    ] = "recent",
    limit: LimitOption = 50,
    cursor: CursorOption = None,
    as_json: JsonOption = False,
) -> None:
    """List sessions. `perdure show ID` shows one, `perdure pending` where turns have not ended.

    If a session is damaged it is named, the others are listed all the same, and the exit code is 1.
    """
    filters = {"scope": scope, "order": order, "cursor": cursor, "limit": limit}
    found = asyncio.run(_list(store, older_than, filters))
    code = ExitCode.FOUND if found.damaged else ExitCode.DONE
    if as_json:
        sessions = [session_facts(item) for item in found.items]
        print_json("ls", {"sessions": sessions, "damaged": found.damaged, "cursor": found.cursor}, code=code)
    else:
        _print(found, limit=limit)
    raise typer.Exit(code)


async def _list(
    url: str | None, older_than: timedelta | None, filters: dict[str, Any]
) -> Found[SessionInfo] | Found[Transcript]:
    async with opened(url, reading=True) as store:
        before = None if older_than is None else _before(store.clock.now(), older_than)
        try:
            page = await store.sessions.list(before=before, **filters)
            return Found(list(page.items), cursor=page.cursor)
        except StoreCorruptedError as error:
            return await _sound(error, store.sessions, before, **filters)


def _before(now: datetime, age: timedelta) -> datetime:
    try:
        return now - age
    except OverflowError:
        raise typer.BadParameter("--older-than goes back behind the year 1.") from None


async def _sound(
    error: StoreCorruptedError,
    sessions: SessionStore,
    before: datetime | None,
    *,
    scope: str | None,
    order: str,
    cursor: str | None,
    limit: int,
) -> Found[Transcript]:
    if cursor is not None:
        raise error  # what came before it is not known
    found = await sound(error, sessions, lambda name: sessions.load(name, limit=0), group=scope, before=before)
    if order != "id":
        found.items.sort(
            key=lambda one: (one.created_at if order == "created" else one.updated_at, one.session_id),
            reverse=order == "recent",
        )
    if len(found.items) > limit:
        warn(f"{len(found.items) - limit} more are not shown; raise --limit")
    del found.items[limit:]
    return found


def session_facts(session: SessionInfo | Transcript) -> dict[str, Any]:
    """Return what is known of a session, without its records, as JSON."""
    return {
        "session_id": session.session_id,
        "version": session.version,
        "records": session.count,
        "scope": session.scope,
        "state": session.state,
        "archive_of": archive_of(session),
        "created_at": session.created_at,
        "updated_at": session.updated_at,
    }


def _print(found: Found[SessionInfo] | Found[Transcript], *, limit: int) -> None:
    if found.items:
        print_table(
            ("session", "records", "updated", "scope", "state"),
            (
                (item.session_id, item.count, when(item.updated_at), item.scope, _state(item.state))
                for item in found.items
            ),
        )
    elif not found.damaged and limit:  # a limit of 0 tells nothing of what there is
        say("No sessions.")
    for problem in found.damaged:
        warn(problem)
    if found.cursor is not None:
        say(f"There are more: --cursor {found.cursor} goes on here, and --limit shows more at a time.", style="dim")


def _state(state: dict[str, Any]) -> str | None:
    text = json.dumps(state, ensure_ascii=False)
    return None if not state else text if len(text) <= _STATE_SHOWN else text[: _STATE_SHOWN - 1] + "…"
