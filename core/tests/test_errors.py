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
SAMPLES: list[tuple[PerdureError, str]] = [
    (errors.InvalidIdError("session id", "a b", "1 to 128 characters", "Use safe_id."), "'a b'"),
    (errors.InvalidArgumentError("limit", "must not be negative"), "limit"),
    (errors.NotJsonError("records[2].message.score", "a float that is not finite"), "records[2].message.score"),
    (errors.RecordTooLargeError("records[0]", 70, 64), "records[0]"),
    (errors.VersionConflictError("s", 3, 4), "s is at version 4"),
    (errors.StoreUnavailableError("append", "s", "no route"), "append of s"),
    (errors.OutcomeUnknownError("append", "s", "no answer"), "append of s"),
    (errors.StoreCorruptedError("session s: records[3]", "not JSON"), "session s: records[3]"),
    (errors.SchemaVersionError("agent.db", 9, 1), "agent.db"),
    (errors.CodecMissingError("session s: records[3]"), "session s: records[3]"),
    (errors.WrongKeyError("sessions s: item 3", "00ff", ["11ee"]), "key 00ff"),
    (errors.NotEncryptedError("sessions s: item 3"), "sessions s: item 3"),
    (errors.CodecLibraryError("zstandard", "zstd"), "zstandard"),
    (errors.StoreClosedError("memory: sessions"), "memory: sessions"),
    (errors.WrongLoopError("memory: sessions", "belongs to another event loop"), "memory: sessions"),
    (errors.UnsupportedOperationError("PlainSessions", "delete"), "PlainSessions"),
    (errors.UnknownSchemeError("reddis", ["redis", "memory"], "redis", ""), "'reddis'"),
    (errors.PluginLoadError("redis", "perdure-redis", "1.0", "ImportError: no redis"), "perdure-redis 1.0"),
    (errors.PluginConflictError("redis", ["a 1.0", "b 2.0"]), "a 1.0 and b 2.0"),
    (errors.StoreURLError("redis://host", "has no port"), "redis://host"),
    (errors.SessionBusyError("s", "host/1", AT), "session s"),
    (errors.SessionAwaitingApprovalError("s", ["s.turn-1.s0.c0"]), "s.turn-1.s0.c0"),
    (errors.SessionConflictError("s", "s.turn-1", "other records came in"), "s.turn-1"),
    (errors.SessionDeletedError("s"), "session s"),
    (errors.SessionExistsError("s"), "session s"),
    (errors.SessionHalfCopiedError("s"), "session s"),
    (errors.ImportDataError("line 5 (byte 40)", "is not JSON"), "line 5 (byte 40)"),
    (errors.SummaryError("s", "the summary is empty"), "session s"),
    (errors.TurnFailedError("s", "s.turn-1", 2, "Refused: no"), "s.turn-1"),
    (errors.ApprovalNotFoundError("s.turn-1.s0.c0"), "s.turn-1.s0.c0"),
    (errors.ApprovalAlreadyResolvedError(APPROVAL), "s.turn-1.s0.c0"),
    (errors.ApprovalExpiredError(APPROVAL), "s.turn-1.s0.c0"),
    (errors.ApprovalOrphanedError("s.turn-1.s0.c0", "s.turn-1"), "s.turn-1.s0.c0"),
    (errors.PropagatingToolError("the bank is closed", retryable=True), "the bank is closed"),
    (errors.ToolOutcomeUnknownError("s.turn-1", "c1", "pay"), "s.turn-1"),
    (errors.AgentChangedError("s.turn-1", "it has no tool 'pay' any more"), "s.turn-1"),
    (errors.LimitExceededError("s", "max_tokens", 12, 10), "session s"),
    (errors.StreamError("the stream was not entered"), "not entered"),
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


def of(sample: tuple[PerdureError, str]) -> str:
    return type(sample[0]).__name__


def test_every_error_has_a_sample() -> None:
    named = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, PerdureError) and name not in FAMILIES
    }
    assert named == {of(sample) for sample in SAMPLES}
    assert errors.__doc__ is not None
    for name in named | FAMILIES:
        assert name in errors.__doc__, f"the tree at the top of the module lacks {name}"


@pytest.mark.parametrize(("error", "names"), SAMPLES, ids=[of(sample) for sample in SAMPLES])
def test_an_error(error: PerdureError, names: str) -> None:
    text = str(error)
    assert names in text
    assert "\n" not in text
    assert text == text.strip()
    assert error.hint
    assert error.hint.endswith((".", "?")) or ":" in error.hint
    assert error.retryable is (type(error).__name__ in RETRYABLE)
    assert isinstance(error, ValueError) is (type(error).__name__ in VALUE_ERRORS)
    assert type(error).__doc__


@pytest.mark.parametrize(("error", "_"), SAMPLES, ids=[of(sample) for sample in SAMPLES])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_pickles(error: PerdureError, _: str, protocol: int) -> None:
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
