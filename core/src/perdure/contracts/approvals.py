"""The promise of an approval store: requests for a human decision, and the decisions, each made once."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, final

from perdure import codec
from perdure.contracts import records as check
from perdure.contracts.capabilities import Capabilities
from perdure.contracts.ids import check_approval_id, check_run_id, check_session_id, conversation_of
from perdure.contracts.plain import from_record, misfit, to_record
from perdure.contracts.records import Page, Record
from perdure.contracts.store import Store, first_version
from perdure.errors import (
    ApprovalAlreadyResolvedError,
    ApprovalExpiredError,
    ApprovalNotFoundError,
    InvalidArgumentError,
    InvalidIdError,
    RecordTooLargeError,
    StoreCorruptedError,
    UnsupportedOperationError,
    VersionConflictError,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

PENDING: Final = "pending"
APPROVED: Final = "approved"
REJECTED: Final = "rejected"
CANCELLED: Final = "cancelled"
APPROVAL_STATUSES: Final = (PENDING, APPROVED, REJECTED, CANCELLED)
KINDS: Final = ("approve", "in-doubt")
ON_EXPIRY: Final = ("deny", "keep")
EXPIRY: Final = "expiry"
"""Who decided an approval that had expired."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A human's decision.

    Attributes:
        approved: Yes or no.
        decided_at: When (aware UTC).
        note: What the person said, for the model to read.
        arguments: The edited arguments, or `None` if they stay as requested.
        decided_by: Who, as text; `expiry` if time decided.
        extra: Fields that this release does not know; they are kept.
    """

    approved: bool
    decided_at: datetime
    note: str | None = None
    arguments: Record | None = None
    decided_by: str | None = None
    extra: Record = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Approval:
    """A request for a human decision on one call of a tool, and the decision.

    Attributes:
        id: `<run id>.s<step>.c<call>`; an in-doubt question adds `.d<attempt>`.
        run_id: The run that asks.
        tool_call_id: The call, as the model named it.
        tool_name: The tool.
        arguments: What the model wants to call it with.
        created_at: When it was asked (aware UTC).
        session_id: The session, or `None` for a run without one.
        agent: The name of the agent that asks.
        arguments_sha256: The hash of the arguments in a canonical form; computed if left empty.
        kind: `approve`, or `in-doubt`: may the call, whose outcome is unknown, run again?
        status: `pending`, `approved`, `rejected` or `cancelled`.
        expires_at: From this instant on it is expired; `None`: never.
        on_expiry: `deny` rejects it then, `keep` leaves it open.
        decision: The decision, or why it was cancelled; `None` while it is pending.
        metadata: For the application; JSON.
        version: The version in the store, 0 if it is not stored yet.
        extra: Fields that this release does not know; they are kept.
    """

    id: str
    run_id: str
    tool_call_id: str
    tool_name: str
    arguments: Record
    created_at: datetime
    session_id: str | None = None
    agent: str = "agent"
    arguments_sha256: str = ""
    kind: str = "approve"
    status: str = PENDING
    expires_at: datetime | None = None
    on_expiry: str = "deny"
    decision: Decision | None = None
    metadata: Record = field(default_factory=dict)
    version: int = 0
    extra: Record = field(default_factory=dict)

    @property
    def decided(self) -> bool:
        """Whether nothing is left to decide: approved, rejected or cancelled."""
        return self.status != PENDING

    @property
    def effective_arguments(self) -> Record:
        """The arguments that run if it is approved: the edited ones, or those asked for."""
        edited = self.decision.arguments if self.decision else None
        return self.arguments if edited is None else edited

    def for_others(self) -> Approval:
        """Return the approval for somebody who may change what is in it."""
        decision = self.decision
        if decision is not None:
            own: dict[str, Any] = {"arguments": codec.copied(decision.arguments), "extra": codec.copied(decision.extra)}
            decision = replace(decision, **own)
        parts = {name: codec.copied(getattr(self, name)) for name in ("arguments", "metadata", "extra")}
        return replace(self, decision=decision, **parts)

    def expired(self, now: datetime) -> bool:
        """Whether its time is over at `now`; at `expires_at` itself it is."""
        return self.expires_at is not None and self.expires_at <= now

    def encode(self) -> bytes:
        """Return the approval as bytes of JSON, without its version."""
        record = to_record(replace(self, version=0, decision=None))
        del record["version"]
        if self.decision is not None:
            record["decision"] = to_record(self.decision)
        return codec.encode(record, "approval")

    @classmethod
    def decode(cls, data: bytes, version: int, where: str) -> Approval:
        """Make an approval of stored bytes, or raise `StoreCorruptedError`."""
        record = check.decode_object(data, where)
        decision = record.pop("decision", None)
        if decision is not None and type(decision) is not dict:
            raise StoreCorruptedError(f"{where}.decision", "not an object")
        made = None if decision is None else from_record(Decision, decision, f"{where}.decision")
        approval = replace(from_record(cls, record, where), decision=made, version=version)
        try:
            _check_conversation(approval)
        except InvalidIdError as error:
            raise StoreCorruptedError(where, str(error)) from error
        return approval


def hash_arguments(arguments: Record) -> str:
    """Return the SHA-256 of arguments in a canonical form: keys sorted, types kept."""
    return hashlib.sha256(codec.encode(_sorted(arguments), "arguments")).hexdigest()


def _sorted(value: Any) -> Any:
    if type(value) is dict:
        return {key: _sorted(value[key]) for key in sorted(value)}
    if type(value) is list:
        return [_sorted(item) for item in value]
    return value


class ApprovalStore(Store):
    """Keeps approvals. A decision is a stored fact, made once and never consumed by reading it.

    A backend implements the underscored methods. `_settle` is the one write that decides: it stores a decided or
    cancelled approval if the stored one is still pending, in one step, and answers what is stored then. What the same
    decision, expiry and errors mean is settled here, for all backends alike.
    """

    capabilities: Capabilities = Capabilities(list=True)

    @final
    def create(self, approval: Approval, *, version: int | None = None) -> Coroutine[Any, Any, Approval]:
        """Store a request, unless one with its id is there: then that one is returned unchanged, decided or not.

        Args:
            approval: The request. Its id and run id begin with its conversation (the session id, or the run's name). A
                decided one is taken as it is.
            version: The version that it gets if its id is absent (a copy, an import); `None`: drawn at random.

        Returns:
            What is stored.

        Raises:
            InvalidIdError, InvalidArgumentError, NotJsonError, RecordTooLargeError: Nothing was written.
            VersionConflictError: One with this id but other arguments or another kind is stored; it is unchanged.
            StoreUnavailableError: Nothing was written.
            OutcomeUnknownError: It may be stored.

        Atomic: Whole or not at all.
        Durable: When it returns (stores that declare `durable`).
        Concurrent: Of several creators one stores; all get the same approval.
        Retry: Safe.
        Cancelled: Stored whole or not at all. Raises `CancelledError`, unless it had ended.
        Laws: approvals-any-json-comes-back, approvals-bad-requests-are-refused, approvals-booleans-are-not-numbers,
            approvals-cancelled-call-holds-no-lock, approvals-cancelled-call-raises,
            approvals-cancelled-create-is-whole-or-absent, approvals-confusable-ids-stay-apart,
            approvals-create-again-gives-the-stored, approvals-create-takes-a-decided-one,
            approvals-create-with-other-arguments-conflicts, approvals-deep-nesting-comes-back,
            approvals-emptiness-comes-back, approvals-every-field-comes-back, approvals-first-version-can-be-given,
            approvals-first-version-is-drawn, approvals-floats-come-back, approvals-given-hash-is-checked,
            approvals-hash-tells-arguments-apart, approvals-ids-of-one-run-stay-apart, approvals-input-is-not-kept,
            approvals-integers-come-back, approvals-keys-come-back, approvals-long-text-comes-back,
            approvals-namespaces-share-no-key, approvals-one-of-many-creates,
            approvals-record-over-the-limit-is-refused, approvals-refused-write-creates-nothing,
            approvals-refuses-what-is-not-json, approvals-snapshot-is-taken-at-the-call, approvals-survives-reopening,
            approvals-text-comes-back, approvals-times-come-back-in-utc, approvals-version-is-at-least-one,
            approvals-version-never-repeats
        """
        return self._creating(self._settle_request(approval, first_version(version, 0)))

    @final
    async def get(self, approval_id: str) -> Approval | None:
        """Read an approval. Reading never creates or consumes anything.

        Args:
            approval_id: Which one.

        Returns:
            The approval, or `None` if there is none.

        Raises:
            InvalidIdError: The id breaks its rule.
            StoreCorruptedError: What is stored cannot be read; nothing was changed.
            StoreUnavailableError: The store failed.

        Atomic: Request and decision belong to one version.
        Durable: Reads what was acknowledged.
        Concurrent: Takes no lock that outlives the call.
        Retry: Safe.
        Cancelled: Changes nothing. Raises `CancelledError`, unless it had ended.
        Laws: approvals-absent-is-none, approvals-answers-stay-beside-a-cancelled-call,
            approvals-answers-stay-with-their-calls, approvals-bad-ids-are-refused, approvals-cancelled-call-raises,
            approvals-closed-store-refuses, approvals-damage-is-neither-absent-nor-empty,
            approvals-failed-read-is-unavailable, approvals-fresh-place-is-empty, approvals-other-loop-is-refused,
            approvals-output-is-new-each-time, approvals-reading-consumes-nothing, approvals-reading-creates-nothing,
            approvals-second-handle-is-never-stale, approvals-works-again-after-an-outage
        """
        check_approval_id(approval_id)
        return await self._reading("get", approval_id, lambda: self._get(approval_id))

    @final
    def decide(
        self,
        approval_id: str,
        *,
        approved: bool,
        note: str | None = None,
        arguments: Record | None = None,
        decided_by: str | None = None,
        at: datetime | None = None,
    ) -> Coroutine[Any, Any, Approval]:
        """Decide, once. It needs no agent and no session.

        Args:
            approval_id: Which approval.
            approved: Yes or no.
            note: What the person says, for the model to read.
            arguments: Edited arguments, with `approved=True` only; `None` keeps those asked for.
            decided_by: Who decides.
            at: The instant of the decision; `None`: now.

        Returns:
            The approval as recorded. The same decision again (equal `approved` and equal effective arguments) returns
            the recorded one, with the first one's note, person and time.

        Raises:
            InvalidIdError, InvalidArgumentError, NotJsonError, RecordTooLargeError: Nothing was written.
            ApprovalNotFoundError: There is none; nothing was written.
            ApprovalAlreadyResolvedError: Another decision is recorded, or it is cancelled; that stands.
            ApprovalExpiredError: It had expired and counts as rejected; that is recorded.
            StoreUnavailableError: Nothing was written.
            OutcomeUnknownError: It may be decided; decide the same again.

        Atomic: The whole decision or nothing.
        Durable: When it returns (stores that declare `durable`).
        Concurrent: Of any number of callers exactly one decides.
        Retry: Safe.
        Cancelled: Decided or not; never half. Raises `CancelledError`, unless it had ended.
        Laws: approvals-bad-decisions-are-refused, approvals-cancelled-decide-is-whole-or-absent,
            approvals-cut-anywhere-is-old-or-new, approvals-decidable-until-expiry, approvals-decided-once,
            approvals-decision-adds-one, approvals-decision-comes-at-the-clock, approvals-decision-is-a-snapshot,
            approvals-decision-is-recorded-whole, approvals-decision-is-seen-whole, approvals-decision-survives-kill,
            approvals-decision-survives-power-loss, approvals-decision-survives-reopening,
            approvals-decision-survives-server-kill, approvals-decision-survives-torn-write,
            approvals-expired-is-rejected, approvals-kept-ones-stay-open, approvals-one-of-many-handles-decides,
            approvals-one-of-many-processes-decides, approvals-one-of-many-tasks-decides, approvals-refuses-bad-edits,
            approvals-same-decision-again-is-fine, approvals-unknown-is-not-created
        """
        check_approval_id(approval_id)
        decision = self._settle_decision(approved, note, arguments, decided_by, at)
        return self._deciding(approval_id, decision)

    @final
    async def cancel(self, approval_id: str, *, reason: str, at: datetime | None = None) -> Approval:
        """Cancel a request that nobody needs any more.

        Args:
            approval_id: Which approval.
            reason: Why, kept as the note.
            at: The instant; `None`: now.

        Returns:
            The cancelled approval; if it was cancelled before, the recorded one.

        Raises:
            InvalidIdError, InvalidArgumentError: Nothing was written.
            ApprovalNotFoundError: There is none; nothing was written.
            ApprovalAlreadyResolvedError: It is decided; that stands.
            StoreUnavailableError: Nothing was written.
            OutcomeUnknownError: It may be cancelled.

        Atomic: Cancelled or not.
        Durable: When it returns (stores that declare `durable`).
        Concurrent: `cancel` and `decide` race through the same write; one wins.
        Retry: Safe.
        Cancelled: Cancelled or not; never half. Raises `CancelledError`, unless it had ended.
        Laws: approvals-cancel-and-decide-race, approvals-cancel-is-recorded, approvals-cancelled-stays-cancelled
        """
        check_approval_id(approval_id)
        decision = self._settle_decision(False, reason, None, None, at)
        current = await self._found(approval_id)
        if not current.decided:
            current = await self._settled(replace(current, status=CANCELLED, decision=decision))
        if current.status != CANCELLED:
            raise ApprovalAlreadyResolvedError(current)
        return current

    @final
    async def expire(self, approval_id: str, *, at: datetime | None = None) -> Approval:
        """Record the rejection of an approval whose time is over; leave every other one as it is.

        Args:
            approval_id: Which approval.
            at: The instant to judge by; `None`: now.

        Returns:
            What the store holds then.

        Raises:
            InvalidIdError, InvalidArgumentError: Nothing was written.
            ApprovalNotFoundError: There is none; nothing was written.
            StoreUnavailableError: Nothing was written.
            OutcomeUnknownError: It may be recorded.

        Atomic: Recorded or not.
        Durable: When it returns (stores that declare `durable`).
        Concurrent: A decision that comes first stands.
        Retry: Safe.
        Cancelled: Recorded or not; never half. Raises `CancelledError`, unless it had ended.
        Laws: approvals-decided-does-not-expire, approvals-expire-at-the-instant, approvals-expiry-and-decision-race
        """
        check_approval_id(approval_id)
        now = self.clock.now() if at is None else check.check_time(at, "at")
        current = await self._found(approval_id)
        if not is_denied_by_time(current, now):
            return current
        return await self._settled(_denied_by_time(current, now))

    @final
    async def list(
        self,
        *,
        session_id: str | None = None,
        run_id: str | None = None,
        status: str | None = None,
        before: datetime | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Approval]:
        """List approvals, oldest first (by `created_at`, then id).

        Args:
            session_id: Only those of exactly this session.
            run_id: Only those of exactly this run.
            status: Only those of exactly this status.
            before: Only those decided, or else created, earlier.
            cursor: The cursor of the page before.
            limit: How many at the most; 0 gives no items.

        Returns:
            A page. Every approval that exists throughout the iteration, and matches throughout, comes once.

        Raises:
            InvalidIdError, InvalidArgumentError: An argument is wrong.
            StoreUnavailableError: The store failed.

        Atomic: Each page shows one instant.
        Durable: Shows what was acknowledged.
        Concurrent: Holds no lock between pages.
        Retry: Safe.
        Cancelled: Changes nothing. Raises `CancelledError`, unless it had ended.
        Laws: approvals-bad-listings-are-refused, approvals-before-is-strict, approvals-cancelled-call-raises,
            approvals-cursor-outlives-its-handle, approvals-end-has-no-cursor, approvals-expired-is-listed-as-stored,
            approvals-filters-are-exact, approvals-limit-zero-gives-nothing, approvals-listing-costs-what-it-shows,
            approvals-listing-gives-exact-ids, approvals-listing-holds-no-lock, approvals-namespaces-list-their-own,
            approvals-no-cap-on-a-listing, approvals-oldest-first, approvals-order-goes-by-microseconds,
            approvals-pages-give-each-key-once, approvals-pages-hold-under-writes, approvals-versions-agree
        """
        session_id = None if session_id is None else check_session_id(session_id)
        run_id = None if run_id is None else check_run_id(run_id)
        if status is not None and status not in APPROVAL_STATUSES:
            raise InvalidArgumentError("status", f"must be one of {', '.join(APPROVAL_STATUSES)}")
        before, limit = check.check_optional_time(before, "before"), check.check_limit(limit)
        cursor = check.check_optional_text(cursor, "cursor", check.MAX_CURSOR)
        page = await self._reading(
            "list",
            "approvals",
            lambda: self._list(
                session_id=session_id,
                run_id=run_id,
                status=status,
                before=before,
                cursor=cursor,
                limit=max(limit, 1),  # 0 asks too, so that a closed or damaged store says so
            ),
        )
        return page if limit else Page((), cursor)

    @final
    async def delete(self, approval_id: str, *, expected_version: int | None = None) -> bool:
        """Remove an approval.

        Args:
            approval_id: Which one.
            expected_version: Remove only at this version; 0 asserts that it is absent; `None`: whatever it is.

        Returns:
            Whether it was there.

        Raises:
            InvalidIdError, InvalidArgumentError: Nothing was removed.
            VersionConflictError: Another version; nothing was removed.
            UnsupportedOperationError: The store does not declare `delete`.
            StoreUnavailableError: Nothing was removed.
            OutcomeUnknownError: It may be removed.

        Atomic: Whole or not at all.
        Durable: When it returns (stores that declare `durable`).
        Concurrent: A decision that sleeps through it is not recorded.
        Retry: Safe; then it returns False.
        Cancelled: Removed whole or not at all. Raises `CancelledError`, unless it had ended.
        Laws: approvals-cancelled-delete-is-whole-or-absent, approvals-declared-operation-works,
            approvals-delete-of-absent-heeds-the-version, approvals-delete-refuses-another-version,
            approvals-delete-removes-one-id, approvals-deleted-is-absent, approvals-deleted-is-not-revived,
            approvals-deletion-survives-reopening, approvals-errors-carry-their-facts,
            approvals-namespaces-delete-their-own, approvals-sleeper-cannot-delete,
            approvals-undeclared-operation-refuses, approvals-version-never-repeats
        """
        check_approval_id(approval_id)
        expected = check.check_expected(expected_version)
        self.require("delete")
        return await self._writing("delete", approval_id, lambda: self._delete(approval_id, expected_version=expected))

    # --- what a backend implements ---

    @abstractmethod
    async def _create(self, approval: Approval) -> Approval:
        """Store it if its id is absent, at `approval.version`; answer what is stored then, with its version."""

    @abstractmethod
    async def _get(self, approval_id: str) -> Approval | None:
        """Read one, with its version."""

    @abstractmethod
    async def _settle(self, approval: Approval) -> Approval | None:
        """Store it if the stored one is still pending, in one step; answer what is stored then, `None` if absent."""

    @abstractmethod
    async def _list(
        self,
        *,
        session_id: str | None,
        run_id: str | None,
        status: str | None,
        before: datetime | None,
        cursor: str | None,
        limit: int,
    ) -> Page[Approval]:
        """List, oldest first."""

    async def _delete(self, approval_id: str, *, expected_version: int | None) -> bool:
        raise UnsupportedOperationError(self.title, "delete")

    # --- between the two ---

    @final
    def _settle_request(self, approval: Approval, version: int) -> Approval:
        if not isinstance(approval, Approval):
            raise InvalidArgumentError("approval", f"must be an Approval, not {type(approval).__name__}")
        _check_conversation(approval)
        for name, allowed in (("kind", KINDS), ("status", APPROVAL_STATUSES), ("on_expiry", ON_EXPIRY)):
            if getattr(approval, name) not in allowed:
                raise InvalidArgumentError(f"approval.{name}", f"must be one of {', '.join(allowed)}")
        check.encode_object(approval.arguments, "approval.arguments", self.max_record)
        check.encode_object(approval.metadata, "approval.metadata", self.max_record)
        _check_fields(replace(approval, version=0), "approval")
        digest = hash_arguments(approval.arguments)
        if approval.arguments_sha256 not in ("", digest):
            raise InvalidArgumentError("approval.arguments_sha256", "is not the hash of the arguments")
        settled = replace(
            approval,
            arguments_sha256=digest,
            created_at=check.check_time(approval.created_at, "approval.created_at"),
            expires_at=check.check_optional_time(approval.expires_at, "approval.expires_at"),
            decision=_settle_copied(approval),
        )
        return Approval.decode(settled.encode(), version, "approval")

    @final
    async def _creating(self, approval: Approval) -> Approval:
        stored = await self._writing("create", approval.id, lambda: self._create(approval), approval)
        if (stored.arguments_sha256, stored.kind) != (approval.arguments_sha256, approval.kind):
            raise VersionConflictError(approval.id, 0, stored.version)
        return stored

    @final
    def _settle_decision(
        self, approved: object, note: object, arguments: object, decided_by: object, at: object
    ) -> Decision:
        if type(approved) is not bool:
            raise InvalidArgumentError("approved", f"must be True or False, not {type(approved).__name__}")
        for name, text in (("note", note), ("decided_by", decided_by)):
            if text is not None and type(text) is not str:
                raise InvalidArgumentError(name, f"must be a str, not {type(text).__name__}")
            if (size := len(codec.encode(text, name))) > self.max_record:
                raise RecordTooLargeError(name, size, self.max_record)
        if decided_by == EXPIRY:
            raise InvalidArgumentError("decided_by", f"must not be {EXPIRY!r}: that is what time decides as")
        edited = None
        if arguments is not None:
            if not approved:
                raise InvalidArgumentError("arguments", "goes with approved=True only")
            edited = codec.decode(check.encode_object(arguments, "arguments", self.max_record))
        now = self.clock.now() if at is None else check.check_time(at, "at")
        # the checks above make these casts true
        return Decision(approved, now, note, edited, decided_by)  # type: ignore[arg-type]  # reason: checked in the loop

    @final
    async def _deciding(self, approval_id: str, decision: Decision) -> Approval:
        current = await self._found(approval_id)
        if not current.decided:
            if is_denied_by_time(current, decision.decided_at):
                wanted = _denied_by_time(current, decision.decided_at)
            else:
                wanted = replace(current, status=APPROVED if decision.approved else REJECTED, decision=decision)
            current = await self._settled(wanted)
        return _agree(current, decision)

    @final
    async def _found(self, approval_id: str) -> Approval:
        current = await self._reading("get", approval_id, lambda: self._get(approval_id))
        if current is None:
            raise ApprovalNotFoundError(approval_id)
        return current

    @final
    async def _settled(self, wanted: Approval) -> Approval:
        stored = await self._writing("decide", wanted.id, lambda: self._settle(wanted), wanted)
        if stored is None:
            raise ApprovalNotFoundError(wanted.id)
        return stored


def _settle_copied(approval: Approval) -> Decision | None:
    """Check the decision that comes with a request (a copy of one decided elsewhere)."""
    decision = approval.decision
    if approval.decided != (decision is not None):
        raise InvalidArgumentError("approval.decision", "goes with a status other than pending, and only with it")
    if decision is None:
        return None
    if not isinstance(decision, Decision):
        raise InvalidArgumentError("approval.decision", f"must be a Decision, not {type(decision).__name__}")
    _check_fields(decision, "approval.decision")
    if decision.approved is not (approval.status == APPROVED):
        raise InvalidArgumentError("approval.decision.approved", f"contradicts the status {approval.status}")
    return replace(decision, decided_at=check.check_time(decision.decided_at, "approval.decision.decided_at"))


def _check_fields(value: Approval | Decision, name: str) -> None:
    if problem := misfit(value):
        raise InvalidArgumentError(f"{name}.{problem[0]}", problem[1])


def is_denied_by_time(approval: Approval, now: datetime) -> bool:
    """Whether nobody has decided an approval, and nobody can any more: its expiry denies it."""
    return not approval.decided and approval.on_expiry == "deny" and approval.expired(now)


def touched_at(approval: Approval) -> datetime:
    """Return when an approval was last written: when it was decided, or else created."""
    return approval.decision.decided_at if approval.decision else approval.created_at


def _denied_by_time(approval: Approval, now: datetime) -> Approval:
    return replace(approval, status=REJECTED, decision=Decision(False, now, decided_by=EXPIRY))


def _agree(recorded: Approval, wanted: Decision) -> Approval:
    """Return the recorded approval if it says what was wanted, else raise."""
    decision = recorded.decision
    if decision is None or recorded.status == CANCELLED:
        raise ApprovalAlreadyResolvedError(recorded)
    if decision.decided_by == EXPIRY:
        raise ApprovalExpiredError(recorded)
    asked = recorded.arguments if wanted.arguments is None else wanted.arguments
    same_call = not wanted.approved or hash_arguments(recorded.effective_arguments) == hash_arguments(asked)
    if decision.approved != wanted.approved or not same_call:
        raise ApprovalAlreadyResolvedError(recorded)
    return recorded


def _check_conversation(approval: Approval) -> None:
    conversation = conversation_of(check_approval_id(approval.id))
    if conversation_of(check_run_id(approval.run_id)) != conversation:
        raise InvalidIdError("approval id", approval.id, f"an approval of {approval.run_id} begins with its first word")
    if approval.session_id is not None and check_session_id(approval.session_id) != conversation:
        raise InvalidIdError("approval id", approval.id, f"an approval of {approval.session_id} begins with it")
