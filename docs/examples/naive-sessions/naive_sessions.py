"""A session store as one writes it first. Do not use it: the report beside it says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from perdure.backend import Capabilities, Page, SessionStore, StoredTranscript


class NaiveSessions(SessionStore):
    """Keeps every conversation in one JSON file."""

    capabilities = Capabilities(replace=True, delete=True, list=True, durable=True)

    def __init__(self, file: Path) -> None:
        self.file = file

    async def close(self) -> None:
        pass

    async def _load(
        self, session_id: str, *, after: int, limit: int | None, last: int | None
    ) -> StoredTranscript | None:
        rows = self.read().get(session_id, [])
        if not rows:
            return None
        rows.sort(key=lambda row: row["at"])
        shown = rows[-last:] if last else rows[after : limit and after + limit]
        return self.transcript(session_id, rows, [json.dumps(row["record"]).encode() for row in shown])

    async def _append(self, session_id: str, records: tuple[bytes, ...], *, at: datetime, **_: Any) -> int:
        everything = self.read()
        rows = everything.setdefault(session_id, [])
        for record in records:
            rows.append({"at": at.isoformat(), "record": json.loads(record)})
        self.save(everything)
        return len(rows)

    async def _replace(self, session_id: str, records: tuple[bytes, ...], *, keep: int, at: datetime, **_: Any) -> int:
        everything = self.read()
        del everything.get(session_id, [])[keep:]
        self.save(everything)
        return await self._append(session_id, records, at=at)

    async def _delete(self, session_id: str, **_: Any) -> bool:
        everything = self.read()
        found = everything.pop(session_id, None)
        self.save(everything)
        return found is not None

    async def _list(self, *, limit: int, **_: Any) -> Page[StoredTranscript]:
        found = [self.transcript(session_id, rows) for session_id, rows in self.read().items() if rows]
        found.sort(key=lambda one: one.updated_at, reverse=True)
        return Page(tuple(found[:limit]))

    def read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.file.read_text()))
        except Exception:  # noqa: BLE001 - one of the faults
            return {}

    def save(self, everything: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(everything))

    def transcript(self, session_id: str, rows: list[Any], records: Sequence[bytes] = ()) -> StoredTranscript:
        return StoredTranscript(
            session_id=session_id,
            version=len(rows),
            count=len(rows),
            created_at=datetime.fromisoformat(rows[0]["at"]),
            updated_at=datetime.fromisoformat(rows[-1]["at"]),
            records=records,
        )
