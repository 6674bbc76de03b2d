"""What a compaction makes of a transcript: which records it replaces, and the summary that stands for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.archives import SUMMARY, archive_named_by
from perdure.runtime.messages import RECORD_VERSION, Usage, is_own, stamp
from perdure.runtime.results import REMEMBERED_TURNS, STOP
from perdure.runtime.transcript.history import severed_places, turn_starts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from perdure.contracts.records import Record
    from perdure.runtime.messages import Message
    from perdure.runtime.transcript.digest import Digest

CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Split:
    """A transcript, cut in front of the turns that stay.

    Attributes:
        replaced: Messages and summaries, for which a new summary will stand.
        foreign: What is somebody else's among them; it stays.
        kept: Everything from the first of the newest turns on.
    """

    replaced: Sequence[Record]
    foreign: Sequence[Record]
    kept: Sequence[Record]

    @property
    def place(self) -> int:
        """How many records are in front of the cut."""
        return len(self.replaced) + len(self.foreign)


@dataclass(frozen=True, slots=True)
class Compacted:
    """The new transcript.

    Attributes:
        summary: The record that begins it.
        rest: What comes behind.
        text: The summary's text.
        usage: What it has cost.
    """

    summary: Record
    rest: Sequence[Record]
    text: str
    usage: Usage

    @property
    def records(self) -> list[Record]:
        """All of it."""
        return [self.summary, *self.rest]


def split(records: Sequence[Record], keep: int) -> Split | None:
    """Cut a transcript in front of its newest turns, never between a call and its result; `None`: nothing is in front."""
    starts = turn_starts(records)
    if len(starts) <= keep:
        return None
    severed = severed_places(records)
    places = [start for start in starts[: len(starts) - keep + 1] if start not in severed] if keep else [len(records)]
    cut = places[-1] if places else 0
    if cut <= starts[0]:
        return None
    front = records[:cut]
    replaced = [record for record in front if is_own(record)]
    return Split(replaced, [record for record in front if not is_own(record)], list(records[cut:]))


def compacted(parts: Split, text: str, usage: Usage, *, at: datetime, archive: str | None) -> Compacted:
    """Make the new transcript of a summary's text.

    What the conversation has spent goes on in the summary, with what the summary has cost; and in what the kept turns
    carry, since the last record that tells it counts.
    """
    rest = [*parts.foreign, *(_charged(record, usage) for record in parts.kept)]
    spent: Record = next((record["spent"] for record in reversed(parts.replaced) if "spent" in record), {})
    summary: Record = {
        "v": RECORD_VERSION,
        "kind": SUMMARY,
        "at": stamp(at),
        "spent": _sum(spent, usage),
        "kept": len(rest),
        "turns": _turns(parts.replaced),
        "message": {"role": "user", "content": text, "metadata": {"summary": True}},
    }
    if archive is not None:
        summary |= {"archive": archive, "archived": parts.place}
    elif archive_named_by(parts.replaced) is not None:
        # Of what came since there is the summary alone; but who reads, or deletes, must still find the archive before it.
        earlier = parts.replaced[0]
        summary |= {"archive": earlier["archive"], "archived": earlier.get("archived", 0), "beyond_archive": True}
    return Compacted(summary, rest, text, usage)


def _charged(record: Record, usage: Usage) -> Record:
    if not is_own(record) or "spent" not in record:
        return record
    return record | {"spent": _sum(record["spent"], usage)}


def _sum(spent: Record, usage: Usage) -> Record:
    """Add a usage to what was spent, of which a later release may count more."""
    return spent | (Usage.from_record(spent) + usage).to_record()


def _turns(replaced: Sequence[Record]) -> list[Record]:
    """Return what stays known of the turns that a summary stands for, the last 100, the oldest first."""
    turns: dict[str, Record] = {}
    for record in replaced:
        if record["kind"] == SUMMARY:
            for turn in record.get("turns", ()):
                turns[turn["run_id"]] = {**turn, "input_ids": [*turn["input_ids"]]}
        elif record.get("run_id") is not None:
            turn = turns.setdefault(
                record["run_id"],
                {"run_id": record["run_id"], "input_ids": [], "finish_reason": STOP, "usage": Usage().to_record()},
            )
            if "input_id" in record:
                turn["input_ids"].append(record["input_id"])
            turn |= {name: record[name] for name in ("finish_reason", "usage") if record.get(name) is not None}
    return list(turns.values())[-REMEMBERED_TURNS:]


def is_full(read: Digest, max_tokens: int) -> bool:
    """Whether a transcript holds more tokens than a number, as far as can be known without a tokenizer."""
    told = _told_tokens(read)
    if told is not None:
        return told > max_tokens
    return sum(map(_characters, read.messages)) > max_tokens * CHARACTERS_A_TOKEN


def _told_tokens(read: Digest) -> int | None:
    """Return what the last turn's request has read and written, if it made one only, and the transcript is still that."""
    since_summary = read.messages_in(1 + read.opening.get("kept", 0)) if read.opening else 0
    last = len(read.messages) - 1
    if last < since_summary:
        return None
    usage = Usage.from_record(read.notes.get(last, {}).get("usage") or {})
    return usage.input_tokens + usage.output_tokens if usage.requests == 1 and usage.input_tokens else None


def _characters(message: Message) -> int:
    calls = sum(len(call.name) + len(json.dumps(call.arguments)) for call in message.tool_calls)
    return len(message.text) + calls
