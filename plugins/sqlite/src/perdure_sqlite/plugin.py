"""The plugin: the options of `sqlite:` URLs and the three hooks. It loads without the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.backend import Finding, Journal, StoreURL, journal_hooks

PERDURE_CONTRACT = 1


class Options(BaseModel):
    """The options of a `sqlite:` URL.

    Attributes:
        synchronous: `full` (default): an acknowledged write survives a power loss. `normal`: it survives the death of the
            process, but a power loss may take the newest writes; in exchange a write does not wait for the disk.
        busy_timeout: How long a call waits for another process that holds the file, in seconds. 0: not at all.
        journal_mode: `wal` (default), or `delete` for a file on a network file system, where WAL would damage it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    synchronous: Literal["full", "normal"] = "full"
    busy_timeout: float = Field(default=5.0, ge=0, le=3600, allow_inf_nan=False)
    journal_mode: Literal["wal", "delete"] = "wal"


perdure_session_store, perdure_checkpoint_store, perdure_approval_store = journal_hooks(
    "perdure_sqlite.journal:SqliteJournal.from_url"
)


def doctor(url: StoreURL, *, salvage: bool) -> Iterator[Finding]:
    """Look at a database file for `perdure doctor`, without changing it: say what it is, and what is wrong with it.

    Args:
        url: The store.
        salvage: Refused: SQLite has a tool for that.
    """
    from perdure_sqlite.examination import examine, refuse_salvage

    if salvage:
        raise refuse_salvage(url.path)
    yield from examine(str(Path(url.path).absolute()), url.namespace)


def read_only(url: StoreURL) -> Journal:
    """Return a journal for `perdure doctor` that reads what is there, and makes and migrates nothing."""
    from perdure_sqlite.journal import SqliteJournal
    from perdure_sqlite.read_only import ReadOnlyDatabase

    return SqliteJournal.from_url(url, database=ReadOnlyDatabase)


def conformance_targets() -> dict[str, str]:
    """Name what the conformance kit opens."""
    return {"sqlite": "sqlite:{dir}/agent.db"}


def conformance_helpers(url: StoreURL) -> Mapping[str, object]:
    """Tell the conformance kit what it can do to a closed store."""
    from perdure_sqlite.conformance import helpers

    return helpers(url)
