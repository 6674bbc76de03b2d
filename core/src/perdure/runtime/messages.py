"""Messages, and the records of a transcript that hold them."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from perdure import codec
from perdure.archives import SUMMARY
from perdure.contracts.records import Record
from perdure.errors import InvalidArgumentError, NotJsonError, StoreCorruptedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

RECORD_VERSION: Final = 1
BASE64: Final = "base64"
"""What a stored part has under `encoding` whose `data` was given as bytes."""
_ROLES: Final = {role: role for role in ("user", "assistant", "tool")}
"""Each as the one text that all messages which were read have."""
_KNOWN: Final = frozenset({"role", "content", "tool_calls", "tool_call_id", "is_error", "metadata"})
_KNOWN_OF_CALLS: Final = frozenset({"id", "name", "arguments"})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to call a tool.

    Attributes:
        id: The model's name for the call; it comes back with the result.
        name: The tool.
        arguments: A JSON object.
        extra: Fields that this release does not know; they are kept.
    """

    id: str
    name: str
    arguments: Record = field(default_factory=dict)
    extra: Record = field(default_factory=dict)

    def to_record(self) -> Record:
        """Return the call as a JSON object."""
        return {**self.extra, "id": self.id, "name": self.name, "arguments": self.arguments}

    @classmethod
    def from_record(cls, record: Record) -> ToolCall:
        """Make a call of a JSON object."""
        extra = {} if record.keys() <= _KNOWN_OF_CALLS else _beside(record, _KNOWN_OF_CALLS)
        return cls(str(record["id"]), str(record["name"]), record["arguments"], extra)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: `user`, `assistant` or `tool`.
        content: Text, or a list of parts: JSON objects with a `type` such as `text`, `image`, `file` or `data`. What a
            part has under `data` may be bytes; they are stored as base64 and come back as bytes.
        tool_calls: What an assistant asks for.
        tool_call_id: Which call a tool message answers.
        is_error: Whether a tool message says that the call failed.
        metadata: For the application; JSON.
        extra: Fields that this release does not know; they are kept.
    """

    role: str
    content: str | Sequence[Record] = ""
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None
    is_error: bool = False
    metadata: Record = field(default_factory=dict)
    extra: Record = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text of the message, without its other parts."""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text", "")) for part in self.content)

    def to_record(self, where: str = "message") -> Record:
        """Return the message as a JSON object, or raise `NotJsonError` if its content is neither text nor parts."""
        record: Record = {**self.extra, "role": self.role}
        stored = self.content if isinstance(self.content, str) else _stored_parts(self.content, f"{where}.content")
        record["content"] = stored
        if self.tool_calls:
            record["tool_calls"] = [call.to_record() for call in self.tool_calls]
        if self.tool_call_id is not None:
            record["tool_call_id"] = self.tool_call_id
        if self.is_error:
            record["is_error"] = True
        if self.metadata:
            record["metadata"] = self.metadata
        return record

    @classmethod
    def from_record(cls, record: Record, where: str = "message") -> Message:
        """Make a message of a JSON object, or raise `StoreCorruptedError`."""
        try:
            role: str = record["role"]
            content = record.get("content", "")
            return cls(  # by place, which takes two thirds of the time: a transcript has thousands of them
                _ROLES.get(role, role),
                content if type(content) is str else _given_content(content),
                tuple(map(ToolCall.from_record, record["tool_calls"])) if "tool_calls" in record else (),
                record.get("tool_call_id"),
                record.get("is_error", False),
                record.get("metadata", {}),
                {} if _KNOWN.issuperset(record) else _beside(record, _KNOWN),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise StoreCorruptedError(where, f"not a message: {error!r}") from error

    def for_others(self) -> Message:
        """Return the message for somebody who may change what is in it: a copy, unless it is all text."""
        content = self.content
        if isinstance(content, str):
            if not (self.tool_calls or self.metadata or self.extra):
                return self
        else:
            parts = [codec.copied(part) for part in content]
            content = parts if isinstance(content, list) else tuple(parts)
        return Message(
            self.role,
            content,
            tuple([ToolCall(c.id, c.name, codec.copied(c.arguments), codec.copied(c.extra)) for c in self.tool_calls]),
            self.tool_call_id,
            self.is_error,
            codec.copied(self.metadata),
            codec.copied(self.extra),
        )


Given: TypeAlias = "str | Message | Sequence[Message] | Sequence[Record]"
"""What a caller may send: text, a message, messages, or the parts of one message."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What model requests have cost; add two with `+`.

    Attributes:
        input_tokens: Tokens read.
        output_tokens: Tokens written.
        requests: How many requests.
        cost_usd: What they cost, in US dollars.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.requests + other.requests,
            self.cost_usd + other.cost_usd,
        )

    def to_record(self) -> Record:
        """Return the usage as a JSON object."""
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "requests": self.requests,
            "cost_usd": float(self.cost_usd),
        }

    @classmethod
    def from_record(cls, record: Record) -> Usage:
        """Make a usage of a JSON object; what is missing counts nothing."""
        return cls(
            record.get("input_tokens", 0),
            record.get("output_tokens", 0),
            record.get("requests", 0),
            record.get("cost_usd", 0.0),
        )


def _beside(record: Record, known: frozenset[str]) -> Record:
    return {key: value for key, value in record.items() if key not in known}


def _stored_parts(parts: object, where: str) -> list[Record]:
    if not isinstance(parts, (list, tuple)):
        raise NotJsonError(where, f"a {type(parts).__name__}, where text or a list of parts is needed")
    stored: list[Record] = []
    for place, part in enumerate(parts):
        if type(part) is not dict:
            raise NotJsonError(f"{where}[{place}]", f"a {type(part).__name__}, where a part (dict) is needed")
        if isinstance(part.get("data"), (bytes, bytearray, memoryview)):
            stored.append({**part, "data": base64.b64encode(part["data"]).decode("ascii"), "encoding": BASE64})
        else:
            _require_readable(part, f"{where}[{place}]")
            stored.append(part)
    return stored


def _require_readable(part: Record, where: str) -> None:
    """Refuse a part that says that it has base64 and has none: nobody could read the message again."""
    if part.get("encoding") == BASE64:
        try:
            _given_part(part)
        except (LookupError, TypeError, ValueError):
            problem = "`data` that is no base64, as `encoding` says; give bytes, or leave `encoding` out"
            raise NotJsonError(where, problem) from None


def _given_content(content: str | list[Record]) -> str | list[Record]:
    if isinstance(content, str):
        return content
    return [_given_part(part) if part.get("encoding") == BASE64 else part for part in content]


def _given_part(part: Record) -> Record:
    plain = {name: value for name, value in part.items() if name != "encoding"}
    return {**plain, "data": base64.b64decode(part["data"], validate=True)}


def as_messages(given: Given) -> tuple[Message, ...]:
    """Return what a caller sends (text, a message, messages, or the parts of one) as messages of the user.

    Raises:
        InvalidArgumentError: It is none of these, or has a call or a result, which only a turn may write.
    """
    if isinstance(given, str):
        return (Message("user", given),)
    items: list[Any] = (
        [given] if isinstance(given, Message) else list(given) if isinstance(given, (list, tuple)) else []
    )
    if items and all(isinstance(item, dict) for item in items):
        if any("role" in item for item in items):
            raise InvalidArgumentError("input", "has a message as a dict; give Message(role, content)")
        return (_with_parts(Message("user", items), "input"),)
    if not items or not all(isinstance(item, Message) for item in items):
        raise InvalidArgumentError("input", "must be text, one message or more, or the parts of one")
    messages: list[Message] = items
    for place, message in enumerate(messages):
        if message.role not in ("user", "assistant") or message.tool_calls or message.tool_call_id is not None:
            raise InvalidArgumentError(f"input[{place}]", "must be of the user or the assistant, and without calls")
        if not _KNOWN.isdisjoint(message.extra):
            raise InvalidArgumentError(f"input[{place}].extra", "has a name that is a field of messages")
    return tuple(_with_parts(message, f"input[{place}].content") for place, message in enumerate(messages))


def _with_parts(message: Message, where: str) -> Message:
    """Return a message whose parts, if it has any, a provider can tell apart."""
    for place, part in enumerate(message.content if isinstance(message.content, (list, tuple)) else ()):
        if not isinstance(part, dict):
            continue  # it is refused where the message is made a record, which says what it is
        kind = part.get("type")
        if type(kind) is not str or not kind:
            raise InvalidArgumentError(f"{where}[{place}]", 'has no type, as {"type": "text", "text": "..."} has')
        if kind == "text" and type(part.get("text")) is not str:
            raise InvalidArgumentError(f"{where}[{place}]", "is of the type text, and has no text under `text`")
    return message


def is_own(record: Record) -> bool:
    """Whether a record is a message or a summary; every other is somebody else's, whatever it has under which name."""
    return record.get("kind") in ("message", SUMMARY) and "message" in record


def messages_of(records: Sequence[Record]) -> tuple[Message, ...]:
    """Return what a model may see of a transcript: messages and summaries; foreign records are left out."""
    return tuple(Message.from_record(record["message"]) for record in records if is_own(record))


def message_record(run_id: str, at: str, message: Record) -> Record:
    """Return a transcript's record that holds a message."""
    return {
        "v": RECORD_VERSION,
        "kind": "message",
        "run_id": run_id,
        "at": at,
        "message": message,
    }


def stamp(at: datetime) -> str:
    """Return an instant as it stands in records and entries."""
    return at.isoformat()
