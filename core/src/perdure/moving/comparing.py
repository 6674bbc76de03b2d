"""Whether two conversations are the same, and where they first differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from perdure import codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perdure.contracts.approvals import Approval
    from perdure.contracts.checkpoints import Checkpoint, CheckpointHead
    from perdure.contracts.records import Record
    from perdure.contracts.sessions import Transcript
    from perdure.moving.snapshots import Snapshot

Fact: TypeAlias = tuple[str, object, object]
"""What to say if it does not hold, what is wanted, and what was found."""


def first_difference(facts: Iterable[Fact]) -> str | None:
    """Return what the first fact that does not hold says; `None`: all hold."""
    return next((place for place, wanted, found in facts if wanted != found), None)


def difference(wanted: Snapshot, found: Snapshot) -> str | None:
    """Return the first place in which a conversation is not as wanted, as one clause; `None`: it is the same.

    Turn journals count by what they say: their versions move with every claim. Records are compared as JSON, so that 1
    is neither 1.0 nor true, and keys have an order.
    """
    return first_difference(_facts(wanted, found))


def _facts(wanted: Snapshot, found: Snapshot) -> Iterator[Fact]:
    there = {transcript.session_id: transcript for transcript in found.sessions}
    for transcript in wanted.sessions:
        yield from session_facts(transcript, there.pop(transcript.session_id, None))
    for name in there:
        yield f"session {name} is there as well", True, False
    yield from _turn_facts(wanted.turn, found.turn)
    approvals = {approval.id: approval for approval in found.approvals}
    for approval in wanted.approvals:
        yield from approval_facts(approval, approvals.pop(approval.id, None))
    for name in approvals:
        yield f"approval {name} is there as well", True, False


def session_facts(wanted: Transcript, found: Transcript | None) -> Iterator[Fact]:
    """Yield what must be equal of two transcripts."""
    name = f"session {wanted.session_id}"
    yield f"{name} is missing", True, found is not None
    if found is None:
        return
    yield f"{name} has another number of records ({found.count}, not {wanted.count})", wanted.count, found.count
    yield f"{name} has another scope", wanted.scope, found.scope
    yield from record_facts(name, wanted.records, found.records)
    yield f"{name} has another state", codec.encode(wanted.state), codec.encode(found.state)
    yield f"{name} was rewritten, or was not", wanted.rewritten > 0, found.rewritten > 0
    # Last, since they say least to people: what is imported from another format has a version that was drawn just now.
    yield f"{name} is at another version ({found.version}, not {wanted.version})", wanted.version, found.version
    for field in ("created_at", "updated_at"):
        yield f"{name} has another {field}", getattr(wanted, field), getattr(found, field)


def record_facts(name: str, wanted: Sequence[Record], found: Sequence[Record]) -> Iterator[Fact]:
    """Yield record by record what must be equal."""
    for place, (mine, theirs) in enumerate(zip(wanted, found, strict=False)):
        yield f"{name} has another record {place}", codec.encode(mine), codec.encode(theirs)


def _turn_facts(wanted: Checkpoint | None, found: Checkpoint | None) -> Iterator[Fact]:
    yield "its turn journal is missing, or is there as well", wanted is not None, found is not None
    if wanted is None or found is None:
        return
    yield "its turn journal says something else", _said(wanted.head), _said(found.head)
    yield "its turn journal has other entries", len(wanted.entries), len(found.entries)
    yield from record_facts("its turn journal", wanted.entries, found.entries)


def _said(head: CheckpointHead) -> bytes:
    return codec.encode(head.to_record())


def approval_facts(wanted: Approval, found: Approval | None) -> Iterator[Fact]:
    """Yield what must be equal of two approvals."""
    yield f"approval {wanted.id} is missing", True, found is not None
    if found is not None:
        yield f"approval {wanted.id} is another", wanted.encode(), found.encode()
        yield f"approval {wanted.id} is at another version", wanted.version, found.version
