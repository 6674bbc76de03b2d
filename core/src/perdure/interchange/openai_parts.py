"""The parts of a message's content: those of OpenAI's chat format, and ours."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

from perdure.interchange.notes import CHANGED, KEPT, Note
from perdure.runtime.messages import BASE64

if TYPE_CHECKING:
    from perdure.contracts.records import Record

_DATA_URL: Final = "data:"
_AUDIO: Final = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_FORMATS: Final = {media_type: name for name, media_type in _AUDIO.items()}


def part_from_openai(part: object, where: str, notes: list[Note]) -> Record:
    """Return a part as we store it; one that is not understood stays as it is, with a note."""
    if isinstance(part, dict):
        match part:
            case {"type": "text", "text": str()} if is_readable(part):
                return part
            case {"type": "image_url", "image_url": {"url": str(url), **rest}} if set(part) == {"type", "image_url"}:
                return {"type": "image", **_from_url(url), **_kept(rest)}
            case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(name), **rest}} if (
                set(part) == {"type", "input_audio"} and name in _AUDIO and is_base64(data)
            ):
                return {"type": "data", "media_type": _AUDIO[name], "data": data, "encoding": BASE64, **_kept(rest)}
            case {"type": "file", "file": dict(file)} if set(part) == {"type", "file"}:
                return _file(file)
            case _:
                pass
    notes.append(Note(where, KEPT, "a part of a type that is not known stays as it is"))
    return part if isinstance(part, dict) and is_readable(part) else {"type": "openai.part", "value": part}


def part_to_openai(part: Record, where: str, notes: list[Note]) -> object:
    """Return a stored part in OpenAI's form; one that has none there stays as it is, with a note."""
    own = part.get("openai")
    extra: Record = own if isinstance(own, dict) else {}
    url = _to_url(part)
    match part:
        case {"type": "openai.part", "value": value}:
            return value
        case {"type": "text", "text": str()}:
            return part
        case {"type": "image"} if url is not None:
            return {"type": "image_url", "image_url": {"url": url, **extra}}
        case {"type": "data", "media_type": str(kind), "data": str(data)} if kind in _FORMATS:
            return {"type": "input_audio", "input_audio": {"data": data, "format": _FORMATS[kind], **extra}}
        case {"type": "file" | "data"} if url is not None or extra:
            given = {} if url is None else {"file_data": url}
            return {"type": "file", "file": {**given, **extra}}
        case _:
            notes.append(Note(where, CHANGED, f"a part of the type {part.get('type')!r} goes out as it is"))
            return part


def is_readable(part: Record) -> bool:
    """Whether a part does not say that it has base64, or has it: a transcript with another one could not be read."""
    data = part.get("data")
    return part.get("encoding") != BASE64 or (isinstance(data, str) and is_base64(data))


def is_base64(text: str) -> bool:
    """Whether a text is base64 of the one form in which bytes are written again."""
    try:
        return base64.b64encode(base64.b64decode(text, validate=True)).decode("ascii") == text
    except (ValueError, binascii.Error):
        return False


def _from_url(url: str) -> Record:
    """Return what a data URL holds, or the URL."""
    head, comma, data = url.partition(",")
    if url.startswith(_DATA_URL) and comma and head.endswith(";base64") and is_base64(data):
        return {"media_type": head[len(_DATA_URL) : -len(";base64")], "data": data, "encoding": BASE64}
    return {"url": url}


def _file(file: Record) -> Record:
    data = file.get("file_data")
    given = _from_url(data) if isinstance(data, str) else {}
    return {"type": "file", **given, **_kept({k: v for k, v in file.items() if k != "file_data" or not given})}


def _to_url(part: Record) -> str | None:
    match part:
        case {"data": str(data), "media_type": str(kind), "encoding": "base64"}:
            return f"{_DATA_URL}{kind};base64,{data}"
        case {"url": str(url)}:
            return url
        case _:
            return None


def _kept(fields: dict[Any, Any]) -> Record:
    return {"openai": fields} if fields else {}
