"""Compaction: a summary takes the place of all but the newest turns of a transcript.

The order of writes: claim the conversation; have the summary made, the lease renewed meanwhile; write the archive, if
one is kept; prove that the claim is still ours; replace the transcript at the version read; close the claim. What is
appended while the summary is made comes behind the kept turns; a transcript that is rewritten meanwhile stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from perdure import codec
from perdure.contracts.checkpoints import COMPACTING, FINISHED, IDLE
from perdure.contracts.records import encode_object
from perdure.contracts.store import describe, in_one_life
from perdure.conversations.claims import Claim
from perdure.errors import (
    OutcomeUnknownError,
    SessionBusyError,
    SessionConflictError,
    SessionDeletedError,
    StoreError,
    SummaryError,
    VersionConflictError,
)
from perdure.events import CompactionDone, CompactionStarted
from perdure.models import ModelRequest
from perdure.ownership.leases import OwnershipLostError
from perdure.runtime.functions import called
from perdure.runtime.messages import Message, Usage, messages_of
from perdure.runtime.transcript.archiving import ArchiveWriter
from perdure.runtime.transcript.compacted import Compacted, Split, compacted, split
from perdure.runtime.transcript.compaction_policy import due, require_able
from perdure.runtime.transcript.reading import TranscriptView
from perdure.runtime.turn.asking import ask

if TYPE_CHECKING:
    from perdure.bundle import AgentStore
    from perdure.contracts.checkpoints import Checkpoint
    from perdure.contracts.sessions import Transcript
    from perdure.observers.listening import Channel
    from perdure.runtime.agent import Agent
    from perdure.runtime.pending import PendingTurns
    from perdure.runtime.transcript.compaction_policy import Compaction, CompactionOptions
    from perdure.runtime.turn.runner import Sink

INSTRUCTION: Final = (
    "Summarise the conversation so far for yourself: what you write takes its place. Keep what was asked for and why, "
    "what was decided and done, names, numbers and ids word for word, what failed, and what is still open. "
    "Answer with the summary alone."
)
"""What the agent's model is told when it makes a summary."""

_log = logging.getLogger("perdure.compaction")


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did.

    Attributes:
        replaced: How many records the summary stands for; 0: there was nothing to replace, and nothing was changed.
        summary: Its text.
        archive_id: The session that keeps the full transcript, `None` if none does.
        usage: What the summary has cost.
    """

    replaced: int = 0
    summary: str = ""
    archive_id: str | None = None
    usage: Usage = field(default_factory=Usage)


NOTHING: Final = CompactionResult()


async def compact(
    journal: PendingTurns, view: TranscriptView, channel: Channel, options: CompactionOptions
) -> CompactionResult:
    """Compact a conversation whose calls are served one after another; see `Session.compact`."""
    while True:
        compactor = Compactor(journal.agent, journal.store, view, channel, options)
        found = await _without_turn(journal)
        with contextlib.suppress(VersionConflictError):  # somebody else was first: look again
            return await compactor.run(found)


async def compact_if_due(
    journal: PendingTurns,
    view: TranscriptView,
    channel: Channel,
    found: Checkpoint | None,
    policy: Compaction,
    sink: Sink | None = None,
) -> bool:
    """Compact a conversation before a new turn, once for each input, if a policy asks for it and it can be done.

    Args:
        journal: Of the conversation, whose calls are served one after another.
        view: Its transcript, as it was read just now.
        channel: Who hears of it.
        found: The turn journal, as it was read: idle or absent.
        policy: When, and how.
        sink: The stream that shows what becomes of the input.

    Returns:
        Whether the turn journal must be read again, since it may have been written to.
    """
    if not due(view.read, policy):
        return False
    with contextlib.suppress(VersionConflictError):  # somebody else was first
        await Compactor(journal.agent, journal.store, view, channel, policy, sink).run_if_possible(found)
    return True


async def _without_turn(journal: PendingTurns) -> Checkpoint | None:
    """Return the turn journal of a conversation without a turn; a finished one is saved first, another refuses."""
    while True:
        found = await journal.settled_in_scope()
        if found is None or found.head.status == IDLE:
            return found
        journal.require_own(found)
        if found.head.status != FINISHED:
            await journal.require_decided(found)
            raise SessionBusyError(journal.key, f"the pending turn {found.head.run_id}")
        await journal.finish(found)


class Compactor:
    """Compacts one conversation once. Make one for each attempt."""

    def __init__(
        self,
        agent: Agent,
        store: AgentStore,
        view: TranscriptView,
        channel: Channel,
        options: CompactionOptions,
        sink: Sink | None = None,
    ) -> None:
        """Look at what the store can; nothing is read yet.

        Args:
            agent: Whose model makes the summary.
            store: Where.
            view: Of the session.
            channel: Who hears of it.
            options: How.
            sink: The stream that shows it, if one does.

        Raises:
            UnsupportedOperationError: The session store cannot replace, or cannot delete, which an archive needs.
        """
        require_able(store, options)
        self.agent = agent
        self.store = store
        self.view = view
        self.channel = channel
        self.id = view.session_id
        self.options = options
        self._sink = sink
        self._whole = TranscriptView(store.sessions, self.id, whole=True)
        self._archive = ArchiveWriter(store, self.id)
        self._failed_to_summarise = False
        self._may_have_replaced = False

    async def run(self, found: Checkpoint | None) -> CompactionResult:
        """Compact the conversation, whose turn journal was read, has no open turn and no live owner.

        Returns:
            What was done; `replaced == 0` if there was nothing to replace.

        Raises:
            VersionConflictError: Somebody else was first; read the turn journal again. Nothing was changed.
            SummaryError: The summary is empty, or no text. Nothing was changed.
            SessionConflictError: The transcript was rewritten meanwhile, or somebody took the compaction over. It is as
                that has left it.
            SessionDeletedError: The session was deleted meanwhile.
            OutcomeUnknownError: It may be done; whoever comes next finds out.
            Exception: What the model or `summarize` raises. Nothing was changed.
        """
        base = await self._whole.refresh()
        if base is None or split(self._whole.read.records, self.options.keep) is None:
            return NOTHING
        self.channel.scope = base.scope
        with await Claim.take(self.store, self.id, found, COMPACTING, archive=self.options.archive) as claim:
            self.channel.emit(CompactionStarted, None, self._sink)
            try:
                done = await self._claimed(claim)
            except Exception as error:
                self._tell(NOTHING, describe(error))
                raise
        self._tell(done, None)
        return done

    async def run_if_possible(self, found: Checkpoint | None) -> CompactionResult:
        """Compact as `run` does; if no summary can be made, warn and go on without."""
        try:
            return await self.run(found)
        except Exception as error:
            if not self._failed_to_summarise and not isinstance(error, (SessionConflictError, SessionDeletedError)):
                raise
            _log.warning(
                "the session was not compacted: %s", describe(error), extra={"perdure": {"session_id": self.id}}
            )
            return NOTHING

    def _tell(self, done: CompactionResult, error: str | None) -> None:
        self.channel.emit(
            CompactionDone, None, self._sink, replaced=done.replaced, archive_id=done.archive_id, error=error
        )

    async def _claimed(self, claim: Claim) -> CompactionResult:
        try:
            return await self._compact(claim)
        except OwnershipLostError as error:
            await self._archive.take_back()
            raise await self._refusal() from error
        except (Exception, asyncio.CancelledError):
            if not self._may_have_replaced:
                # What goes wrong here adds nothing: whoever comes next finds a claim without an owner, and undoes it.
                with contextlib.suppress(StoreError, OwnershipLostError):
                    await claim.let_go()
            raise

    async def _refusal(self) -> SessionDeletedError | SessionConflictError:
        """Return the error of one who has slept through somebody else's taking over."""
        if await self.store.sessions.load(self.id, limit=0) is None:
            return SessionDeletedError(self.id)
        return SessionConflictError(self.id, self.id, "another owner took the compaction over")

    async def _compact(self, claim: Claim) -> CompactionResult:
        base = await self._whole.refresh()
        records = self._whole.read.records
        parts = split(records, self.options.keep)
        if base is None or parts is None:
            await claim.let_go()
            return NOTHING
        name, version = next(iter(claim.note.get("archives", ())), None), claim.note["session_version"]
        new = await self._made(claim, parts, name)
        if name is not None:
            await self._archive.write(claim, name, version, base, records)
        await self._replace(claim, base, new)
        await self._close(claim)
        return CompactionResult(len(parts.replaced), new.text, name, new.usage)

    async def _close(self, claim: Claim) -> None:
        """Close the journal; whoever took the claim over after the replace does the same."""
        with contextlib.suppress(OwnershipLostError):
            await claim.close()
        await self.view.refresh_if_possible()

    # --- the summary ---

    async def _made(self, claim: Claim, parts: Split, archive: str | None) -> Compacted:
        """Have the summary made, and make the new transcript of it."""
        try:
            # Copies: whoever makes the summary may change what it is given, and the archive is written behind it.
            text, usage = await self._summarised(claim, messages_of(codec.copied(parts.replaced)))
            new = compacted(parts, text, usage, at=self.store.clock.now(), archive=archive)
            encode_object(new.summary, "summary", self.store.sessions.max_record)
        except OwnershipLostError:
            raise
        except Exception:
            self._failed_to_summarise = True
            raise
        return new

    async def _summarised(self, claim: Claim, messages: Sequence[Message]) -> tuple[str, Usage]:
        """Have the summary made while the lease is renewed; a loss of the claim ends it."""
        work = asyncio.ensure_future(self._ask(messages))
        lost = False

        def on_lost() -> None:
            nonlocal lost
            lost = True
            work.cancel()

        try:
            async with claim.journal.heartbeat(on_lost):
                return await work
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait([work])
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            if lost:
                raise OwnershipLostError(self.id) from None
            raise SummaryError(self.id, "what makes the summary cancelled itself") from None

    async def _ask(self, messages: Sequence[Message]) -> tuple[str, Usage]:
        if self.options.summarize is not None:
            return self._checked(await called(self.options.summarize, messages)), Usage()
        request = ModelRequest((*messages, Message("user", INSTRUCTION)))
        response = await ask(self.agent.model, request, self.store.clock)
        if response.tool_calls:
            raise SummaryError(self.id, "the model called a tool instead of writing a summary")
        return self._checked(response.text), response.usage

    def _checked(self, text: object) -> str:
        if not isinstance(text, str):
            raise SummaryError(self.id, f"the summary is a {type(text).__name__}, not text")
        if not text.strip():
            raise SummaryError(self.id, "the summary is empty")
        return text

    # --- the replace ---

    async def _replace(self, claim: Claim, base: Transcript, new: Compacted) -> None:
        """Prove, and replace the transcript at the version read, until one of the two says no."""
        tried: set[int] = set()
        unknown: OutcomeUnknownError | None = None
        while True:
            seen = await self._unchanged(base, new, tried)
            if seen is None:
                return
            if unknown is not None and seen.version not in tried:
                self._may_have_replaced, unknown = False, None  # what was tried can never land any more
            try:
                await claim.prove(seen)
            except OwnershipLostError:
                if unknown is not None and await self._unchanged(base, new, tried) is None:
                    return  # what was tried has landed, and whoever has taken the claim over found it done
                raise
            records = [*new.records, *seen.records]
            self._may_have_replaced = True
            try:
                await self.store.sessions.replace(self.id, records, expected_version=seen.version)
            except OutcomeUnknownError as error:
                if unknown is not None:
                    raise
                unknown = error
            except VersionConflictError:
                self._may_have_replaced = unknown is not None
            except StoreError as error:
                self._may_have_replaced = unknown is not None
                raise (unknown or error) from None
            else:
                return
            tried.add(seen.version)

    async def _unchanged(self, base: Transcript, new: Compacted, tried: set[int]) -> Transcript | None:
        """Read what was appended to the transcript; `None` if it was replaced by us after all.

        Raises:
            SessionDeletedError: It is gone.
            SessionConflictError: Somebody else has rewritten it.
        """
        seen = await self.store.sessions.load(self.id, after=base.count)
        if seen is None:
            raise SessionDeletedError(self.id)
        same = seen.created_at == base.created_at and in_one_life(base.version, seen.version)
        if same and seen.rewritten <= base.version:
            return seen
        if seen.rewritten - 1 in tried:
            first = await self.store.sessions.load(self.id, limit=1)
            if first is not None and list(first.records) == [new.summary]:
                return None
        self._may_have_replaced = False
        raise SessionConflictError(self.id, self.id, "the transcript was rewritten while its summary was made")
