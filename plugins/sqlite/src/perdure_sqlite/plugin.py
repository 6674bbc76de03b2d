"""The plugin: the options of `sqlite:` URLs and the three hooks. It loads without the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.backend import StoreURL, journal_hooks

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


def conformance_targets() -> dict[str, str]:
    """Name what the conformance kit opens."""
    return {"sqlite": "sqlite:{dir}/agent.db"}


def conformance_helpers(url: StoreURL) -> Mapping[str, object]:
    """Tell the conformance kit what it can do to a closed store."""
    from perdure_sqlite.conformance import helpers

    return helpers(url)
