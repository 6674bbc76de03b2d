"""The content blocks of Claude-shaped messages, and the parts, calls and results of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from perdure.interchange.notes import CHANGED, KEPT, LEFT_OUT, Note
from perdure.interchange.openai_parts import is_base64, is_readable
from perdure.runtime.messages import BASE64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.contracts.records import Record

CALL: Final = "tool_use"
RESULT: Final = "tool_result"
_KINDS: Final = {"image": "image", "document": "file"}
_BLOCKS: Final = {kind: block for block, kind in _KINDS.items()}
_KNOWN: Final = ("text", "thinking", "redacted_thinking")
_OF_RESULT: Final = {"type", "tool_use_id", "content", "is_error"}
_OF_MESSAGE: Final = {"role", "content", "tool_calls", "tool_call_id", "is_error", "metadata"}


def parts_from_blocks(content: object, where: str, notes: list[Note]) -> str | list[Record]:
    """Return the content of a message or a result: text stays text, blocks become parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return [_part(block, f"{where}[{place}]", notes) for place, block in enumerate(content)]
    notes.append(Note(where, CHANGED, f"content that is a {type(content).__name__} became a part"))
    return [{"type": "claude.block", "value": content}]


def call_from_block(block: Record, where: str, notes: list[Note]) -> Record:
    """Return a `tool_use` block as a call; input that is no object is kept beside it."""
    rest = {key: value for key, value in block.items() if key not in ("type", "id", "name", "input")}
    made = {**rest, "id": str(block.get("id")), "name": str(block.get("name")), "arguments": block.get("input", {})}
    if not isinstance(made["arguments"], dict):
        notes.append(Note(where, KEPT, "input that is no object is kept as `input`; the call has no arguments"))
        made |= {"arguments": {}, "input": block["input"]}
    return made


def result_from_block(block: Record, where: str, notes: list[Note]) -> Record:
    """Return a `tool_result` block as a message of the role `tool`."""
    if clash := sorted(_OF_MESSAGE & (block.keys() - _OF_RESULT)):
        notes.append(Note(where, LEFT_OUT, f"fields of a result that mean something else here: {', '.join(clash)}"))
    made: Record = {
        **{key: value for key, value in block.items() if key not in _OF_RESULT | _OF_MESSAGE},
        "role": "tool",
        "content": parts_from_blocks(block.get("content"), f"{where}.content", notes),
        "tool_call_id": str(block.get("tool_use_id")),
    }
    return made | ({"is_error": True} if block.get("is_error") is True else {})


def blocks_from_parts(content: Any) -> str | list[Any]:
    """Return content as text or blocks."""
    return content if isinstance(content, str) else [_block(part) for part in content]


def block_from_call(call: Record) -> Record:
    """Return a call as a `tool_use` block."""
    rest = {key: value for key, value in call.items() if key not in ("id", "name", "arguments", "input")}
    given = call.get("input", call.get("arguments", {})) if not call.get("arguments") else call["arguments"]
    return {"type": CALL, "id": call["id"], "name": call["name"], "input": given, **rest}


def block_from_result(message: Record) -> Record:
    """Return a message of the role `tool` as a `tool_result` block."""
    made = {
        "type": RESULT,
        "tool_use_id": message.get("tool_call_id"),
        "content": blocks_from_parts(message.get("content", "")),
        **{key: value for key, value in message.items() if key not in _OF_RESULT | _OF_MESSAGE},
    }
    return made | ({"is_error": True} if message.get("is_error") else {})


def blocks(content: object) -> Sequence[Any]:
    """Return the blocks of content: none if it is text."""
    return content if isinstance(content, list) else ()


def _part(block: object, where: str, notes: list[Note]) -> Record:
    if not isinstance(block, dict):
        notes.append(Note(where, CHANGED, f"a block that is a {type(block).__name__} became a part"))
        return {"type": "claude.block", "value": block}
    kind = str(block.get("type"))
    source: Any = block.get("source")
    rest = {key: value for key, value in block.items() if key not in ("type", "source")}
    if kind in _KINDS and not {"data", "url", "media_type", "encoding"} & rest.keys():
        match source:
            case {"type": "base64", "media_type": str(media_type), "data": str(data)} if set(source) == {
                "type",
                "media_type",
                "data",
            } and is_base64(data):
                return {**rest, "type": _KINDS[kind], "media_type": media_type, "data": data, "encoding": BASE64}
            case {"type": "url", "url": str(url)} if set(source) == {"type", "url"}:
                return {**rest, "type": _KINDS[kind], "url": url}
            case _:
                pass
    if kind not in _KNOWN or not is_readable(block):
        notes.append(Note(where, KEPT, f"a block of the type {kind!r} stays as it is"))
    return block if is_readable(block) else {"type": "claude.block", "value": block}


def _block(part: Record) -> Any:
    rest = {key: value for key, value in part.items() if key not in ("type", "media_type", "data", "encoding", "url")}
    match part:
        case {"type": "claude.block", "value": value}:
            return value
        case {"type": "image" | "file" as kind, "media_type": str(media_type), "data": str(data), "encoding": "base64"}:
            source = {"type": "base64", "media_type": media_type, "data": data}
            return {"type": _BLOCKS[kind], "source": source, **rest}
        case {"type": "image" | "file" as kind, "url": str(url)} if "data" not in part:
            return {"type": _BLOCKS[kind], "source": {"type": "url", "url": url}, **rest}
        case _:
            return part
