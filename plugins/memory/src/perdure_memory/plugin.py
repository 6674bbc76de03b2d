"""The plugin: `memory:` is private to each opening, `memory:name` is shared within this process."""

from perdure.backend import journal_hooks

PERDURE_CONTRACT = 1

perdure_session_store, perdure_checkpoint_store, perdure_approval_store = journal_hooks(
    "perdure_memory.journal:MemoryJournal"
)


def conformance_targets() -> dict[str, str]:
    """Name what the conformance kit opens."""
    return {"memory": "memory:{place}"}
