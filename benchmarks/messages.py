"""The messages that are written and read: prose of so many bytes of JSON, and a step of an agent."""

import json
from typing import Any

PROSE = (
    "The order left the warehouse on Monday morning and is with the carrier now; the label was printed twice, "
    'so that the tracking page says "pending" although the parcel is on its way.\n'
)
KIB = 1024


def message(size: int = KIB, role: str = "assistant") -> dict[str, Any]:
    """Return a message whose JSON has so many bytes."""
    empty = len(as_bytes({"role": role, "content": ""}))
    text = (PROSE * (size // len(PROSE) + 1))[: size - empty]
    while (excess := len(as_bytes({"role": role, "content": text})) - size) > 0:
        text = text[:-excess]
    missing = size - len(as_bytes({"role": role, "content": text}))
    return {"role": role, "content": text + "." * missing}


def as_bytes(value: object) -> bytes:
    """Return JSON as short as it gets."""
    return json.dumps(value, separators=(",", ":")).encode()


STEP = (message(), message(4 * KIB, "user"))
"""What a step of an agent writes: a message of the model, and the result of a tool."""
