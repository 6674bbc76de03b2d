"""Chat messages as OpenAI's chat completions take them, and records of a transcript."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from perdure import codec
from perdure.archives import archive_named_by
from perdure.interchange.calls import repair_calls
from perdure.interchange.lines import unusable
from perdure.interchange.notes import CHANGED, KEPT, LEFT_OUT, Converted, Note
from perdure.interchange.openai_parts import part_from_openai, part_to_openai
from perdure.runtime.messages import RECORD_VERSION, Message, is_own

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perdure.contracts.records import Record

_OWN: Final = "openai"
"""The field of a message, call or part that has what only OpenAI's format knows."""
_FOREIGN: Final = "openai.message"
"""The kind of a record that holds a message which is none of a conversation, such as instructions."""
_USED: Final = ("role", "content", "tool_calls", "tool_call_id", "function_call")


def records_from_openai(messages: object, where: str = "the messages") -> Converted[list[Record]]:
    """Make records of a transcript from chat messages.

    Args:
        messages: A list of messages, as parsed from JSON.
        where: What to call them in an error.

    Returns:
        The records, and a note for everything that is not as it was. Calls and results are repaired, see
        `repair_calls`.

    Raises:
        ImportDataError: It is no list of messages.
    """
    if not isinstance(messages, list):
        raise unusable(where, f"are a {type(messages).__name__}, where a list is needed")
    notes: list[Note] = []
    records = [_record(message, f"messages[{place}]", notes) for place, message in enumerate(messages)]
    repaired = repair_calls(records)
    return Converted(repaired.value, (*notes, *repaired.notes))


def openai_from_records(records: Sequence[Record]) -> Converted[list[Any]]:
    """Make chat messages from the records of a transcript.

    What a model does not see (records of others) is left out, with a note, unless it came from such messages.

    Raises:
        StoreCorruptedError: A record that says that it is a message is none.
    """
    notes: list[Note] = []
    if (archive := archive_named_by(records)) is not None:
        notes.append(Note("records[0]", LEFT_OUT, f"what the summary stands for is in the archive {archive}"))
    messages = [
        message for place, record in enumerate(records) for message in _messages(record, f"records[{place}]", notes)
    ]
    return Converted(messages, tuple(notes))


# --- from OpenAI ---


def _record(message: object, where: str, notes: list[Note]) -> Record:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(message, dict) or role not in ("user", "assistant", "tool", "function"):
        said = "instructions belong to the agent, so no model sees them here" if role in ("system", "developer") else ""
        notes.append(Note(where, KEPT, f"a message of the role {role!r} is kept as it is: {said or 'it is not known'}"))
        return {"v": RECORD_VERSION, "kind": _FOREIGN, "message": message}
    made: Record = {"role": "tool" if role == "function" else role, "content": _content(message, where, notes)}
    calls = list(_calls(message, where, notes)) if role == "assistant" else []
    if calls:
        made["tool_calls"] = calls
    if role == "tool":
        made["tool_call_id"] = str(message.get("tool_call_id"))
    elif role == "function":
        made["tool_call_id"] = f"function-{message.get('name')}"
        notes.append(Note(where, CHANGED, "a result of the old form of function calls became one of a tool call"))
    used = (
        _USED if role == "assistant" else tuple(name for name in _USED if name not in ("tool_calls", "function_call"))
    )
    used = used if role == "tool" else tuple(name for name in used if name != "tool_call_id")
    if left := {key: value for key, value in message.items() if key not in used}:
        made[_OWN] = left
    return {"v": RECORD_VERSION, "kind": "message", "message": made}


def _content(message: Record, where: str, notes: list[Note]) -> str | list[Record]:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return [part_from_openai(part, f"{where}.content[{place}]", notes) for place, part in enumerate(content)]
    notes.append(Note(f"{where}.content", CHANGED, f"content that is a {type(content).__name__} became a part"))
    return [{"type": "openai.part", "value": content}]


def _calls(message: Record, where: str, notes: list[Note]) -> Iterator[Record]:
    given = message.get("tool_calls") or []
    if not isinstance(given, list):
        given = [given]
    for place, call in enumerate(given):
        yield _call(call, f"{where}.tool_calls[{place}]", notes)
    old = message.get("function_call")
    if isinstance(old, dict):
        notes.append(Note(where, CHANGED, "a call of the old form of function calls became a tool call"))
        name = str(old.get("name"))
        yield {"id": f"function-{name}", "name": name, **_arguments(old.get("arguments"), where, notes)}


def _call(call: object, where: str, notes: list[Note]) -> Record:
    match call:
        case {
            "id": str(call_id),
            "type": "function",
            "function": {"name": str(name), "arguments": given, **rest},
            **more,
        }:
            kept: dict[Any, Any] = {**({"function": rest} if rest else {}), **more}
            made = {"id": call_id, "name": name, **_arguments(given, where, notes)}
            return {**made, **({_OWN: kept} if kept else {})}
        case {"id": str(call_id), "type": str(kind), **rest}:
            body = rest.get(kind)
            name = str(body.get("name", kind)) if isinstance(body, dict) else kind
            notes.append(Note(where, KEPT, f"a call of the type {kind!r} is kept as it is, without arguments"))
            return {"id": call_id, "name": name, "arguments": {}, _OWN: {"call": call}}
        case _:
            notes.append(Note(where, KEPT, "a call that is not of the known form is kept as it is, without arguments"))
            call_id = str(call.get("id")) if isinstance(call, dict) else "None"
            return {"id": call_id, "name": "unknown", "arguments": {}, _OWN: {"call": call}}


def _arguments(given: object, where: str, notes: list[Note]) -> Record:
    """Return the arguments of a call; what is no JSON object is kept as the text that it is."""
    if isinstance(given, str):
        try:
            arguments = codec.decode(given.encode("utf-8", "surrogatepass"))
            codec.encode(arguments)  # what is read may be more than can be stored: 1e999, a split pair, too deep
        except ValueError:
            arguments = None
        if isinstance(arguments, dict):
            return {"arguments": arguments}
    notes.append(Note(where, KEPT, "arguments that are no JSON object are kept as text; the call has none"))
    return {"arguments": {}, "arguments_text": given}


# --- to OpenAI ---


def _messages(record: Record, where: str, notes: list[Note]) -> Iterator[Any]:
    if record.get("kind") == _FOREIGN and "message" in record:
        yield record["message"]
    elif not is_own(record):
        notes.append(Note(where, LEFT_OUT, f"a record of the kind {record.get('kind')!r} is no message"))
    else:
        if record["kind"] != "message":
            notes.append(Note(where, CHANGED, "a summary goes out as a message of the user"))
        Message.from_record(record["message"], where)  # or it is said to be damaged
        yield _message(record["message"], where, notes)


def _message(message: Record, where: str, notes: list[Note]) -> Record:
    made: Record = {"role": message.get("role"), "content": _content_to(message.get("content", ""), where, notes)}
    if message.get("tool_calls"):
        made["content"] = made["content"] or None
        made["tool_calls"] = [_call_to(call) for call in message["tool_calls"]]
    if message.get("tool_call_id") is not None:
        made["tool_call_id"] = message["tool_call_id"]
    left = [name for name in ("is_error", "metadata") if message.get(name)]
    notes.extend(Note(where, LEFT_OUT, f"{name} has no place in chat messages") for name in left)
    own = message.get(_OWN)
    return {**made, **own} if isinstance(own, dict) else made


def _content_to(content: Any, where: str, notes: list[Note]) -> Any:
    if isinstance(content, str):
        return content
    return [part_to_openai(part, f"{where}.content[{place}]", notes) for place, part in enumerate(content)]


def _call_to(call: Record) -> object:
    given = call.get(_OWN)
    own: Record = given if isinstance(given, dict) else {}
    if "call" in own:
        return own["call"]
    text = call.get("arguments_text", None)
    if text is None:
        text = codec.encode(call.get("arguments", {})).decode("utf-8")
    function = {"name": call["name"], "arguments": text, **own.get("function", {})}
    more = {key: value for key, value in own.items() if key != "function"}
    return {"id": call["id"], "type": "function", "function": function, **more}
