"""Writing an archive so that it never outlives the claim that names it, whoever sleeps in between."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from perdure.archives import archive_of, archive_state
from perdure.contracts.store import draw_version
from perdure.errors import (
    OutcomeUnknownError,
    SessionConflictError,
    StoreError,
    StoreUnavailableError,
    VersionConflictError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from perdure.bundle import AgentStore
    from perdure.contracts.records import Record
    from perdure.contracts.sessions import Transcript
    from perdure.conversations.claims import Claim


class ArchiveWriter:
    """Writes the archive of one compaction: an empty session first, a proof, and then all records at its version.

    Whoever takes the claim over deletes what it finds under the archive's name. So the records of one who has slept
    through that are refused, and nothing of the conversation comes back.
    """

    def __init__(self, store: AgentStore, session_id: str) -> None:
        self.store = store
        self.session_id = session_id
        self._empty: tuple[str, int] | None = None

    async def write(self, claim: Claim, name: str, version: int, base: Transcript, records: Sequence[Record]) -> None:
        """Write the archive that a claim names.

        Args:
            claim: Ours.
            name: The archive's session id.
            version: The version of the conversation that it is named after.
            base: The transcript's head, as it was read.
            records: All of the transcript.

        Raises:
            OwnershipLostError: The claim is another's.
            SessionConflictError: Somebody has removed the archive meanwhile, or took its name.
        """
        first = await self._reserve(name, archive_state(self.session_id, version), base.scope)
        self._empty = (name, first)
        await claim.affirm()

        async def fill() -> None:
            await self.store.sessions.append(name, records, expected_version=first)

        try:
            await _repeated(fill)
        except VersionConflictError as error:
            found = await self.store.sessions.load(name, limit=0)
            if found is None or found.version != first + 1 or found.count != len(records):
                await claim.affirm()  # one that is another's has no archive any more
                raise self._conflict("its archive was removed meanwhile") from error
        self._empty = None

    async def take_back(self) -> None:
        """Delete the empty session of a claim that is another's now, who may not have found it."""
        if self._empty is not None:
            name, version = self._empty
            with contextlib.suppress(StoreError):
                await self.store.sessions.delete(name, expected_version=version)

    async def _reserve(self, name: str, state: Record, scope: str | None) -> int:
        """Create the archive without records; return its version."""
        while True:
            first = draw_version()  # by which a write of ours is known

            async def create(version: int = first) -> None:
                await self.store.sessions.append(
                    name, [], expected_version=0, state=state, scope=scope, version=version
                )

            try:
                await _repeated(create)
            except VersionConflictError as error:
                found = await self.store.sessions.load(name, limit=0)
                if found is not None and found.version == first:
                    return first
                if found is not None and archive_of(found) != self.session_id:
                    raise self._conflict(f"the id of its archive, {name}, is taken") from error
                if found is not None:
                    # Left by one who slept. The transcript cannot name it: it has not been replaced at this version.
                    with contextlib.suppress(VersionConflictError):
                        await self.store.sessions.delete(name, expected_version=found.version)
            else:
                return first

    def _conflict(self, problem: str) -> SessionConflictError:
        return SessionConflictError(self.session_id, self.session_id, problem)


async def _repeated(write: Callable[[], Awaitable[None]]) -> None:
    """Write; after an unknown outcome write once more the same, of which at most one lands."""
    try:
        await write()
    except OutcomeUnknownError as unknown:
        try:
            await write()
        except StoreUnavailableError:
            raise unknown from None
