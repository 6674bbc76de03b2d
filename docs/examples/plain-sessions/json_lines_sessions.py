"""A session store with `load` and `append` alone: a file of JSON lines for each conversation."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from perdure.backend import (
    Capabilities,
    InvalidArgumentError,
    SchemaVersionError,
    SessionStore,
    StoreCorruptedError,
    StoredTranscript,
    VersionConflictError,
    codec,
)

SCHEMA = 1
"""The version of the form of a file. A release that changes the form raises it, so that older ones leave the file alone."""


@dataclass
class _Session:
    """What a file says.

    Attributes:
        size: How many bytes of it are whole batches. What is behind them is of an append that never ended.
    """

    version: int
    scope: str | None
    created_at: datetime
    updated_at: datetime
    records: list[bytes]
    state: bytes | None = None
    size: int = 0


class JsonLinesSessions(SessionStore):
    """Keeps each conversation in a file `<session id>.jsonl`.

    An append adds one batch: a line that says how many lines follow, the state if it changes, and a line for each record. A
    batch that is not whole does not count, and the next append removes it.

    Where: a directory, on a file system that tells upper from lower case.
    Survives: the process.
    Shared by: nobody. All calls are of one process; none awaits anything, so none comes between the look and the write.
    Limits: each call reads the whole file, and blocks the event loop meanwhile.
    """

    capabilities = Capabilities(durable=True)

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Choose the directory, and make it if it is not there."""
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)

    async def close(self) -> None:
        """Refuse every later call."""
        self.seal()

    async def _load(
        self, session_id: str, *, after: int, limit: int | None, last: int | None
    ) -> StoredTranscript | None:
        found = self._read(session_id)
        if found is None:
            return None
        count = len(found.records)
        start = min(after, count) if last is None else max(count - last, 0)
        return StoredTranscript(
            session_id=session_id,
            version=found.version,
            count=count,
            created_at=found.created_at,
            updated_at=found.updated_at,
            records=found.records[start : None if limit is None else start + limit],
            start=start,
            state=found.state,
            scope=found.scope,
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
        found = self._read(session_id)
        actual = 0 if found is None else found.version
        if expected_version not in (None, actual):
            raise VersionConflictError(session_id, expected_version, actual)
        if found is not None and scope not in (None, found.scope):
            raise InvalidArgumentError("scope", f"cannot change: session {session_id} was created for another one")
        version = first_version if found is None else actual + 1
        lines = [*([] if state is None else [state]), *records]
        batch = {
            "schema": SCHEMA,
            "version": version,
            "at": at.isoformat(),
            "state": state is not None,
            "lines": len(lines),
        }
        if found is None:
            batch["scope"] = scope
        with self._file(session_id).open("ab") as file:
            file.truncate(0 if found is None else found.size)
            file.write(b"".join(line + b"\n" for line in [codec.encode(batch), *lines]))
            file.flush()
            os.fsync(file.fileno())
        return version

    def _file(self, session_id: str) -> Path:
        return self._directory / f"{session_id}.jsonl"

    def _read(self, session_id: str) -> _Session | None:
        try:
            content = self._file(session_id).read_bytes()
        except FileNotFoundError:
            return None
        lines = iter(content.split(b"\n")[:-1])  # behind the last newline is nothing, or a line that is not whole
        found: _Session | None = None
        try:
            for line in lines:
                batch = codec.decode(line)
                if batch["schema"] > SCHEMA:
                    raise SchemaVersionError(str(self._file(session_id)), batch["schema"], SCHEMA)
                following = list(itertools.islice(lines, batch["lines"]))
                if len(following) == batch["lines"]:
                    found = _after(found, batch, following)
                    found.size += sum(len(one) + 1 for one in [line, *following])
        except (ValueError, TypeError, KeyError) as error:
            raise StoreCorruptedError(str(self._file(session_id)), "a line does not say what follows") from error
        return found


def _after(found: _Session | None, batch: dict[str, object], lines: list[bytes]) -> _Session:
    """Return what a batch makes of a session."""
    at = datetime.fromisoformat(str(batch["at"]))
    if found is None:
        scope = batch["scope"]
        found = _Session(0, None if scope is None else str(scope), at, at, [])
    assert isinstance(batch["version"], int)
    found.version = batch["version"]
    found.updated_at = max(found.updated_at, at)
    if batch["state"]:
        found.state = lines[0]
    found.records += lines[1:] if batch["state"] else lines
    return found
