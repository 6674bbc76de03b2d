"""What the conformance kit may do to a closed database. Nothing but the kit comes here."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from perdure_sqlite.database import MIGRATIONS

if TYPE_CHECKING:
    from perdure.backend import StoreURL


def helpers(url: StoreURL) -> dict[str, Callable[[StoreURL], object]]:
    """Return what can be done to the databases of a URL: nothing, unless each place has a fresh file, by `{dir}` or `{place}`."""
    fresh = "{dir}" in url.path or "{place}" in url.path
    return {"damage": damage, "newer_schema": newer_schema} if fresh else {}


def damage(url: StoreURL) -> None:
    """Overwrite the file with what is no database."""
    Path(url.path).write_bytes(b"this is no database\n" * 500)


def newer_schema(url: StoreURL) -> Callable[[], None]:
    """Mark the file as a newer release's, and return what takes the mark back."""

    def mark(schema: int) -> None:
        with closing(sqlite3.connect(url.path)) as database:
            database.execute(f"PRAGMA user_version = {schema}")

    mark(len(MIGRATIONS) + 1)
    return lambda: mark(len(MIGRATIONS))
