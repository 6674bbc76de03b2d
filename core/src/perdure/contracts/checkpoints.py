"""The promise of a checkpoint store: turn journals, and the lock of a conversation in their heads."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, final

from perdure.contracts import records as check
from perdure.contracts.capabilities import Capabilities
from perdure.contracts.ids import check_checkpoint_key, check_run_id, check_session_id, conversation_of
from perdure.contracts.plain import from_record, misfit, to_record
from perdure.contracts.records import Page, Record
from perdure.contracts.store import Store, first_version
from perdure.errors import InvalidArgumentError, InvalidIdError, StoreCorruptedError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

IDLE: Final = "idle"
IN_PROGRESS: Final = "in-progress"
AWAITING_APPROVAL: Final = "awaiting-approval"
READY: Final = "ready"
FINISHED: Final = "finished"
TURN_STATUSES: Final = (IN_PROGRESS, AWAITING_APPROVAL, READY, FINISHED)
DISCARDING: Final = "discarding"
CLEARING: Final = "clearing"
COMPACTING: Final = "compacting"
DELETING: Final = "deleting"
COPYING: Final = "copying"
CLAIM_STATUSES: Final = (DISCARDING, CLEARING, COMPACTING, DELETING, COPYING)
STATUSES: Final = (IDLE, *TURN_STATUSES, *CLAIM_STATUSES)


class _Settling:
    """What makes room in a head for what it was settled to last: no field, so it is no part of what the head says."""

    __slots__ = ("_settled",)
    _settled: tuple[str, int, SettledHead]


@dataclass(frozen=True, slots=True)
class CheckpointHead(_Settling):
    """What is known of a turn without reading its entries, and who owns it.

    Attributes:
        status: `idle`; `in-progress`, `awaiting-approval`, `ready` (all decided, nobody runs it), `finished`; or a
            claim on the whole conversation: `discarding`, `clearing`, `compacting`, `deleting`, `copying`.
        run_id: The run of the turn; `None` if there is none.
        session_id: The session of the turn; `None` for a run without one.
        agent: The name of the agent that runs the turn.
        base_version: The version of the transcript that the first model request was made from.
        base_count: How many records the transcript had then.
        owner: Who runs the turn, `None` if nobody does.
        lease: How long the owner's lease is.
        lease_expires_at: When it ends, unless the owner renews it.
        fingerprint: What the agent was made of when the turn began.
        attempts: How often the turn was taken up.
        last_error: The last failure, one line.
        failed: Whether that failure is one that another attempt does not mend.
        approval_ids: What a waiting turn waits for.
        extra: Fields that this release does not know; they are kept.
    """

    status: str
    run_id: str | None = None
    session_id: str | None = None
    agent: str = "agent"
    base_version: int | None = None
    base_count: int | None = None
    owner: str | None = None
    lease: timedelta | None = None
    lease_expires_at: datetime | None = None
    fingerprint: str | None = None
    attempts: int = 0
    last_error: str | None = None
    failed: bool = False
    approval_ids: list[str] = field(default_factory=list)
    extra: Record = field(default_factory=dict)

    def to_record(self) -> Record:
        """Return the head as a JSON object."""
        return to_record(self)

    @classmethod
    def from_record(cls, record: Record, where: str = "head") -> CheckpointHead:
        """Make a head from a JSON object, or raise `StoreCorruptedError`."""
        return from_record(cls, record, where)


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A turn journal without its entries."""

    key: str
    version: int
    count: int
    head: CheckpointHead
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A turn journal: its head and all of its entries, in order."""

    key: str
    version: int
    entries: Sequence[Record]
    head: CheckpointHead
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """What a backend answers: a turn journal whose head and entries are still bytes; `_list` answers no entries."""

    key: str
    version: int
    count: int
    head: bytes
    created_at: datetime
    updated_at: datetime
    entries: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class SettledHead:
    """A checked head on its way into a backend: the bytes to keep, and what `_list` filters by."""

    data: bytes
    status: str
    agent: str


@dataclass(frozen=True, slots=True)
class CheckpointReplace:
    """A replace as `CheckpointStore.replace` takes it, for `AgentStore.write`."""

    key: str
    entries: Sequence[Record]
    head: CheckpointHead
    expected_version: int | None
    at: datetime | None = None


class CheckpointStore(Store):
    """Keeps turn journals: for each key an ordered list of entries, with a head that is also the conversation's lock.

    An append replaces the head and adds its entries in one step: whoever appends at the expected version owns the
    conversation. A backend implements the underscored methods, all of them.
    """

    capabilities: Capabilities = Capabilities(replace=True, delete=True, list=True)

    @final
    async def load(self, key: str) -> Checkpoint | None:
        """Read a turn journal, as of one instant. Reading never creates anything.

        Args:
            key: A session id, or `<name>.run` for a run without a session.

        Returns:
            The turn journal, or `None` if there is none.

        Raises:
            InvalidIdError: The key breaks its rule.
            StoreCorruptedError: What is stored cannot be read; nothing was changed.
            StoreUnavailableError: The store failed.

        Atomic: Head and entries belong to one version.
        Durable: Reads what was acknowledged.
        Concurrent: Takes no lock that outlives the call.
        Retry: Safe.
        Cancelled: Changes nothing. Raises `CancelledError`, unless it had ended.
        Laws: checkpoints-absent-is-none, checkpoints-answers-stay-beside-a-cancelled-call,
            checkpoints-answers-stay-with-their-calls, checkpoints-bad-keys-are-refused,
            checkpoints-cancelled-call-raises, checkpoints-closed-store-refuses,
            checkpoints-damage-is-neither-absent-nor-empty, checkpoints-empty-is-not-absent,
            checkpoints-failed-read-is-unavailable, checkpoints-fresh-place-is-empty, checkpoints-no-cap-on-a-read,
            checkpoints-order-across-batches, checkpoints-order-inside-a-batch, checkpoints-other-loop-is-refused,
            checkpoints-output-is-new-each-time, checkpoints-reading-creates-nothing,
            checkpoints-second-handle-is-never-stale, checkpoints-works-again-after-an-outage
        """
        check_checkpoint_key(key)
        stored = await self._reading("load", key, lambda: self._load(key))
        if stored is None:
            return None
        info, items = self._info(stored), check.taken(stored.entries)
        del stored  # nobody else may have the bytes by now, so they go while they are decoded
        entries = check.take_records(items, f"turn journal {key}: entries")
        return Checkpoint(info.key, info.version, entries, info.head, info.created_at, info.updated_at)

    @final
    def append(
        self,
        key: str,
        entries: Sequence[Record],
        *,
        expected_version: int | None,
        head: CheckpointHead,
        at: datetime | None = None,
        version: int | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Add entries and replace the head, in one step; create the turn journal if it is absent.

        Args:
            key: A session id, or `<name>.run`.
            entries: JSON objects; none only replaces the head (a heartbeat).
            expected_version: Write only at this version; 0: only if absent; `None`: whatever it is.
            head: The new head, whole. Its ids belong to the conversation of the key.
            at: The instant of the write; `None`: now.
            version: The version that a new turn journal starts at, with `expected_version=0` only.

        Returns:
            The new version.

        Raises:
            InvalidIdError, InvalidArgumentError, NotJsonError, RecordTooLargeError: Nothing was written.
            VersionConflictError: Another version: somebody else owns the conversation. Nothing was written.
            StoreUnavailableError: Nothing was written.
            OutcomeUnknownError: The write may have happened.

        Atomic: Entries, head and version, or nothing.
        Durable: When it returns (stores that declare `durable`).
        Concurrent: Check and write are one step; of several writers at one version one wins.
        Retry: After `OutcomeUnknownError`, at the same expected version of 1 or more: at most one lands.
        Cancelled: Written whole or not at all. Raises `CancelledError`, unless it had ended.
        Laws: checkpoints-answers-hold-through-server-kill, checkpoints-any-json-comes-back,
            checkpoints-append-at-the-version-writes, checkpoints-append-costs-what-it-appends,
            checkpoints-append-refuses-another-version, checkpoints-append-to-absent-at-a-version-conflicts,
            checkpoints-bad-arguments-are-refused, checkpoints-batch-is-a-snapshot,
            checkpoints-batches-are-whole-among-tasks, checkpoints-booleans-are-not-numbers,
            checkpoints-cancelled-append-is-whole-or-absent, checkpoints-cancelled-append-keeps-head-and-entries,
            checkpoints-cancelled-call-holds-no-lock, checkpoints-cancelled-call-raises,
            checkpoints-cancelled-create-is-whole-or-absent, checkpoints-conflict-leaves-nothing,
            checkpoints-confusable-ids-stay-apart, checkpoints-cut-anywhere-is-old-or-new,
            checkpoints-deep-nesting-comes-back, checkpoints-emptiness-comes-back,
            checkpoints-equal-records-are-all-kept, checkpoints-equal-write-at-a-used-version-conflicts,
            checkpoints-errors-tell-the-truth, checkpoints-every-head-field-comes-back,
            checkpoints-every-status-is-taken, checkpoints-expected-none-always-writes,
            checkpoints-expected-zero-means-absent, checkpoints-failed-write-is-of-unknown-outcome,
            checkpoints-first-version-can-be-given, checkpoints-first-version-is-drawn, checkpoints-floats-come-back,
            checkpoints-follow-the-model, checkpoints-handles-write-in-turn, checkpoints-hanging-call-can-be-cancelled,
            checkpoints-head-and-entries-change-together, checkpoints-head-is-a-snapshot,
            checkpoints-head-is-replaced-whole, checkpoints-heads-stay-in-their-conversation,
            checkpoints-heartbeat-keeps-entries, checkpoints-input-is-not-kept, checkpoints-integers-come-back,
            checkpoints-keys-come-back, checkpoints-lease-comes-back-in-utc, checkpoints-long-text-comes-back,
            checkpoints-namespaces-share-no-key, checkpoints-namespaces-write-their-own, checkpoints-no-update-is-lost,
            checkpoints-numbers-beside-the-list-come-back, checkpoints-one-claim-wins, checkpoints-one-of-many-creates,
            checkpoints-one-of-many-handles-wins, checkpoints-one-of-many-handles-wins-after-a-deletion,
            checkpoints-one-of-many-processes-takes-the-turn, checkpoints-one-of-many-tasks-wins,
            checkpoints-record-over-the-limit-is-refused, checkpoints-refused-batch-leaves-nothing,
            checkpoints-refused-write-creates-nothing, checkpoints-refuses-a-bad-head,
            checkpoints-refuses-records-that-are-no-objects, checkpoints-refuses-what-is-not-json,
            checkpoints-run-and-session-of-one-name-are-two, checkpoints-snapshot-is-taken-at-the-call,
            checkpoints-store-works-after-conflicts, checkpoints-store-works-after-errors,
            checkpoints-survives-reopening, checkpoints-text-comes-back, checkpoints-times-follow-the-writes,
            checkpoints-turn-survives-kill, checkpoints-turn-survives-power-loss, checkpoints-turn-survives-server-kill,
            checkpoints-turn-survives-torn-write, checkpoints-two-readers-one-writer,
            checkpoints-typed-failure-passes-unchanged, checkpoints-version-is-at-least-one,
            checkpoints-version-never-repeats, checkpoints-whole-head-survives-reopening, checkpoints-write-adds-one
        """
        expected = check.check_expected(expected_version)
        first = first_version(version, expected)
        items, settled, when = self._settle_write(key, entries, head, at)
        return self._writing(
            "append",
            key,
            lambda: self._append(key, items, expected_version=expected, head=settled, at=when, first_version=first),
            items,
            settled,
        )

    @final
    def replace(
        self,
        key: str,
        entries: Sequence[Record],
        *,
        expected_version: int | None,
        head: CheckpointHead,
        at: datetime | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Put entries in the place of all that are there, and replace the head, in one step.

        Args:
            key: A session id, or `<name>.run`; it must exist.
            entries: The new entries; none closes the turn.
            expected_version: Write only at this version; `None`: whatever it is.
            head: The new head, whole.
            at: The instant of the write; `None`: now.

        Returns:
            The new version.

        Raises:
            InvalidIdError, InvalidArgumentError, NotJsonError, RecordTooLargeError: Nothing was written.
            VersionConflictError: Another version, or absent (actual 0); nothing was written.
            StoreUnavailableError: Nothing was written.
            OutcomeUnknownError: The write may have happened.

        Atomic: The old content or the new one.
        Durable: When it returns (stores that declare `durable`).
        Concurrent: Check and write are one step.
        Retry: After `OutcomeUnknownError`, at the same expected version of 1 or more.
        Cancelled: Written whole or not at all. Raises `CancelledError`, unless it had ended.
        Laws: checkpoints-cancelled-replace-is-old-or-new, checkpoints-closing-and-reopening-a-turn-goes-on,
            checkpoints-cut-anywhere-is-old-or-new, checkpoints-emptied-is-not-absent,
            checkpoints-one-of-every-kind-wins, checkpoints-replace-adds-one, checkpoints-replace-at-the-version-writes,
            checkpoints-replace-drops-every-entry, checkpoints-replace-of-absent-conflicts,
            checkpoints-replace-refuses-another-version, checkpoints-replace-shows-old-or-new,
            checkpoints-replaced-stays-replaced
        """
        expected = check.check_expected(expected_version)
        settled = self._settle_write(key, entries, head, at)
        return self._replacing(key, *settled, expected)

    @final
    async def delete(self, key: str, *, expected_version: int | None = None) -> bool:
        """Remove a turn journal.

        Args:
            key: A session id, or `<name>.run`.
            expected_version: Remove only at this version; 0 asserts that it is absent; `None`: whatever it is.

        Returns:
            Whether it was there.

        Raises:
            InvalidIdError, InvalidArgumentError: Nothing was removed.
            VersionConflictError: Another version; nothing was removed.
            StoreUnavailableError: Nothing was removed.
            OutcomeUnknownError: It may be removed.

        Atomic: Whole or not at all.
        Durable: When it returns (stores that declare `durable`).
        Concurrent: A writer who slept through it is refused, also after the key is created again.
        Retry: Safe; then it returns False.
        Cancelled: Removed whole or not at all. Raises `CancelledError`, unless it had ended.
        Laws: checkpoints-cancelled-delete-is-whole-or-absent, checkpoints-declared-operation-works,
            checkpoints-delete-of-absent-heeds-the-version, checkpoints-delete-refuses-another-version,
            checkpoints-delete-removes-one-id, checkpoints-deleted-is-absent, checkpoints-deleted-journal-keeps-nothing,
            checkpoints-deletion-survives-reopening, checkpoints-errors-carry-their-facts,
            checkpoints-late-append-revives-nothing, checkpoints-namespaces-delete-their-own,
            checkpoints-one-of-every-kind-wins, checkpoints-sleeper-is-refused-after-re-creation,
            checkpoints-undeclared-operation-refuses, checkpoints-version-never-repeats
        """
        check_checkpoint_key(key)
        expected = check.check_expected(expected_version)
        return await self._writing("delete", key, lambda: self._delete(key, expected_version=expected))

    @final
    async def list(
        self,
        *,
        status: str | None = None,
        agent: str | None = None,
        before: datetime | None = None,
        order: str = "id",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[CheckpointInfo]:
        """List the heads of turn journals, without their entries.

        Args:
            status: Only heads of exactly this status; `None`: all.
            agent: Only heads of exactly this agent; `None`: all.
            before: Only those whose `updated_at` is earlier.
            order: `id`, `created` (oldest first) or `recent` (last written first).
            cursor: The cursor of the page before.
            limit: How many at the most; 0 gives no items.

        Returns:
            A page. In the orders `id` and `created` every key that exists throughout the iteration comes once.

        Raises:
            InvalidArgumentError: An argument is wrong.
            StoreUnavailableError: The store failed.

        Atomic: Each page shows one instant.
        Durable: Shows what was acknowledged.
        Concurrent: Holds no lock between pages.
        Retry: Safe.
        Cancelled: Changes nothing. Raises `CancelledError`, unless it had ended.
        Laws: checkpoints-bad-listings-are-refused, checkpoints-before-is-strict, checkpoints-cancelled-call-raises,
            checkpoints-conditions-go-together, checkpoints-cursor-outlives-its-handle, checkpoints-end-has-no-cursor,
            checkpoints-filters-follow-every-write, checkpoints-limit-zero-gives-nothing,
            checkpoints-listing-gives-exact-ids, checkpoints-listing-holds-no-lock, checkpoints-listing-moves-no-bodies,
            checkpoints-listing-shows-the-head, checkpoints-namespaces-list-their-own, checkpoints-no-cap-on-a-listing,
            checkpoints-order-by-creation, checkpoints-order-by-id, checkpoints-order-by-last-write,
            checkpoints-order-goes-by-microseconds, checkpoints-page-costs-its-limit,
            checkpoints-page-shows-one-instant, checkpoints-pages-give-each-key-once,
            checkpoints-pages-hold-under-writes, checkpoints-recent-pages-give-each-key-once,
            checkpoints-status-and-agent-filter-exactly, checkpoints-versions-agree
        """
        status, agent = check.check_optional_text(status, "status"), check.check_optional_text(agent, "agent")
        before = check.check_optional_time(before, "before")
        order, limit = check.check_order(order), check.check_limit(limit)
        cursor = check.check_optional_text(cursor, "cursor", check.MAX_CURSOR)
        page = await self._reading(
            "list",
            "turn journals",
            lambda: self._list(
                status=status, agent=agent, before=before, order=order, cursor=cursor, limit=max(limit, 1)
            ),
        )
        if limit == 0:
            return Page((), cursor)  # it was asked all the same, so that a closed or damaged store says so
        return Page(tuple(self._info(stored) for stored in page.items), page.cursor)

    # --- what a backend implements ---

    @abstractmethod
    async def _load(self, key: str) -> StoredCheckpoint | None:
        """Read the head and all entries."""

    @abstractmethod
    async def _append(
        self,
        key: str,
        entries: tuple[bytes, ...],
        *,
        expected_version: int | None,
        head: SettledHead,
        at: datetime,
        first_version: int,
    ) -> int:
        """Append; `first_version` is the version to give the key if, and only if, it is absent."""

    @abstractmethod
    async def _replace(
        self, key: str, entries: tuple[bytes, ...], *, expected_version: int | None, head: SettledHead, at: datetime
    ) -> int:
        """Replace all entries and the head."""

    @abstractmethod
    async def _delete(self, key: str, *, expected_version: int | None) -> bool:
        """Remove the key."""

    @abstractmethod
    async def _list(
        self,
        *,
        status: str | None,
        agent: str | None,
        before: datetime | None,
        order: str,
        cursor: str | None,
        limit: int,
    ) -> Page[StoredCheckpoint]:
        """List heads."""

    # --- between the two ---

    @final
    def _settle_write(
        self, key: object, entries: object, head: CheckpointHead, at: object
    ) -> tuple[tuple[bytes, ...], SettledHead, datetime]:
        name = check_checkpoint_key(key)
        items = check.encode_records(entries, "entries", self.max_record)
        return items, self._settle_head(name, head), self.clock.now() if at is None else check.check_time(at, "at")

    @final
    def _settle_head(self, key: str, head: CheckpointHead) -> SettledHead:
        """Settle a head once: that of a turn goes out with each append until its lease is renewed."""
        if not isinstance(head, CheckpointHead):
            raise InvalidArgumentError("head", f"must be a CheckpointHead, not {type(head).__name__}")
        if head.approval_ids or head.extra or type(head) is not CheckpointHead:  # it may have changed since
            return self._check_head(key, head)
        last: tuple[str, int, SettledHead] | None = getattr(head, "_settled", None)
        if last is None or last[:2] != (key, self.max_record):
            last = key, self.max_record, self._check_head(key, head)
            object.__setattr__(head, "_settled", last)  # it is frozen for everybody else
        return last[2]

    @final
    def _check_head(self, key: str, head: CheckpointHead) -> SettledHead:
        if head.status not in STATUSES:
            raise InvalidArgumentError("head.status", f"must be one of {', '.join(STATUSES)}")
        agent = check.check_text(head.agent, "head.agent")
        until = check.check_optional_time(head.lease_expires_at, "head.lease_expires_at")
        check.check_optional_duration(head.lease, "head.lease")
        _check_ids(key, head)
        if problem := misfit(head):
            raise InvalidArgumentError(f"head.{problem[0]}", problem[1])
        record = to_record(head)
        if until is not None and until is not head.lease_expires_at:
            record["lease_expires_at"] = until.isoformat()  # in UTC
        return SettledHead(check.encode_object(record, "head", self.max_record), head.status, agent)

    @final
    async def _replacing(
        self, key: str, items: tuple[bytes, ...], head: SettledHead, at: datetime, expected: int | None
    ) -> int:
        return await self._writing(
            "replace",
            key,
            lambda: self._replace(key, items, expected_version=expected, head=head, at=at),
            items,
            head,
        )

    @final
    def _info(self, stored: StoredCheckpoint) -> CheckpointInfo:
        where = f"turn journal {stored.key}: head"
        head = CheckpointHead.from_record(check.decode_object(stored.head, where), where)
        try:
            _check_ids(stored.key, head)
        except InvalidIdError as error:
            raise StoreCorruptedError(where, str(error)) from error
        return CheckpointInfo(stored.key, stored.version, stored.count, head, stored.created_at, stored.updated_at)


def _check_ids(key: str, head: CheckpointHead) -> None:
    """Raise `InvalidIdError` unless the session and the run of a head belong to the conversation of its key."""
    conversation = conversation_of(key)
    if head.session_id is not None and check_session_id(head.session_id) != key:
        raise InvalidIdError("session id", head.session_id, f"the head of {key} names its own session, or none")
    if head.run_id is not None and conversation_of(check_run_id(head.run_id)) != conversation:
        raise InvalidIdError("run id", head.run_id, f"a run of {key} begins with {conversation} and a dot")
