"""Content of conversations as attributes, for those who have asked for it."""

from __future__ import annotations

import json
import os
import traceback
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import Message

SWITCH: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The environment variable by which instrumentations of GenAI are told to report content."""


def is_wanted() -> bool:
    """Whether the environment asks for content on spans."""
    return os.environ.get(SWITCH, "").strip().lower() in ("true", "1", "span_only", "span_and_event")


def as_json(value: object) -> str:
    """Return a value as the text of an attribute."""
    return as_text(json.dumps(value, ensure_ascii=False, default=str))


def as_text(text: str) -> str:
    """Return a text as that of an attribute: with half a character in one, no span of its batch could be exported."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def of_error(error: BaseException) -> dict[str, str]:
    """Return what an exception says, as attributes in the place of those that the SDK makes of it."""
    trace = "".join(traceback.format_exception(error))
    return {"exception.message": as_text(str(error)), "exception.stacktrace": as_text(trace)}


def split(messages: Sequence[Message]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what a turn was given, and what it gave, in the shape of the conventions."""
    begin = next((place for place, message in enumerate(messages) if message.role == "assistant"), len(messages))
    return [*map(_described, messages[:begin])], [*map(_described, messages[begin:])]


def _described(message: Message) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if message.role == "tool":
        parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": message.text})
    elif isinstance(message.content, str):
        parts += [{"type": "text", "content": message.content}] if message.content else []
    else:
        parts += map(_part, message.content)
    for call in message.tool_calls:
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments})
    return {"role": message.role, "parts": parts}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a message; of images and files, that there was one: bytes have no place in a span."""
    return {"type": "text", "content": part.get("text")} if part.get("type") == "text" else {"type": part.get("type")}
