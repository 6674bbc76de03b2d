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

from typing import TYPE_CHECKING, ClassVar

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

    _says: ClassVar[str] = ""
    """The message, with the names of attributes in braces; empty where it is the text that was given, or `__str__` makes it."""

    def __str__(self) -> str:
        return self._says.format_map(vars(self)) if self._says else super().__str__()

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
        super().__init__(kind, value, rule, hint)
        self.kind, self.value, self.rule = kind, value, rule
        self.hint = hint or "Use an id that follows the rule."

    def __str__(self) -> str:
        """Say which id is wrong and by what rule."""
        shown = self.value if len(self.value) <= 80 else self.value[:77] + "..."
        return f"{shown!r} is not a valid {self.kind}: {self.rule}. {self.hint}"


class InvalidArgumentError(StoreError, ValueError):
    """An argument has a value that no store accepts. Nothing was read or written."""

    _says = "{argument} {problem}"
    hint = "Correct the argument."

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(argument, problem)
        self.argument, self.problem = argument, problem


class NotJsonError(StoreError, ValueError):
    """A value is not exact JSON. Nothing was written."""

    _says = "{where} is not JSON: {problem}"
    hint = "Convert the value to JSON types before storing it."

    def __init__(self, where: str, problem: str) -> None:
        """Remember the place and the problem; the value itself is never shown."""
        super().__init__(where, problem)
        self.where, self.problem = where, problem


class RecordTooLargeError(StoreError, ValueError):
    """A record is larger than the store's limit. Nothing was written."""

    _says = "{where} is {size} bytes of JSON, and the limit is {limit}"
    hint = "Store the large part elsewhere and keep a reference, or raise ?max_record=."

    def __init__(self, where: str, size: int, limit: int) -> None:
        """Remember the place, the size and the limit, both in bytes."""
        super().__init__(where, size, limit)
        self.where, self.size, self.limit = where, size, limit


class VersionConflictError(StoreError):
    """The version in the store is not the expected one. Nothing was changed."""

    _says = "{key} is at version {actual}, not at the expected {expected}"
    hint = "Load again, look at what has changed, and repeat at the new version."

    def __init__(self, key: str, expected: int | None, actual: int | None) -> None:
        """Remember the key, the expected version and the one found (0: absent, None: not known)."""
        super().__init__(key, expected, actual)
        self.key, self.expected, self.actual = key, expected, actual


class StoreUnavailableError(StoreError):
    """The store could not be reached or could not serve the call. Nothing was written."""

    hint = "Try again; if it goes on, look at the cause."
    retryable = True

    def __init__(self, operation: str, key: str, problem: str = "") -> None:
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
        super().__init__(operation, key, problem)
        self.operation, self.key, self.problem = operation, key, problem

    def __str__(self) -> str:
        """Say which write is in doubt and why."""
        return f"{self.operation} of {self.key} may or may not have happened: {self.problem or 'no answer came'}"


class StoreCorruptedError(StoreError):
    """What is stored cannot be read as what was written. Nothing was changed."""

    _says = "{where} is damaged: {problem}"
    hint = "Restore a backup, or delete the damaged data."

    def __init__(self, where: str, problem: str, id: str | None = None) -> None:
        """Remember the place (file, key, line), the problem, and of a listing the id behind which it can go on."""
        super().__init__(where, problem, id)
        self.where, self.problem, self.id = where, problem, id


class SchemaVersionError(StoreError):
    """The data was written by a newer release. Nothing was touched."""

    _says = "{where} has schema version {found}, and this release reads up to {supported}"
    hint = "Upgrade perdure and the backend, or open the data with the release that wrote it."

    def __init__(self, where: str, found: int, supported: int) -> None:
        super().__init__(where, found, supported)
        self.where, self.found, self.supported = where, found, supported


class CodecError(StoreError):
    """What is stored cannot be read or written by the codec that the store was opened with. Nothing was changed."""


class CodecMissingError(CodecError):
    """What is stored is encrypted or compressed, and the store was opened without a codec. Nothing was changed."""

    _says = "{where} is encrypted or compressed, and the store was opened without a codec for it"
    hint = "Open the store with the codec that wrote it: open_store(url, codec=...), or PERDURE_CODEC for the command line."

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


class WrongKeyError(CodecError):
    """What is stored was encrypted with a key that is not in the key ring. Nothing was changed."""

    hint = "Open the store with a key ring that has this key; it is not damaged."

    def __init__(self, where: str, key: str, known: Sequence[str]) -> None:
        super().__init__(where, key, tuple(known))
        self.where, self.key, self.known = where, key, tuple(known)

    def __str__(self) -> str:
        """Name the keys by their ids, which tell nothing of the keys."""
        return f"{self.where} is encrypted with key {self.key}, and the key ring has {', '.join(self.known)}"


class NotEncryptedError(CodecError):
    """What is stored is not encrypted, where only what is encrypted is trusted. Nothing was changed."""

    _says = "{where} is not encrypted"
    hint = "If the store was in use before it was encrypted, open it with Encryption(..., accept_plaintext=True) and re-encrypt it."

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


class CodecLibraryError(CodecError):
    """A codec needs a library that is not installed."""

    _says = "the library {library} is not installed"

    def __init__(self, library: str, extra: str) -> None:
        """Remember the library and the extra of perdure that installs it."""
        super().__init__(library, extra)
        self.library, self.extra = library, extra
        self.hint = f"Install it: pip install 'perdure[{extra}]'"


class StoreClosedError(StoreError):
    """The store was closed (or is not open yet)."""

    _says = "{store} is closed"
    hint = "Open the store again; use `async with open_store(...)` around all of its use."

    def __init__(self, store: str) -> None:
        super().__init__(store)
        self.store = store


class WrongLoopError(StoreError):
    """A store is used from another event loop, or in a forked child. Nothing was sent."""

    _says = "{store} {reason}"
    hint = "Open a store of its own in each event loop and in each process."

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(store, reason)
        self.store, self.reason = store, reason


class UnsupportedOperationError(StoreError):
    """The store does not offer the operation."""

    _says = "{store} does not support {operation}"
    hint = "Use a store that has it; `AgentStore` takes each of its parts from where you like."

    def __init__(self, store: str, operation: str) -> None:
        super().__init__(store, operation)
        self.store, self.operation = store, operation


# --- plugins ----------------------------------------------------------------------------------------------------------


class PluginError(PerdureError):
    """A backend plugin could not be found, loaded or used."""


class UnknownSchemeError(PluginError):
    """No installed plugin owns the scheme of a store URL."""

    def __init__(self, scheme: str, installed: Sequence[str], nearest: str | None = None, install: str = "") -> None:
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

    _says = "the plugin for {scheme!r} from {distribution} {version} is broken: {problem}"
    hint = "Repair or upgrade the distribution that provides the plugin."

    def __init__(self, scheme: str, distribution: str, version: str, problem: str) -> None:
        super().__init__(scheme, distribution, version, problem)
        self.scheme, self.distribution, self.version, self.problem = scheme, distribution, version, problem


class PluginConflictError(PluginError):
    """Two distributions claim one scheme."""

    hint = "Uninstall one of the two."

    def __init__(self, scheme: str, distributions: Sequence[str]) -> None:
        super().__init__(scheme, tuple(distributions))
        self.scheme, self.distributions = scheme, tuple(distributions)

    def __str__(self) -> str:
        """Name the distributions."""
        return f"the scheme {self.scheme!r} is claimed by {' and '.join(self.distributions)}"


class StoreURLError(PluginError, ValueError):
    """A store URL or one of its options is wrong. Nothing was opened."""

    _says = "{url}: {problem}"
    hint = "Correct the URL."

    def __init__(self, url: str, problem: str) -> None:
        """Remember the URL (without secrets) and the problem."""
        super().__init__(url, problem)
        self.url, self.problem = url, problem


# --- imports ----------------------------------------------------------------------------------------------------------


class ImportDataError(PerdureError, ValueError):
    """What is to be imported is not what it should be. Nothing of it was written."""

    _says = "{where} {problem}"
    hint = "Correct the file, or let damaged lines be passed over: strict=False, or --recover."

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where, self.problem = where, problem


# --- sessions ---------------------------------------------------------------------------------------------------------


class SessionError(PerdureError):
    """A session cannot do what was asked in the state it is in."""


class SessionBusyError(SessionError):
    """Somebody else runs the conversation right now."""

    hint = "Wait, and try again; `owner` says who has it, and `until` to when at least."
    retryable = True

    def __init__(self, session_id: str, owner: str | None = None, until: datetime | None = None) -> None:
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
        super().__init__(session_id, tuple(approval_ids))
        self.session_id, self.approval_ids = session_id, tuple(approval_ids)

    def __str__(self) -> str:
        """Name the session and the approvals."""
        return (
            f"session {self.session_id} waits for {len(self.approval_ids)} approval(s): {', '.join(self.approval_ids)}"
        )


class SessionConflictError(SessionError):
    """The conversation was changed by somebody else; the turn stays pending where it still exists."""

    _says = "run {run_id} conflicts with its session: {problem}"
    hint = "Look at the transcript, then call resume(rebase=True) to append the turn behind what came in, or discard_pending()."

    def __init__(self, session_id: str, run_id: str, problem: str) -> None:
        super().__init__(session_id, run_id, problem)
        self.session_id, self.run_id, self.problem = session_id, run_id, problem


class SessionDeletedError(SessionError):
    """The conversation was deleted while the call ran."""

    _says = "session {session_id} was deleted"
    hint = "Start a new session."

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.session_id = session_id


class SessionExistsError(SessionError):
    """A fork was to be made under an id that is taken. Nothing was changed."""

    _says = "session {session_id} exists already"
    hint = "Take another id, or none for a new one."

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.session_id = session_id


class SessionHalfCopiedError(SessionBusyError):
    """A conversation is only half here: a copy or an import of it was cut short. Nothing was changed."""

    retryable = False
    hint = "Run the same copy or import again, which finishes it; or delete the session."

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id, None, None)
        self.args = (session_id,)

    def __str__(self) -> str:
        """Name the conversation."""
        return f"session {self.session_id} is only half here: a copy of it was cut short"


class SummaryError(SessionError):
    """No summary came of a compaction; the transcript is as it was."""

    _says = "session {session_id} was not compacted: {problem}"
    hint = "Compact again with another function as `summarize`, or with another model."

    def __init__(self, session_id: str, problem: str) -> None:
        super().__init__(session_id, problem)
        self.session_id, self.problem = session_id, problem


class TurnFailedError(SessionError):
    """The pending turn failed in a way that a retry does not mend; the new input was not taken."""

    _says = "the pending run {run_id} failed after {attempts} attempt(s): {last_error}"
    hint = "Mend the cause, then call resume(); or drop the turn with discard_pending()."

    def __init__(self, session_id: str, run_id: str, attempts: int, last_error: str) -> None:
        super().__init__(session_id, run_id, attempts, last_error)
        self.session_id, self.run_id, self.attempts, self.last_error = session_id, run_id, attempts, last_error


# --- approvals --------------------------------------------------------------------------------------------------------


class ApprovalError(PerdureError):
    """An approval cannot be decided or used as asked."""


class ApprovalNotFoundError(ApprovalError):
    """There is no approval with the id."""

    _says = "there is no approval {approval_id}"
    hint = "List the approvals; it may have been deleted."

    def __init__(self, approval_id: str) -> None:
        super().__init__(approval_id)
        self.approval_id = approval_id


class ApprovalAlreadyResolvedError(ApprovalError):
    """The approval is decided or cancelled already, and differently. The first decision stands."""

    _says = "approval {approval.id} is already {approval.status}"
    hint = "Use the recorded decision: it is in `approval`."

    def __init__(self, approval: Approval) -> None:
        super().__init__(approval)
        self.approval = approval


class ApprovalExpiredError(ApprovalError):
    """The approval had expired before the decision came; it counts as rejected."""

    _says = "approval {approval.id} expired at {approval.expires_at}"
    hint = "Start the work again to get a new approval."

    def __init__(self, approval: Approval) -> None:
        super().__init__(approval)
        self.approval = approval


class ApprovalOrphanedError(ApprovalError):
    """The run of the approval was dropped or deleted; nothing was run."""

    _says = "approval {approval_id} belongs to the run {run_id}, which is gone"
    hint = "Nothing is left to do; prune removes the approval."

    def __init__(self, approval_id: str, run_id: str) -> None:
        super().__init__(approval_id, run_id)
        self.approval_id, self.run_id = approval_id, run_id


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

    _says = "the call {call_id} of {tool_name} in run {run_id} may or may not have happened"
    hint = (
        "Give the tool an `in_doubt` policy or a `probe`, then call resume(); or drop the turn with discard_pending()."
    )

    def __init__(self, run_id: str, call_id: str, tool_name: str) -> None:
        super().__init__(run_id, call_id, tool_name)
        self.run_id, self.call_id, self.tool_name = run_id, call_id, tool_name


class AgentChangedError(RunError):
    """The agent is not the one that started the turn, or lacks one of its tools. The turn stays pending."""

    _says = "run {run_id} cannot be continued by this agent: {problem}"
    hint = "Resume it with the agent that began it, or drop it with discard_pending()."

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(run_id, problem)
        self.run_id, self.problem = run_id, problem


class LimitExceededError(RunError):
    """A conversation has spent its limit; the input was refused before any write."""

    _says = "session {session_id} has spent {spent} of {allowed} ({limit})"
    hint = "Raise the limit, or start a new session."

    def __init__(self, session_id: str, limit: str, spent: float, allowed: float) -> None:
        super().__init__(session_id, limit, spent, allowed)
        self.session_id, self.limit, self.spent, self.allowed = session_id, limit, spent, allowed


class StreamError(RunError):
    """A stream was used before its block was entered, or asked for its result before it had one."""

    hint = "Enter its block with `async with`, and ask for the result behind the block."
