"""The ids of the contract: their rules, how a text becomes one, and how they name a conversation."""

from __future__ import annotations

import hashlib
import re

from perdure.contracts.records import check_text
from perdure.errors import InvalidArgumentError, InvalidIdError

_SESSION = re.compile(r"[A-Za-z0-9_-]{1,128}")
_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,159}")
_APPROVAL = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
_CHECKPOINT = re.compile(r"[A-Za-z0-9_-]{1,128}(\.run)?")
_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,64}")

SESSION_RULE = "1 to 128 characters of A-Z a-z 0-9 _ -"
SAFE_PREFIX = "x--"
RUN_SUFFIX = ".run"
"""What the key of a run without a session ends with, which the id of no session can."""


def safe_id(text: str) -> str:
    """Map any text to a valid session id.

    A valid id that does not start with `x--` maps to itself; everything else becomes `x--` and the SHA-256 of the text,
    so that different texts have different ids. Apply it once, and keep the original in the session's `state`.

    Args:
        text: Any text, also with lone surrogates.

    Returns:
        A valid session id, the same for the same text on every machine.
    """
    if _SESSION.fullmatch(text) and not text.startswith(SAFE_PREFIX):
        return text
    return SAFE_PREFIX + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def check_name(value: object, name: str) -> str:
    """Return a text that names something: what every backend can keep, and not empty."""
    text = check_text(value, name)
    if not text:
        raise InvalidArgumentError(name, "is empty: it names nothing")
    return text


def is_session_id(text: str) -> bool:
    """Whether a text follows the rule of session ids."""
    return _SESSION.fullmatch(text) is not None


def check_session_id(value: object) -> str:
    """Return a valid session id, or raise `InvalidIdError` with the rule and the way out."""
    if type(value) is str and _SESSION.fullmatch(value):
        return value
    raise _refused("session id", value, SESSION_RULE, "Map any text to a valid id with perdure.safe_id(text).")


def check_run_id(value: object) -> str:
    """Return a valid run id, or raise `InvalidIdError`."""
    if type(value) is str and _RUN_ID.fullmatch(value):
        return value
    raise _refused("run id", value, "1 to 160 characters of A-Z a-z 0-9 _ - ., not starting with a dot")


def check_approval_id(value: object) -> str:
    """Return a valid approval id, or raise `InvalidIdError`."""
    if type(value) is str and _APPROVAL.fullmatch(value):
        return value
    raise _refused("approval id", value, "1 to 200 characters of A-Z a-z 0-9 _ - ., not starting with a dot")


def check_checkpoint_key(value: object) -> str:
    """Return a valid key of a turn journal (`<session id>` or `<name>.run`), or raise `InvalidIdError`."""
    if type(value) is str and _CHECKPOINT.fullmatch(value):
        return value
    raise _refused("checkpoint key", value, f"a session id ({SESSION_RULE}), or such a name followed by .run")


def check_namespace(value: object) -> str:
    """Return a valid namespace, or raise `InvalidIdError`."""
    if type(value) is str and _NAMESPACE.fullmatch(value):
        return value
    raise _refused("namespace", value, "1 to 64 characters of A-Z a-z 0-9 _ -")


def conversation_of(key: str) -> str:
    """Return the conversation that a key of any part belongs to: its text up to the first dot."""
    return key.partition(".")[0]


def is_run(key: str) -> bool:
    """Whether a turn journal is that of a run without a session."""
    return key.endswith(RUN_SUFFIX)


def session_of(key: str) -> str | None:
    """Return the session that a turn journal belongs to; `None` if it is that of a run without one."""
    return None if is_run(key) else key


def turn_run_id(key: str, version: int) -> str:
    """Return the run id of the turn of a session that a write of its journal begins, by the version written."""
    return f"{key}.turn-{version}"


def _refused(kind: str, value: object, rule: str, hint: str = "") -> InvalidIdError:
    shown = value if isinstance(value, str) else f"<{type(value).__name__}>"
    return InvalidIdError(kind, shown, rule, hint)
