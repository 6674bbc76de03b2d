"""A session store as a third party writes one at the least."""

from __future__ import annotations

from datetime import datetime

from perdure.backend import SessionStore, StoredTranscript, VersionConflictError


class PlainSessions(SessionStore):
    """A third party's store in a dictionary, with the two methods that are required."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[int, list[bytes], bytes | None, str | None, datetime]] = {}

    async def _load(
        self, session_id: str, *, after: int, limit: int | None, last: int | None
    ) -> StoredTranscript | None:
        if session_id not in self.kept:
            return None
        version, records, state, scope, at = self.kept[session_id]
        start = after if last is None else max(len(records) - last, 0)
        stop = None if limit is None else start + limit
        part = tuple(records[start:stop])
        return StoredTranscript(
            session_id, version, len(records), at, at, records=part, start=start, state=state, scope=scope
        )

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
        known = self.kept.get(session_id)
        actual = 0 if known is None else known[0]
        if expected_version not in (None, actual):
            raise VersionConflictError(session_id, expected_version, actual)
        version = first_version if known is None else actual + 1
        old, old_state, old_scope = ([], None, scope) if known is None else known[1:4]
        self.kept[session_id] = (version, [*old, *records], state or old_state, old_scope, at)
        return version
