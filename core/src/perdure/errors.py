"""Every error that perdure raises.

PerdureError
├─ StoreError
│  ├─ InvalidIdError, InvalidArgumentError, NotJsonError, RecordTooLargeError      (also ValueError)
│  ├─ VersionConflictError
│  ├─ StoreUnavailableError, OutcomeUnknownError
│  ├─ StoreCorruptedError, SchemaVersionError
│  ├─ CodecError: CodecMissingError, WrongKeyError, NotEncryptedError, CodecLibraryError
│  ├─ StoreClosedError, WrongLoopError
│  └─ UnsupportedOperationError
├─ PluginError: UnknownSchemeError, PluginLoadError, PluginConflictError, StoreURLError (also ValueError)
├─ ImportDataError (also ValueError)
├─ SessionError: SessionBusyError, SessionAwaitingApprovalError, SessionConflictError, SessionDeletedError,
│                SessionExistsError, SessionHalfCopiedError (a SessionBusyError), SummaryError, TurnFailedError
├─ ApprovalError: ApprovalNotFoundError, ApprovalAlreadyResolvedError, ApprovalExpiredError, ApprovalOrphanedError
└─ RunError: PropagatingToolError, ToolOutcomeUnknownError, AgentChangedError, LimitExceededError, StreamError

An error carries its facts as attributes, a message of one sentence, a `hint` that says what to do next, and
`retryable`. The arguments of the constructor are the facts, so every error pickles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from perdure.contracts.approvals import Approval


class PerdureError(Exception):
    """Base of every error of this package.

    Attributes:
        hint: What to do next, one sentence.
        retryable: Whether the same call may succeed later without a change by the caller.
    """

    hint: str = ""
    retryable: bool = False

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # reason: an attribute that starts with the hint
        """The notes that a traceback shows below the message: the hint first, unless the message has it already."""
        first = [] if not self.hint or self.hint in str(self) else [self.hint]
        notes: list[str] = self.__dict__.setdefault("_notes", first)
        return notes


# --- stores -----------------------------------------------------------------------------------------------------------


class StoreError(PerdureError):
    """A store refused or failed a call."""


class InvalidIdError(StoreError, ValueError):
    """An id breaks its rule. Nothing was read or written."""

    def __init__(self, kind: str, value: str, rule: str, hint: str = "") -> None:
        """Remember the kind of id, the value, its rule and the way out."""
        super().__init__(kind, value, rule, hint)
        self.kind, self.value, self.rule = kind, value, rule
        self.hint = hint or "Use an id that follows the rule."

    def __str__(self) -> str:
        """Say which id is wrong and by what rule."""
        shown = self.value if len(self.value) <= 80 else self.value[:77] + "..."
        return f"{shown!r} is not a valid {self.kind}: {self.rule}. {self.hint}"


class InvalidArgumentError(StoreError, ValueError):
    """An argument has a value that no store accepts. Nothing was read or written."""

    hint = "Correct the argument."

    def __init__(self, argument: str, problem: str) -> None:
        """Remember the argument and what is wrong with it."""
        super().__init__(argument, problem)
        self.argument, self.problem = argument, problem

    def __str__(self) -> str:
        """Say which argument is wrong and why."""
        return f"{self.argument} {self.problem}"


class NotJsonError(StoreError, ValueError):
    """A value is not exact JSON. Nothing was written."""

    hint = "Convert the value to JSON types before storing it."

    def __init__(self, where: str, problem: str) -> None:
        """Remember the place and the problem; the value itself is never shown."""
        super().__init__(where, problem)
        self.where, self.problem = where, problem

    def __str__(self) -> str:
        """Say where the value is and what is wrong with it."""
        return f"{self.where} is not JSON: {self.problem}"


class RecordTooLargeError(StoreError, ValueError):
    """A record is larger than the store's limit. Nothing was written."""

    hint = "Store the large part elsewhere and keep a reference, or raise ?max_record=."

    def __init__(self, where: str, size: int, limit: int) -> None:
        """Remember the place, the size and the limit, both in bytes."""
        super().__init__(where, size, limit)
        self.where, self.size, self.limit = where, size, limit

    def __str__(self) -> str:
        """Say which record is too large and by how much."""
        return f"{self.where} is {self.size} bytes of JSON, and the limit is {self.limit}"


class VersionConflictError(StoreError):
    """The version in the store is not the expected one. Nothing was changed."""

    hint = "Load again, look at what has changed, and repeat at the new version."

    def __init__(self, key: str, expected: int | None, actual: int | None) -> None:
        """Remember the key, the expected version and the one found (0: absent, None: not known)."""
        super().__init__(key, expected, actual)
        self.key, self.expected, self.actual = key, expected, actual

    def __str__(self) -> str:
        """Say which key conflicts."""
        return f"{self.key} is at version {self.actual}, not at the expected {self.expected}"


class StoreUnavailableError(StoreError):
    """The store could not be reached or could not serve the call. Nothing was written."""

    hint = "Try again; if it goes on, look at the cause."
    retryable = True

    def __init__(self, operation: str, key: str, problem: str = "") -> None:
        """Remember the operation, the key and the problem."""
        super().__init__(operation, key, problem)
        self.operation, self.key, self.problem = operation, key, problem

    def __str__(self) -> str:
        """Say which call failed and why."""
        return (
            f"{self.operation} of {self.key} failed and changed nothing: {self.problem or 'the store is unavailable'}"
        )


class OutcomeUnknownError(StoreError):
    """A write failed in a way that does not tell whether it happened."""

    hint = "Read the version before repeating the write; repeat only at the same expected version."

    def __init__(self, operation: str, key: str, problem: str = "") -> None:
        """Remember the operation, the key and the problem."""
        super().__init__(operation, key, problem)
        self.operation, self.key, self.problem = operation, key, problem

    def __str__(self) -> str:
        """Say which write is in doubt and why."""
        return f"{self.operation} of {self.key} may or may not have happened: {self.problem or 'no answer came'}"


class StoreCorruptedError(StoreError):
    """What is stored cannot be read as what was written. Nothing was changed."""

    hint = "Restore a backup, or delete the damaged data."

    def __init__(self, where: str, problem: str, id: str | None = None) -> None:
        """Remember the place (file, key, line), the problem, and of a listing the id behind which it can go on."""
        super().__init__(where, problem, id)
        self.where, self.problem, self.id = where, problem, id

    def __str__(self) -> str:
        """Say where the damage is and what it is."""
        return f"{self.where} is damaged: {self.problem}"


class SchemaVersionError(StoreError):
    """The data was written by a newer release. Nothing was touched."""

    hint = "Upgrade perdure and the backend, or open the data with the release that wrote it."

    def __init__(self, where: str, found: int, supported: int) -> None:
        """Remember the place, the version found and the newest one that is supported."""
        super().__init__(where, found, supported)
        self.where, self.found, self.supported = where, found, supported

    def __str__(self) -> str:
        """Name both versions."""
        return f"{self.where} has schema version {self.found}, and this release reads up to {self.supported}"


class CodecError(StoreError):
    """What is stored cannot be read or written by the codec that the store was opened with. Nothing was changed."""


class CodecMissingError(CodecError):
    """What is stored is encrypted or compressed, and the store was opened without a codec. Nothing was changed."""

    hint = "Open the store with the codec that wrote it: open_store(url, codec=...), or PERDURE_CODEC for the command line."

    def __init__(self, where: str) -> None:
        """Remember the place."""
        super().__init__(where)
        self.where = where

    def __str__(self) -> str:
        """Say what was read."""
        return f"{self.where} is encrypted or compressed, and the store was opened without a codec for it"


class WrongKeyError(CodecError):
    """What is stored was encrypted with a key that is not in the key ring. Nothing was changed."""

    hint = "Open the store with a key ring that has this key; it is not damaged."

    def __init__(self, where: str, key: str, known: Sequence[str]) -> None:
        """Remember the place, the id of the key that it needs and the ids of the keys that are there."""
        super().__init__(where, key, tuple(known))
        self.where, self.key, self.known = where, key, tuple(known)

    def __str__(self) -> str:
        """Name the keys by their ids, which tell nothing of the keys."""
        return f"{self.where} is encrypted with key {self.key}, and the key ring has {', '.join(self.known)}"


class NotEncryptedError(CodecError):
    """What is stored is not encrypted, where only what is encrypted is trusted. Nothing was changed."""

    hint = "If the store was in use before it was encrypted, open it with Encryption(..., accept_plaintext=True) and re-encrypt it."

    def __init__(self, where: str) -> None:
        """Remember the place."""
        super().__init__(where)
        self.where = where

    def __str__(self) -> str:
        """Say what was read."""
        return f"{self.where} is not encrypted"


class CodecLibraryError(CodecError):
    """A codec needs a library that is not installed."""

    def __init__(self, library: str, extra: str) -> None:
        """Remember the library and the extra of perdure that installs it."""
        super().__init__(library, extra)
        self.library, self.extra = library, extra
        self.hint = f"Install it: pip install 'perdure[{extra}]'"

    def __str__(self) -> str:
        """Name the library."""
        return f"the library {self.library} is not installed"


class StoreClosedError(StoreError):
    """The store was closed (or is not open yet)."""

    hint = "Open the store again; use `async with open_store(...)` around all of its use."

    def __init__(self, store: str) -> None:
        """Remember the store."""
        super().__init__(store)
        self.store = store

    def __str__(self) -> str:
        """Name the store."""
        return f"{self.store} is closed"


class WrongLoopError(StoreError):
    """A store is used from another event loop, or in a forked child. Nothing was sent."""

    hint = "Open a store of its own in each event loop and in each process."

    def __init__(self, store: str, reason: str) -> None:
        """Remember the store and the reason."""
        super().__init__(store, reason)
        self.store, self.reason = store, reason

    def __str__(self) -> str:
        """Say why the store cannot be used here."""
        return f"{self.store} {self.reason}"


class UnsupportedOperationError(StoreError):
    """The store does not offer the operation."""

    hint = "Use a store that has it; `AgentStore` takes each of its parts from where you like."

    def __init__(self, store: str, operation: str) -> None:
        """Remember the store and the operation."""
        super().__init__(store, operation)
        self.store, self.operation = store, operation

    def __str__(self) -> str:
        """Name the store and the operation."""
        return f"{self.store} does not support {self.operation}"


# --- plugins ----------------------------------------------------------------------------------------------------------


class PluginError(PerdureError):
    """A backend plugin could not be found, loaded or used."""


class UnknownSchemeError(PluginError):
    """No installed plugin owns the scheme of a store URL."""

    def __init__(self, scheme: str, installed: Sequence[str], nearest: str | None = None, install: str = "") -> None:
        """Remember the scheme, the installed ones, the nearest name and how to install a first-party one."""
        super().__init__(scheme, tuple(installed), nearest, install)
        self.scheme, self.installed, self.nearest, self.install = scheme, tuple(installed), nearest, install
        if install:
            self.hint = f"Install it: {install}"
        elif nearest:
            self.hint = f"Did you mean {nearest!r}?"
        else:
            self.hint = "Install the plugin that owns the scheme."

    def __str__(self) -> str:
        """Name the scheme and the installed ones."""
        names = ", ".join(self.installed) or "none"
        return f"no installed plugin owns the scheme {self.scheme!r} (installed: {names}). {self.hint}"


class PluginLoadError(PluginError):
    """An installed plugin is broken. Other plugins are not affected; the cause is `__cause__`."""

    hint = "Repair or upgrade the distribution that provides the plugin."

    def __init__(self, scheme: str, distribution: str, version: str, problem: str) -> None:
        """Remember the scheme, the distribution with its version, and the problem."""
        super().__init__(scheme, distribution, version, problem)
        self.scheme, self.distribution, self.version, self.problem = scheme, distribution, version, problem

    def __str__(self) -> str:
        """Name the distribution and the problem."""
        return f"the plugin for {self.scheme!r} from {self.distribution} {self.version} is broken: {self.problem}"


class PluginConflictError(PluginError):
    """Two distributions claim one scheme."""

    hint = "Uninstall one of the two."

    def __init__(self, scheme: str, distributions: Sequence[str]) -> None:
        """Remember the scheme and the distributions."""
        super().__init__(scheme, tuple(distributions))
        self.scheme, self.distributions = scheme, tuple(distributions)

    def __str__(self) -> str:
        """Name the distributions."""
        return f"the scheme {self.scheme!r} is claimed by {' and '.join(self.distributions)}"


class StoreURLError(PluginError, ValueError):
    """A store URL or one of its options is wrong. Nothing was opened."""

    hint = "Correct the URL."

    def __init__(self, url: str, problem: str) -> None:
        """Remember the URL (without secrets) and the problem."""
        super().__init__(url, problem)
        self.url, self.problem = url, problem

    def __str__(self) -> str:
        """Name the URL and the problem."""
        return f"{self.url}: {self.problem}"


# --- imports ----------------------------------------------------------------------------------------------------------


class ImportDataError(PerdureError, ValueError):
    """What is to be imported is not what it should be. Nothing of it was written."""

    hint = "Correct the file, or let damaged lines be passed over: strict=False, or --recover."

    def __init__(self, where: str, problem: str) -> None:
        """Remember the place and the problem."""
        super().__init__(where, problem)
        self.where, self.problem = where, problem

    def __str__(self) -> str:
        """Name the place and the problem."""
        return f"{self.where} {self.problem}"


# --- sessions ---------------------------------------------------------------------------------------------------------


class SessionError(PerdureError):
    """A session cannot do what was asked in the state it is in."""


class SessionBusyError(SessionError):
    """Somebody else runs the conversation right now."""

    hint = "Wait, and try again; `owner` says who has it, and `until` to when at least."
    retryable = True

    def __init__(self, session_id: str, owner: str | None = None, until: datetime | None = None) -> None:
        """Remember the session, the owner and the end of the owner's lease."""
        super().__init__(session_id, owner, until)
        self.session_id, self.owner, self.until = session_id, owner, until

    def __str__(self) -> str:
        """Name the session and the owner."""
        until = f" until {self.until.isoformat()}" if self.until else ""
        return f"session {self.session_id} is busy: {self._who()} owns it{until}"

    def _who(self) -> str:
        """Return the owner as a person would name it: its process and host, of all that tells it from others."""
        parts = (self.owner or "").split("/")
        return f"process {parts[3]} on {parts[0]}" if len(parts) == 6 else self.owner or "another call"


class SessionAwaitingApprovalError(SessionError):
    """The turn in progress waits for decisions; the input was not taken."""

    hint = "Decide the approvals, then call resume(); or drop the turn with discard_pending()."

    def __init__(self, session_id: str, approval_ids: Sequence[str]) -> None:
        """Remember the session and the approvals that it waits for."""
        super().__init__(session_id, tuple(approval_ids))
        self.session_id, self.approval_ids = session_id, tuple(approval_ids)

    def __str__(self) -> str:
        """Name the session and the approvals."""
        return (
            f"session {self.session_id} waits for {len(self.approval_ids)} approval(s): {', '.join(self.approval_ids)}"
        )


class SessionConflictError(SessionError):
    """The conversation was changed by somebody else; the turn stays pending where it still exists."""

    hint = "Look at the transcript, then call resume(rebase=True) to append the turn behind what came in, or discard_pending()."

    def __init__(self, session_id: str, run_id: str, problem: str) -> None:
        """Remember the session, the run and what came between."""
        super().__init__(session_id, run_id, problem)
        self.session_id, self.run_id, self.problem = session_id, run_id, problem

    def __str__(self) -> str:
        """Name the run and the problem."""
        return f"run {self.run_id} conflicts with its session: {self.problem}"


class SessionDeletedError(SessionError):
    """The conversation was deleted while the call ran."""

    hint = "Start a new session."

    def __init__(self, session_id: str) -> None:
        """Remember the session."""
        super().__init__(session_id)
        self.session_id = session_id

    def __str__(self) -> str:
        """Name the session."""
        return f"session {self.session_id} was deleted"


class SessionExistsError(SessionError):
    """A fork was to be made under an id that is taken. Nothing was changed."""

    hint = "Take another id, or none for a new one."

    def __init__(self, session_id: str) -> None:
        """Remember the session that exists."""
        super().__init__(session_id)
        self.session_id = session_id

    def __str__(self) -> str:
        """Name the session."""
        return f"session {self.session_id} exists already"


class SessionHalfCopiedError(SessionBusyError):
    """A conversation is only half here: a copy or an import of it was cut short. Nothing was changed."""

    retryable = False
    hint = "Run the same copy or import again, which finishes it; or delete the session."

    def __init__(self, session_id: str) -> None:
        """Remember the conversation."""
        super().__init__(session_id, None, None)
        self.args = (session_id,)

    def __str__(self) -> str:
        """Name the conversation."""
        return f"session {self.session_id} is only half here: a copy of it was cut short"


class SummaryError(SessionError):
    """No summary came of a compaction; the transcript is as it was."""

    hint = "Compact again with another function as `summarize`, or with another model."

    def __init__(self, session_id: str, problem: str) -> None:
        """Remember the session and what is wrong with the summary."""
        super().__init__(session_id, problem)
        self.session_id, self.problem = session_id, problem

    def __str__(self) -> str:
        """Name the session and the problem."""
        return f"session {self.session_id} was not compacted: {self.problem}"


class TurnFailedError(SessionError):
    """The pending turn failed in a way that a retry does not mend; the new input was not taken."""

    hint = "Mend the cause, then call resume(); or drop the turn with discard_pending()."

    def __init__(self, session_id: str, run_id: str, attempts: int, last_error: str) -> None:
        """Remember the session, the run, how often it was tried and the last error."""
        super().__init__(session_id, run_id, attempts, last_error)
        self.session_id, self.run_id, self.attempts, self.last_error = session_id, run_id, attempts, last_error

    def __str__(self) -> str:
        """Name the run and its last error."""
        return f"the pending run {self.run_id} failed after {self.attempts} attempt(s): {self.last_error}"


# --- approvals --------------------------------------------------------------------------------------------------------


class ApprovalError(PerdureError):
    """An approval cannot be decided or used as asked."""


class ApprovalNotFoundError(ApprovalError):
    """There is no approval with the id."""

    hint = "List the approvals; it may have been deleted."

    def __init__(self, approval_id: str) -> None:
        """Remember the id."""
        super().__init__(approval_id)
        self.approval_id = approval_id

    def __str__(self) -> str:
        """Name the approval."""
        return f"there is no approval {self.approval_id}"


class ApprovalAlreadyResolvedError(ApprovalError):
    """The approval is decided or cancelled already, and differently. The first decision stands."""

    hint = "Use the recorded decision: it is in `approval`."

    def __init__(self, approval: Approval) -> None:
        """Remember the approval as it is recorded."""
        super().__init__(approval)
        self.approval = approval

    def __str__(self) -> str:
        """Name the approval and its status."""
        return f"approval {self.approval.id} is already {self.approval.status}"


class ApprovalExpiredError(ApprovalError):
    """The approval had expired before the decision came; it counts as rejected."""

    hint = "Start the work again to get a new approval."

    def __init__(self, approval: Approval) -> None:
        """Remember the approval as it is recorded."""
        super().__init__(approval)
        self.approval = approval

    def __str__(self) -> str:
        """Name the approval and when it expired."""
        return f"approval {self.approval.id} expired at {self.approval.expires_at}"


class ApprovalOrphanedError(ApprovalError):
    """The run of the approval was dropped or deleted; nothing was run."""

    hint = "Nothing is left to do; prune removes the approval."

    def __init__(self, approval_id: str, run_id: str) -> None:
        """Remember the approval and its run."""
        super().__init__(approval_id, run_id)
        self.approval_id, self.run_id = approval_id, run_id

    def __str__(self) -> str:
        """Name the approval and the run."""
        return f"approval {self.approval_id} belongs to the run {self.run_id}, which is gone"


# --- runs -------------------------------------------------------------------------------------------------------------


class RunError(PerdureError):
    """A run of a turn stopped."""


class PropagatingToolError(RunError):
    """Raise this in a tool to stop the turn instead of telling the model. The turn stays pending."""

    hint = "Mend the cause, then call resume(); or drop the turn with discard_pending()."

    def __init__(self, message: object = "the tool stopped the turn", retryable: bool = False) -> None:
        """Remember the message, or the text of an exception, and whether another attempt may help."""
        super().__init__(str(message), retryable)
        self.message = str(message)
        self.retryable = retryable

    def __str__(self) -> str:
        """Return the message."""
        return self.message


class ToolOutcomeUnknownError(RunError):
    """A tool call was started, has no result, and its tool has no policy for that. The turn stays pending."""

    hint = (
        "Give the tool an `in_doubt` policy or a `probe`, then call resume(); or drop the turn with discard_pending()."
    )

    def __init__(self, run_id: str, call_id: str, tool_name: str) -> None:
        """Remember the run, the call and the tool."""
        super().__init__(run_id, call_id, tool_name)
        self.run_id, self.call_id, self.tool_name = run_id, call_id, tool_name

    def __str__(self) -> str:
        """Name the call."""
        return f"the call {self.call_id} of {self.tool_name} in run {self.run_id} may or may not have happened"


class AgentChangedError(RunError):
    """The agent is not the one that started the turn, or lacks one of its tools. The turn stays pending."""

    hint = "Resume it with the agent that began it, or drop it with discard_pending()."

    def __init__(self, run_id: str, problem: str) -> None:
        """Remember the run and the difference."""
        super().__init__(run_id, problem)
        self.run_id, self.problem = run_id, problem

    def __str__(self) -> str:
        """Name the run and the difference."""
        return f"run {self.run_id} cannot be continued by this agent: {self.problem}"


class LimitExceededError(RunError):
    """A conversation has spent its limit; the input was refused before any write."""

    hint = "Raise the limit, or start a new session."

    def __init__(self, session_id: str, limit: str, spent: float, allowed: float) -> None:
        """Remember the session, the limit's name, what was spent and what is allowed."""
        super().__init__(session_id, limit, spent, allowed)
        self.session_id, self.limit, self.spent, self.allowed = session_id, limit, spent, allowed

    def __str__(self) -> str:
        """Name the limit."""
        return f"session {self.session_id} has spent {self.spent} of {self.allowed} ({self.limit})"


class StreamError(RunError):
    """A stream was used before its block was entered, or asked for its result before it had one."""

    hint = "Enter its block with `async with`, and ask for the result behind the block."
