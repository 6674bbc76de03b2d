"""Every error carries its facts through pickling, says in one sentence what happened to which id, and what to do."""

from __future__ import annotations

import copy
import inspect
import pickle
from datetime import UTC, datetime

import pytest

from perdure import errors
from perdure.contracts.approvals import Approval, Decision
from perdure.errors import PerdureError
from perdure.ownership.leases import OwnershipLostError

AT = datetime(2031, 3, 14, tzinfo=UTC)
APPROVAL = Approval(
    *("s.turn-1.s0.c0", "s.turn-1", "c1", "pay", {"to": "ann"}, AT),
    session_id="s",
    status="rejected",
    expires_at=AT,
    decision=Decision(False, AT),
)
SAMPLES: list[tuple[PerdureError, str, str]] = [
    (
        errors.InvalidIdError("session id", "a b", "1 to 128 characters", "Use safe_id."),
        "'a b' is not a valid session id: 1 to 128 characters",
        "safe_id",
    ),
    (
        errors.InvalidArgumentError("limit", "must not be negative"),
        "limit must not be negative",
        "Correct the argument",
    ),
    (
        errors.NotJsonError("records[2].message.score", "a float that is not finite"),
        "records[2].message.score is not JSON: a float that is not finite",
        "Convert the value to JSON",
    ),
    (
        errors.RecordTooLargeError("records[0]", 70, 64),
        "records[0] is 70 bytes of JSON, and the limit is 64",
        "?max_record=",
    ),
    (errors.VersionConflictError("s", 3, 4), "s is at version 4, not at the expected 3", "Load again"),
    (
        errors.StoreUnavailableError("append", "s", "no route"),
        "append of s failed and changed nothing: no route",
        "Try again",
    ),
    (
        errors.OutcomeUnknownError("append", "s", "timed out"),
        "append of s may or may not have happened: timed out",
        "Read the version before repeating the write",
    ),
    (
        errors.StoreCorruptedError("session s: records[3]", "not JSON"),
        "session s: records[3] is damaged: not JSON",
        "Restore a backup",
    ),
    (
        errors.SchemaVersionError("agent.db", 9, 1),
        "agent.db has schema version 9, and this release reads up to 1",
        "Upgrade perdure",
    ),
    (
        errors.CodecMissingError("session s: records[3]"),
        "session s: records[3] is encrypted or compressed, and the store was opened without a codec",
        "PERDURE_CODEC",
    ),
    (
        errors.WrongKeyError("sessions s: item 3", "00ff", ["11ee", "22dd"]),
        "sessions s: item 3 is encrypted with key 00ff, and the key ring has 11ee, 22dd",
        "it is not damaged",
    ),
    (errors.NotEncryptedError("sessions s: item 3"), "sessions s: item 3 is not encrypted", "accept_plaintext=True"),
    (
        errors.CodecLibraryError("zstandard", "zstd"),
        "the library zstandard is not installed",
        "pip install 'perdure[zstd]'",
    ),
    (errors.StoreClosedError("memory: sessions"), "memory: sessions is closed", "Open the store again"),
    (
        errors.WrongLoopError("memory: sessions", "belongs to another event loop"),
        "memory: sessions belongs to another event loop",
        "each event loop and in each process",
    ),
    (
        errors.UnsupportedOperationError("PlainSessions", "delete"),
        "PlainSessions does not support delete",
        "Use a store that has it",
    ),
    (
        errors.UnknownSchemeError("reddis", ["redis", "memory"], "redis", ""),
        "no installed plugin owns the scheme 'reddis' (installed: redis, memory)",
        "Did you mean 'redis'?",
    ),
    (
        errors.PluginLoadError("redis", "perdure-redis", "1.0", "ImportError: no redis"),
        "the plugin for 'redis' from perdure-redis 1.0 is broken: ImportError: no redis",
        "Repair or upgrade the distribution",
    ),
    (
        errors.PluginConflictError("redis", ["a 1.0", "b 2.0"]),
        "the scheme 'redis' is claimed by a 1.0 and b 2.0",
        "Uninstall one",
    ),
    (errors.StoreURLError("redis://host", "has no port"), "redis://host: has no port", "Correct the URL"),
    (
        errors.SessionBusyError("s", "host/1", AT),
        "session s is busy: host/1 owns it until 2031-03-14T00:00:00+00:00",
        "Wait, and try again",
    ),
    (
        errors.SessionAwaitingApprovalError("s", ["s.turn-1.s0.c0", "s.turn-1.s0.c1"]),
        "session s waits for 2 approval(s): s.turn-1.s0.c0, s.turn-1.s0.c1",
        "Decide the approvals, then call resume()",
    ),
    (
        errors.SessionConflictError("s", "s.turn-1", "other records came in"),
        "run s.turn-1 conflicts with its session: other records came in",
        "resume(rebase=True)",
    ),
    (errors.SessionDeletedError("s"), "session s was deleted", "Start a new session"),
    (errors.SessionExistsError("s"), "session s exists already", "Take another id"),
    (
        errors.SessionHalfCopiedError("s"),
        "session s is only half here: a copy of it was cut short",
        "Run the same copy or import again",
    ),
    (errors.ImportDataError("line 5 (byte 40)", "is not JSON"), "line 5 (byte 40) is not JSON", "--recover"),
    (
        errors.SummaryError("s", "the summary is empty"),
        "session s was not compacted: the summary is empty",
        "Compact again",
    ),
    (
        errors.TurnFailedError("s", "s.turn-1", 2, "Refused: no"),
        "the pending run s.turn-1 failed after 2 attempt(s): Refused: no",
        "then call resume(); or drop the turn with discard_pending()",
    ),
    (errors.ApprovalNotFoundError("s.turn-1.s0.c0"), "there is no approval s.turn-1.s0.c0", "List the approvals"),
    (
        errors.ApprovalAlreadyResolvedError(APPROVAL),
        "approval s.turn-1.s0.c0 is already rejected",
        "Use the recorded decision",
    ),
    (
        errors.ApprovalExpiredError(APPROVAL),
        "approval s.turn-1.s0.c0 expired at 2031-03-14",
        "Start the work again",
    ),
    (
        errors.ApprovalOrphanedError("s.turn-1.s0.c0", "s.turn-1"),
        "approval s.turn-1.s0.c0 belongs to the run s.turn-1, which is gone",
        "prune removes the approval",
    ),
    (errors.PropagatingToolError("the bank is closed", retryable=True), "the bank is closed", "then call resume()"),
    (
        errors.ToolOutcomeUnknownError("s.turn-1", "c1", "pay"),
        "the call c1 of pay in run s.turn-1 may or may not have happened",
        "Give the tool an `in_doubt` policy or a `probe`",
    ),
    (
        errors.AgentChangedError("s.turn-1", "it has no tool 'pay' any more"),
        "run s.turn-1 cannot be continued by this agent: it has no tool 'pay' any more",
        "Resume it with the agent that began it",
    ),
    (
        errors.LimitExceededError("s", "max_tokens", 12, 10),
        "session s has spent 12 of 10 (max_tokens)",
        "Raise the limit",
    ),
    (errors.StreamError("the stream was not entered"), "the stream was not entered", "Enter its block"),
]
FAMILIES = {"PerdureError", "StoreError", "CodecError", "PluginError", "SessionError", "ApprovalError", "RunError"}
RETRYABLE = {"StoreUnavailableError", "SessionBusyError", "PropagatingToolError"}
VALUE_ERRORS = {
    *(
        "InvalidIdError",
        "InvalidArgumentError",
        "NotJsonError",
        "RecordTooLargeError",
        "StoreURLError",
        "ImportDataError",
    ),
}


NAMES = [type(error).__name__ for error, _, _ in SAMPLES]


def test_every_error_has_a_sample() -> None:
    named = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, PerdureError) and name not in FAMILIES
    }
    assert named == {*NAMES}
    assert errors.__doc__ is not None
    for name in named | FAMILIES:
        assert name in errors.__doc__, f"the tree at the top of the module lacks {name}"


@pytest.mark.parametrize(("error", "said", "way_out"), SAMPLES, ids=NAMES)
def test_an_error(error: PerdureError, said: str, way_out: str) -> None:
    text = str(error)
    assert text.startswith(said)
    assert way_out in error.hint
    assert "\n" not in text
    assert text == text.strip()
    assert error.hint.endswith((".", "?")) or ":" in error.hint
    assert error.retryable is (type(error).__name__ in RETRYABLE)
    assert isinstance(error, ValueError) is (type(error).__name__ in VALUE_ERRORS)
    assert type(error).__doc__


@pytest.mark.parametrize(
    "error", [error for error, _, _ in SAMPLES if not isinstance(error, errors.StreamError)], ids=NAMES[:-1]
)
def test_its_facts_are_attributes_by_the_names_of_its_arguments(error: PerdureError) -> None:
    names = [*inspect.signature(type(error)).parameters]
    assert names
    assert tuple(getattr(error, name) for name in names) == error.args


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            errors.StoreUnavailableError("append", "s"),
            "append of s failed and changed nothing: the store is unavailable",
        ),
        (errors.OutcomeUnknownError("append", "s"), "append of s may or may not have happened: no answer came"),
        (errors.SessionBusyError("s"), "session s is busy: another call owns it"),
        (errors.SessionBusyError("s", "host/boot/ns/42/7/ab"), "session s is busy: process 42 on host owns it"),
    ],
)
def test_what_is_not_known_is_not_said(error: PerdureError, said: str) -> None:
    assert str(error) == said


@pytest.mark.parametrize("error", [error for error, _, _ in SAMPLES], ids=NAMES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_pickles(error: PerdureError, protocol: int) -> None:
    for made in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(made) is type(error)
        assert (str(made), made.args, vars(made)) == (str(error), error.args, vars(error))
        assert (made.hint, made.retryable) == (error.hint, error.retryable)


def test_the_internal_error_pickles_too() -> None:
    assert str(pickle.loads(pickle.dumps(OwnershipLostError("s")))) == "the turn journal s was taken over"


def test_a_note_survives() -> None:
    error = errors.SessionDeletedError("s")
    error.add_note("then closing failed")
    assert pickle.loads(pickle.dumps(error)).__notes__[1:] == ["then closing failed"]


@pytest.mark.parametrize("hint", [None, "reddis", "install"])
def test_the_way_out_of_an_unknown_scheme(hint: str | None) -> None:
    nearest, install = ("redis" if hint else None), ("pip install perdure-redis" if hint == "install" else "")
    error = errors.UnknownSchemeError("reddis", [], nearest, install)
    assert error.hint in str(error)
    assert "none" in str(error)
    want = {None: "Install the plugin", "reddis": "Did you mean 'redis'?", "install": "pip install perdure-redis"}
    assert want[hint] in error.hint


def test_a_long_value_is_cut() -> None:
    assert len(str(errors.InvalidIdError("session id", "x" * 10_000, "rule"))) < 300


@pytest.mark.parametrize(
    ("given", "said"),
    [((), "the tool stopped the turn"), ((ValueError("no money"),), "no money"), (("closed", True), "closed")],
)
def test_what_stops_a_turn_may_say_nothing_or_what_an_exception_says(given: tuple[object, ...], said: str) -> None:
    error = errors.PropagatingToolError(*given)  # type: ignore[arg-type]  # reason: a message and a flag
    made = pickle.loads(pickle.dumps(error))
    assert (str(error), error.message, str(made), made.message) == (said,) * 4
    assert made.retryable is error.retryable is (len(given) == 2)
