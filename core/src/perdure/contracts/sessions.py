"""The promise of a session store: transcripts, ordered and versioned."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from perdure.contracts import records as check
from perdure.contracts.ids import check_session_id
from perdure.contracts.records import Page, Record
from perdure.contracts.store import Store, first_version
from perdure.errors import InvalidArgumentError, UnsupportedOperationError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation's transcript, or the part of it that was asked for.

    Attributes:
        session_id: Whose transcript.
        version: Raised by each write; opaque, and never the same twice for one id.
        count: How many records the whole transcript has.
        rewritten: The version of the last `replace`, 0 if there was none.
        start: The index of the first record here.
        records: The records, new objects at each load.
        state: The user's own small object, `{}` if it was never set.
        scope: What the session was created for, or `None`.
        created_at: When the first write happened (aware UTC).
        updated_at: When the last write happened (aware UTC); never goes back.
    """

    session_id: str
    version: int
    count: int
    rewritten: int
    start: int
    records: Sequence[Record]
    state: Record
    scope: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session without its records. The fields are those of `Transcript`."""

    session_id: str
    version: int
    count: int
    state: Record
    scope: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class StoredTranscript:
    """What a backend answers: a transcript whose records and state are still bytes.

    `_list` answers the same without records.
    """

    session_id: str
    version: int
    count: int
    created_at: datetime
    updated_at: datetime
    records: Sequence[bytes] = field(default=())
    start: int = 0
    rewritten: int = 0
    state: bytes | None = None
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class SessionAppend:
    """An append as `SessionStore.append` takes it, for `AgentStore.write`."""

    session_id: str
    records: Sequence[Record]
    expected_version: int | None = None
    state: Record | None = None
    at: datetime | None = None


class SessionStore(Store):
    """Keeps transcripts: for each session id an ordered, versioned list of records, with a small `state` beside it.

    Call the public methods; they check every argument, and refuse the same input with the same error on every backend.
    A backend implements the underscored ones, which get checked ids, encoded records, and every time and limit given.
    Required: `_load`, `_append`. By capability: `_replace`, `_delete`, `_list`.
    """

    @final
    def load(
        self, session_id: str, *, after: int | None = None, limit: int | None = None, last: int | None = None
    ) -> Coroutine[Any, Any, Transcript | None]:
        """Read a transcript, or a part of it, as of one instant. Reading never creates anything.

        Args:
            session_id: Whose transcript.
            after: Skip the first `after` records; `None` and 0 skip none.
            limit: Return at most so many records; `None`: all, 0: none, just the head.
            last: Return the newest `last` records instead; 0: none, just the head. Not with `after` or `limit`.

        Returns:
            The transcript, or `None` if there is no such session. An empty transcript is not `None`.

        Raises:
            InvalidIdError, InvalidArgumentError: An argument is wrong; nothing was read.
            StoreCorruptedError: What is stored cannot be read; nothing was changed.
            StoreUnavailableError: The store failed; nothing was changed.

        Atomic: Head and records belong to one version.
        Durable: Reads what was acknowledged, also by other processes if the store is `shared`.
        Concurrent: Takes no lock that outlives the call.
        Retry: Safe.
        Cancelled: Changes nothing. Raises `CancelledError`, unless it had ended.
        Laws: newer-schema-is-refused, sessions-absent-is-none, sessions-answers-stay-beside-a-cancelled-call,
            sessions-answers-stay-with-their-calls, sessions-bad-ids-are-refused, sessions-bad-windows-are-refused,
            sessions-cancelled-call-raises, sessions-client-outlives-server-kill, sessions-closed-store-refuses,
            sessions-damage-is-neither-absent-nor-empty, sessions-empty-is-not-absent, sessions-every-window-is-fresh,
            sessions-failed-read-is-unavailable, sessions-fresh-place-is-empty, sessions-last-gives-the-newest,
            sessions-no-cap-on-a-read, sessions-order-across-batches, sessions-order-inside-a-batch,
            sessions-other-loop-is-refused, sessions-other-process-sees-it-at-once, sessions-output-is-new-each-time,
            sessions-reading-creates-nothing, sessions-replace-shows-one-moment, sessions-second-handle-is-never-stale,
            sessions-windows-are-slices, sessions-windows-cost-what-they-return,
            sessions-windows-of-a-long-transcript-are-slices, sessions-windows-read-no-other-records,
            sessions-windows-tell-the-whole-head, sessions-works-again-after-an-outage
        """
        check_session_id(session_id)
        after, limit = check.check_optional_place(after, "after"), check.check_optional_place(limit, "limit")
        last = check.check_optional_place(last, "last")
        if last is not None and (after is not None or limit is not None):
            raise InvalidArgumentError("last", "goes without after and limit")
        return self._loading(session_id, after or 0, limit, last)

    @final
    def append(
        self,
        session_id: str,
        records: Sequence[Record],
        *,
        expected_version: int | None = None,
        state: Record | None = None,
        scope: str | None = None,
        at: datetime | None = None,
        version: int | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Add records behind those that are there, and create the session if it is absent.

        The snapshot of `records` and `state` is taken when this is called, before anything is awaited.

        Args:
            session_id: Whose transcript.
            records: JSON objects; none creates an empty session, changes the state, or only raises the version.
            expected_version: Write only at this version; 0: only if absent; `None`: whatever it is.
            state: The new state, replaced whole; `None` keeps it.
            scope: What the session is created for (a user, a project), any text up to 512 bytes; it cannot change.
            at: The instant of the write; `None`: now. `updated_at` keeps the later of the two.
            version: The version that a new session starts at, with `expected_version=0` only; `None`: drawn at random.

        Returns:
            The new version.

        Raises:
            InvalidIdError, InvalidArgumentError, NotJsonError, RecordTooLargeError: Nothing was written.
            VersionConflictError: The session has another version; nothing was written.
            StoreUnavailableError: Nothing was written.
            OutcomeUnknownError: The write may have happened.

        Atomic: All records, the state and the version, or nothing.
        Durable: When it returns (stores that declare `durable`).
        Concurrent: Check and write are one step; of several writers at one version one wins.
        Retry: After `OutcomeUnknownError`, at the same expected version of 1 or more: at most one lands.
        Cancelled: Written whole or not at all; the store stays usable. Raises `CancelledError`, unless it had ended.
        Laws: sessions-answers-hold-through-server-kill, sessions-any-json-comes-back,
            sessions-append-at-the-version-writes, sessions-append-costs-what-it-appends,
            sessions-append-of-nothing-creates, sessions-append-of-nothing-keeps-all,
            sessions-append-refuses-another-version, sessions-append-survives-kill, sessions-append-survives-power-loss,
            sessions-append-survives-server-kill, sessions-append-survives-torn-write,
            sessions-append-to-absent-at-a-version-conflicts, sessions-at-is-kept-as-an-instant,
            sessions-bad-arguments-are-refused, sessions-batch-is-a-snapshot, sessions-batches-are-whole-among-tasks,
            sessions-booleans-are-not-numbers, sessions-cancelled-append-is-whole-or-absent,
            sessions-cancelled-call-holds-no-lock, sessions-cancelled-call-raises,
            sessions-cancelled-create-is-whole-or-absent, sessions-conflict-leaves-nothing,
            sessions-confusable-ids-stay-apart, sessions-count-follows-records, sessions-cut-anywhere-is-old-or-new,
            sessions-deep-nesting-comes-back, sessions-do-not-share, sessions-emptiness-comes-back,
            sessions-equal-records-are-all-kept, sessions-equal-write-at-a-used-version-conflicts,
            sessions-errors-tell-the-truth, sessions-expected-none-always-writes, sessions-expected-zero-means-absent,
            sessions-failed-write-is-of-unknown-outcome, sessions-first-version-can-be-given,
            sessions-first-version-is-drawn, sessions-floats-come-back, sessions-follow-the-model,
            sessions-handles-write-in-turn, sessions-hanging-call-can-be-cancelled, sessions-id-of-128-characters-works,
            sessions-input-is-not-kept, sessions-integers-come-back, sessions-keys-come-back,
            sessions-long-text-comes-back, sessions-namespaces-share-no-key, sessions-namespaces-write-their-own,
            sessions-no-cap-on-a-transcript, sessions-no-update-is-lost, sessions-no-update-is-lost-between-processes,
            sessions-numbers-beside-the-list-come-back, sessions-one-of-many-creates, sessions-one-of-many-handles-wins,
            sessions-one-of-many-handles-wins-after-a-deletion, sessions-one-of-many-processes-wins,
            sessions-one-of-many-tasks-wins, sessions-record-of-16-mib-comes-back,
            sessions-record-over-the-limit-is-refused, sessions-refusal-names-the-place,
            sessions-refused-batch-leaves-nothing, sessions-refused-write-creates-nothing, sessions-refuses-bad-state,
            sessions-refuses-records-that-are-no-objects, sessions-refuses-what-is-not-json, sessions-safe-ids-are-ids,
            sessions-scope-is-set-once, sessions-scope-of-512-bytes-works, sessions-snapshot-is-taken-at-the-call,
            sessions-state-and-records-change-together, sessions-state-is-a-snapshot, sessions-state-is-replaced-whole,
            sessions-store-works-after-conflicts, sessions-store-works-after-errors, sessions-survives-reopening,
            sessions-text-comes-back, sessions-times-come-from-the-clock, sessions-two-readers-one-writer,
            sessions-typed-failure-passes-unchanged, sessions-updated-never-goes-back, sessions-version-is-at-least-one,
            sessions-version-never-repeats, sessions-whole-head-survives-reopening, sessions-write-adds-one,
            sessions-write-that-changes-nothing-adds-one
        """
        check_session_id(session_id)
        expected = check.check_expected(expected_version)
        first = first_version(version, expected)
        scope = None if scope is None else check.check_text(scope, "scope")
        items, data, when = self._settle_write(records, state, at)
        return self._writing(
            "append",
            session_id,
            lambda: self._append(
                session_id,
                items,
                expected_version=expected,
                state=data,
                scope=scope,
                at=when,
                first_version=first,
            ),
            items,
            data,
        )

    @final
    def replace(
        self,
        session_id: str,
        records: Sequence[Record],
        *,
        expected_version: int | None,
        keep: int = 0,
        state: Record | None = None,
        at: datetime | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Keep the first records, and put others behind them in the place of the rest.

        Args:
            session_id: Whose transcript; it must exist.
            records: What comes behind the kept ones; may be none.
            expected_version: Write only at this version; `None`: whatever it is.
            keep: How many records from the start stay; more than there are is a conflict.
            state: The new state; `None` keeps it.
            at: The instant of the write; `None`: now.

        Returns:
            The new version, which is also `rewritten` from now on.

        Raises:
            InvalidIdError, InvalidArgumentError, NotJsonError, RecordTooLargeError: Nothing was written.
            VersionConflictError: Another version, or absent (actual 0); nothing was written.
            UnsupportedOperationError: The store does not declare `replace`.
            StoreUnavailableError: Nothing was written.
            OutcomeUnknownError: The write may have happened.

        Atomic: At any crash the old content or the new one, never a mixture and never neither.
        Durable: When it returns (stores that declare `durable`).
        Concurrent: Check and write are one step.
        Retry: After `OutcomeUnknownError`, at the same expected version of 1 or more.
        Cancelled: Written whole or not at all. Raises `CancelledError`, unless it had ended.
        Laws: sessions-append-goes-behind-a-replace, sessions-cancelled-replace-is-old-or-new,
            sessions-cut-anywhere-is-old-or-new, sessions-emptied-is-not-absent, sessions-keep-beyond-the-end-conflicts,
            sessions-one-of-every-kind-wins, sessions-replace-adds-one, sessions-replace-at-the-version-writes,
            sessions-replace-costs-what-it-adds, sessions-replace-keeps-the-first, sessions-replace-keeps-the-rest,
            sessions-replace-of-absent-conflicts, sessions-replace-refuses-another-version,
            sessions-replace-shows-old-or-new, sessions-replace-survives-kill, sessions-replace-survives-power-loss,
            sessions-replace-survives-server-kill, sessions-replace-survives-torn-write,
            sessions-replace-takes-a-snapshot, sessions-replaced-stays-replaced,
            sessions-rewritten-names-the-last-replace, sessions-write-that-changes-nothing-adds-one
        """
        check_session_id(session_id)
        expected = check.check_expected(expected_version)
        keep = check.check_place(keep, "keep")
        settled = self._settle_write(records, state, at)
        return self._replacing(session_id, *settled, expected, keep)

    @final
    async def delete(self, session_id: str, *, expected_version: int | None = None) -> bool:
        """Remove a session with its records and state.

        Args:
            session_id: Which session.
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
        Concurrent: A writer who slept through it is refused, also after the id is created again.
        Retry: Safe; then it returns False.
        Cancelled: Removed whole or not at all. Raises `CancelledError`, unless it had ended.
        Laws: sessions-cancelled-delete-is-whole-or-absent, sessions-declared-operation-works,
            sessions-delete-leaves-nothing, sessions-delete-of-absent-heeds-the-version,
            sessions-delete-refuses-another-version, sessions-delete-removes-one-id, sessions-delete-survives-kill,
            sessions-delete-survives-power-loss, sessions-delete-survives-server-kill,
            sessions-delete-survives-torn-write, sessions-deleted-is-absent, sessions-deletion-survives-reopening,
            sessions-errors-carry-their-facts, sessions-namespaces-delete-their-own, sessions-one-of-every-kind-wins,
            sessions-sleeper-is-refused-after-re-creation, sessions-undeclared-operation-refuses,
            sessions-version-never-repeats
        """
        check_session_id(session_id)
        expected = check.check_expected(expected_version)
        self.require("delete")
        return await self._writing("delete", session_id, lambda: self._delete(session_id, expected_version=expected))

    @final
    async def list(
        self,
        *,
        scope: str | None = None,
        before: datetime | None = None,
        order: str = "id",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[SessionInfo]:
        """List sessions without reading their records.

        Args:
            scope: Only sessions of exactly this scope; `""` is a scope, `None` means all.
            before: Only sessions whose `updated_at` is earlier.
            order: `id`, `created` (oldest first) or `recent` (last written first).
            cursor: The cursor of the page before.
            limit: How many at the most; 0 gives no items.

        Returns:
            A page. In the orders `id` and `created` every session that exists throughout the iteration comes once.

        Raises:
            InvalidArgumentError: An argument is wrong.
            UnsupportedOperationError: The store does not declare `list`.
            StoreUnavailableError: The store failed.

        Atomic: Each page shows one instant.
        Durable: Shows what was acknowledged.
        Concurrent: Holds no lock between pages.
        Retry: Safe.
        Cancelled: Changes nothing. Raises `CancelledError`, unless it had ended.
        Laws: sessions-bad-listings-are-refused, sessions-before-is-strict, sessions-cancelled-call-raises,
            sessions-conditions-go-together, sessions-cursor-outlives-its-handle, sessions-end-has-no-cursor,
            sessions-limit-zero-gives-nothing, sessions-listing-gives-exact-ids, sessions-listing-holds-no-lock,
            sessions-listing-moves-no-bodies, sessions-listing-shows-the-head, sessions-namespaces-list-their-own,
            sessions-no-cap-on-a-listing, sessions-no-cap-on-a-page, sessions-order-by-creation, sessions-order-by-id,
            sessions-order-by-last-write, sessions-order-goes-by-microseconds, sessions-page-costs-its-limit,
            sessions-pages-give-each-key-once, sessions-pages-hold-under-writes,
            sessions-recent-pages-give-each-key-once, sessions-scope-filters-exactly, sessions-versions-agree
        """
        scope, before = check.check_optional_text(scope, "scope"), check.check_optional_time(before, "before")
        order, limit = check.check_order(order), check.check_limit(limit)
        cursor = check.check_optional_text(cursor, "cursor", check.MAX_CURSOR)
        self.require("list")
        page = await self._reading(
            "list",
            "sessions",
            lambda: self._list(scope=scope, before=before, order=order, cursor=cursor, limit=max(limit, 1)),
        )
        if limit == 0:
            return Page((), cursor)  # it was asked all the same, so that a closed or damaged store says so
        return Page(tuple(self._info(stored) for stored in page.items), page.cursor)

    # --- what a backend implements ---

    @abstractmethod
    async def _load(
        self, session_id: str, *, after: int, limit: int | None, last: int | None
    ) -> StoredTranscript | None:
        """Read; `last` given means the newest n, with `after` 0 and `limit` `None`."""

    @abstractmethod
    async def _append(
        self,
        session_id: str,
        records: tuple[bytes, ...],
        *,
        expected_version: int | None,
        state: bytes | None,
        scope: str | None,
        at: datetime,
        first_version: int,
    ) -> int:
        """Append; `first_version` is the version to give the session if, and only if, it is absent."""

    async def _replace(
        self,
        session_id: str,
        records: tuple[bytes, ...],
        *,
        expected_version: int | None,
        keep: int,
        state: bytes | None,
        at: datetime,
    ) -> int:
        raise UnsupportedOperationError(self.title, "replace")

    async def _delete(self, session_id: str, *, expected_version: int | None) -> bool:
        raise UnsupportedOperationError(self.title, "delete")

    async def _list(
        self, *, scope: str | None, before: datetime | None, order: str, cursor: str | None, limit: int
    ) -> Page[StoredTranscript]:
        raise UnsupportedOperationError(self.title, "list")

    # --- between the two ---

    @final
    def _settle_write(
        self, records: object, state: object, at: object
    ) -> tuple[tuple[bytes, ...], bytes | None, datetime]:
        items = check.encode_records(records, "records", self.max_record)
        data = None if state is None else check.encode_object(state, "state", self.max_record)
        return items, data, self.clock.now() if at is None else check.check_time(at, "at")

    @final
    async def _loading(self, session_id: str, after: int, limit: int | None, last: int | None) -> Transcript | None:
        stored = await self._reading(
            "load", session_id, lambda: self._load(session_id, after=after, limit=limit, last=last)
        )
        if stored is None:
            return None
        info, rewritten, start, items = self._info(stored), stored.rewritten, stored.start, check.taken(stored.records)
        del stored  # nobody else may have the bytes by now, so they go while they are decoded
        return Transcript(
            session_id=info.session_id,
            version=info.version,
            count=info.count,
            rewritten=rewritten,
            start=start,
            records=check.take_records(items, f"session {session_id}: records", start),
            state=info.state,
            scope=info.scope,
            created_at=info.created_at,
            updated_at=info.updated_at,
        )

    @final
    async def _replacing(
        self,
        session_id: str,
        items: tuple[bytes, ...],
        state: bytes | None,
        at: datetime,
        expected: int | None,
        keep: int,
    ) -> int:
        self.require("replace")
        return await self._writing(
            "replace",
            session_id,
            lambda: self._replace(session_id, items, expected_version=expected, keep=keep, state=state, at=at),
            items,
            state,
        )

    @final
    def _info(self, stored: StoredTranscript) -> SessionInfo:
        where = f"session {stored.session_id}: state"
        return SessionInfo(
            session_id=stored.session_id,
            version=stored.version,
            count=stored.count,
            state=check.decode_object(stored.state, where) if stored.state else {},
            scope=stored.scope,
            created_at=stored.created_at,
            updated_at=stored.updated_at,
        )
