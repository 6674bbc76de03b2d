"""The plugin: the options of `file:` URLs and the three hooks."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from perdure.backend import journal_hooks

PERDURE_CONTRACT = 1


class Options(BaseModel):
    """The options of a `file:` URL.

    Attributes:
        busy_timeout: How long a write waits for another one of the same key, in seconds. 0: not at all.
        shared: `true` (default): several processes may write, and opening refuses a mount on which locks do not exclude.
            `false`: nothing is refused, and it is yours to see that one process writes at a time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    busy_timeout: float = Field(default=5.0, ge=0, le=3600, allow_inf_nan=False)
    shared: bool = True


perdure_session_store, perdure_checkpoint_store, perdure_approval_store = journal_hooks(
    "perdure_file.journal:FileJournal.from_url"
)
