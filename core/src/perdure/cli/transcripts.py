"""Records of a transcript as people read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from perdure import codec
from perdure.archives import SUMMARY
from perdure.cli.output import safe, safe_line, when_stored
from perdure.contracts.records import Record
from perdure.errors import StoreCorruptedError
from perdure.runtime.messages import Message, ToolCall, is_own

STYLES: Final = {"user": "bold green", "assistant": "bold cyan", "tool": "bold magenta", SUMMARY: "bold yellow"}
"""How the first line of a record is shown, by who speaks."""

_INDENT: Final = "    "


def record_lines(record: Record, index: int) -> Iterator[tuple[str, str | None]]:
    """Yield the lines of a record, made safe, each with its style.

    Args:
        record: A message of a turn, a summary, or somebody else's.
        index: Its place in the transcript.
    """
    message = record.get("message")
    if not is_own(record) or type(message) is not dict:
        yield f"[{index}] record", "bold"
        yield f"{_INDENT}{compact(record)}", None
        return
    try:
        yield from message_lines(Message.from_record(message), _title(record, index))
    except StoreCorruptedError as error:
        yield f"[{index}] {error}", "red"
        yield f"{_INDENT}{compact(record)}", None
    if record["kind"] == SUMMARY and record.get("archive"):
        yield f"{_INDENT}(the full text is kept in {safe_line(str(record['archive']))})", "dim"


def _title(record: Record, index: int) -> str:
    facts = [when_stored(str(record["at"]))] if record.get("at") else []
    facts += [str(record["run_id"])] if record.get("run_id") else []
    facts += [f"ended: {record['finish_reason']}"] if record.get("finish_reason") else []
    return (
        safe_line(f"[{index}] {SUMMARY + ' ' if record.get('kind') == SUMMARY else ''}")
        + "{role}  "
        + safe_line("  ".join(facts))
    )


def message_lines(message: Message, title: str) -> Iterator[tuple[str, str | None]]:
    """Yield the lines of a message, made safe; `{role}` in the title becomes who speaks."""
    role = str(message.role)
    name = role if message.tool_call_id is None else f"{role} ({message.tool_call_id})"
    error = " FAILED" if message.is_error else ""
    yield title.replace("{role}", safe_line(name) + error, 1).rstrip(), STYLES.get(role, "bold")
    for line in _content(message):
        yield f"{_INDENT}{line}", None
    for call in message.tool_calls:
        yield f"{_INDENT}{call_text(call)}", STYLES["tool"]


def _content(message: Message) -> Iterator[str]:
    parts: Sequence[Record] = (
        [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
    )
    for part in parts:
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            yield from safe(part["text"]).split("\n") if part["text"] else ()
        else:
            yield f"<{safe_line(str(part.get('type', 'part')))}: {_described(part)}>"


def _described(part: Record) -> str:
    """Return a part that is no text without its data, which may be long."""
    facts = {name: value for name, value in part.items() if name not in ("type", "data", "encoding")}
    size = f"{len(part['data'])} bytes " if isinstance(part.get("data"), bytes) else ""
    return f"{size}{compact(facts)}"


def call_text(call: ToolCall, arguments: Record | None = None) -> str:
    """Return a call of a tool as one safe line."""
    return f"-> {safe_line(call.name)} {compact(call.arguments if arguments is None else arguments)}  ({safe_line(call.id)})"


def compact(value: Any) -> str:
    """Return JSON as one safe line."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except ValueError:  # a number of more digits than Python writes by itself
        text = codec.encode(value).decode("utf-8")
    return safe_line(text)
