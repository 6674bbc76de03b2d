"""The plugin: `lmdb:DIR` is a directory that processes of one host may share."""

from pydantic import BaseModel, Field

from perdure.backend import journal_hooks

PERDURE_CONTRACT = 1


class Options(BaseModel):
    """The options of a URL."""

    map_size: int = Field(2**30, ge=2**20, description="how large the database may become, in bytes")


perdure_session_store, perdure_checkpoint_store, perdure_approval_store = journal_hooks(
    "perdure_lmdb.journal:LmdbJournal"
)


def conformance_targets() -> dict[str, object]:
    """Name what `perdure-conformance check lmdb` opens."""
    from perdure_lmdb.conformance import target

    return {"lmdb": target()}
