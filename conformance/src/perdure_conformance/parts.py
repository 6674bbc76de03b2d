"""What the three stores have in common, so that one law can be tried on each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from perdure import AgentStore
from perdure.contracts.approvals import Approval
from perdure.contracts.checkpoints import CheckpointHead
from perdure_conformance.checks import holds

if TYPE_CHECKING:
    from perdure.contracts.records import Page, Record

ASKED_AT = datetime(2031, 3, 14, 9, 0, tzinfo=UTC)
"""When approvals of the kit are asked, unless a law says otherwise."""


Stores: TypeAlias = AgentStore
"""The bundle under test."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader sees of a key: its version, the JSON objects kept there, and the whole answer for comparisons."""

    version: int
    values: tuple[Record, ...]
    whole: Any


class Part(ABC):
    """One of the three stores behind the verbs that all of them have.

    Attributes:
        name: `sessions`, `checkpoints` or `approvals`.
        verbs: Which method of the contract a verb is.
    """

    name: ClassVar[str]
    verbs: ClassVar[dict[str, str]]

    @abstractmethod
    def key(self, name: str) -> str:
        """Return a valid key that differs from another exactly as the names differ."""

    @abstractmethod
    def make(self, stores: Stores, key: str, value: Record | None = None) -> Coroutine[Any, Any, int]:
        """Create the key with one JSON object, and return the version. The snapshot is taken at this call."""

    @abstractmethod
    async def read(self, stores: Stores, key: str) -> Seen | None:
        """Read the key."""

    @abstractmethod
    async def page(self, stores: Stores, **options: Any) -> Page[Any]:
        """Read one page of the listing."""

    @abstractmethod
    def id_of(self, item: Any) -> str:
        """Return the key of a listed item."""

    async def delete(self, stores: Stores, key: str, *, expected_version: int | None = None) -> bool:
        """Remove the key."""
        return bool(await self.store(stores).delete(key, expected_version=expected_version))

    def store(self, stores: Stores) -> Any:
        """Return the store of this part."""
        return getattr(stores, self.name)

    async def pages(self, stores: Stores, **options: Any) -> AsyncIterator[Page[Any]]:
        """Go through the pages of the listing; one that leads back to where it was has no end, and is an error."""
        cursors: set[str] = set()
        while True:
            page = await self.page(stores, **options)
            yield page
            if page.cursor is None:
                return
            holds(page.cursor not in cursors, f"a listing of {self.name} goes round: it told a cursor a second time")
            cursors.add(page.cursor)
            options["cursor"] = page.cursor

    async def ids(self, stores: Stores, **options: Any) -> list[str]:
        """Return all keys that the listing gives, page by page."""
        return [self.id_of(item) async for page in self.pages(stores, **options) for item in page.items]


class WritablePart(Part):
    """A part whose keys are lists: sessions and turn journals."""

    @abstractmethod
    def write(
        self, stores: Stores, key: str, values: list[Record], *, expected_version: int | None = None, **options: Any
    ) -> Coroutine[Any, Any, int]:
        """Append JSON objects to the key."""

    @abstractmethod
    def replace(
        self, stores: Stores, key: str, values: list[Record], *, expected_version: int | None = None, **options: Any
    ) -> Coroutine[Any, Any, int]:
        """Put JSON objects in the place of all that the key has."""

    def make(self, stores: Stores, key: str, value: Record | None = None) -> Coroutine[Any, Any, int]:
        """Create the key with one JSON object."""
        return self.write(stores, key, [{"made": key} if value is None else value], expected_version=0)

    async def values(self, stores: Stores, key: str) -> list[Record]:
        """Return the JSON objects of the key, none if it is absent."""
        seen = await self.read(stores, key)
        return [] if seen is None else list(seen.values)


class SessionsPart(WritablePart):
    """Transcripts."""

    name = "sessions"
    verbs: ClassVar[dict[str, str]] = {
        "make": "append",
        "write": "append",
        "replace": "replace",
        "read": "load",
        "delete": "delete",
        "list": "list",
    }

    def key(self, name: str) -> str:
        """The name is the session id."""
        return name

    def write(
        self, stores: Stores, key: str, values: list[Record], *, expected_version: int | None = None, **options: Any
    ) -> Coroutine[Any, Any, int]:
        """Append records."""
        return stores.sessions.append(key, values, expected_version=expected_version, **options)

    def replace(
        self, stores: Stores, key: str, values: list[Record], *, expected_version: int | None = None, **options: Any
    ) -> Coroutine[Any, Any, int]:
        """Put records in the place of all."""
        return stores.sessions.replace(key, values, expected_version=expected_version, **options)

    async def read(self, stores: Stores, key: str) -> Seen | None:
        """Read the transcript."""
        found = await stores.sessions.load(key)
        return None if found is None else Seen(found.version, tuple(found.records), found)

    async def page(self, stores: Stores, **options: Any) -> Page[Any]:
        """List sessions."""
        return await stores.sessions.list(**options)

    def id_of(self, item: Any) -> str:
        """The session id."""
        return str(item.session_id)


class CheckpointsPart(WritablePart):
    """Turn journals."""

    name = "checkpoints"
    verbs: ClassVar[dict[str, str]] = SessionsPart.verbs

    def key(self, name: str) -> str:
        """The name is the session id of the turn journal."""
        return name

    def write(
        self, stores: Stores, key: str, values: list[Record], *, expected_version: int | None = None, **options: Any
    ) -> Coroutine[Any, Any, int]:
        """Append entries, with a plain head unless one is given."""
        head = options.pop("head", CheckpointHead("in-progress"))
        return stores.checkpoints.append(key, values, expected_version=expected_version, head=head, **options)

    def replace(
        self, stores: Stores, key: str, values: list[Record], *, expected_version: int | None = None, **options: Any
    ) -> Coroutine[Any, Any, int]:
        """Put entries in the place of all, with a plain head unless one is given."""
        head = options.pop("head", CheckpointHead("idle"))
        return stores.checkpoints.replace(key, values, expected_version=expected_version, head=head, **options)

    async def read(self, stores: Stores, key: str) -> Seen | None:
        """Read the turn journal."""
        found = await stores.checkpoints.load(key)
        return None if found is None else Seen(found.version, tuple(found.entries), found)

    async def page(self, stores: Stores, **options: Any) -> Page[Any]:
        """List heads."""
        return await stores.checkpoints.list(**options)

    def id_of(self, item: Any) -> str:
        """The key."""
        return str(item.key)


class ApprovalsPart(Part):
    """Approvals; the JSON object is what the tool is to be called with."""

    name = "approvals"
    verbs: ClassVar[dict[str, str]] = {"make": "create", "read": "get", "delete": "delete", "list": "list"}

    def key(self, name: str) -> str:
        """The id of the first call of the first turn of the session with this name."""
        return f"{name}.turn-1.s0.c0"

    def make(self, stores: Stores, key: str, value: Record | None = None) -> Coroutine[Any, Any, int]:
        """Create a pending approval."""
        return self._made(stores.approvals.create(request(key, value)))

    async def _made(self, creating: Coroutine[Any, Any, Approval]) -> int:
        return (await creating).version

    async def read(self, stores: Stores, key: str) -> Seen | None:
        """Get the approval."""
        found = await stores.approvals.get(key)
        return None if found is None else Seen(found.version, (found.arguments,), found)

    async def page(self, stores: Stores, **options: Any) -> Page[Any]:
        """List approvals."""
        return await stores.approvals.list(**options)

    def id_of(self, item: Any) -> str:
        """The approval id."""
        return str(item.id)


def request(approval_id: str = "s1.turn-1.s0.c0", arguments: Record | None = None, **changes: Any) -> Approval:
    """Return a pending approval of a call, for the session and run that its id begins with."""
    session_id, _, rest = approval_id.partition(".")
    run = f"{session_id}.{rest.partition('.')[0]}" if rest else session_id
    asked = Approval(
        id=approval_id,
        run_id=run,
        tool_call_id="call-1",
        tool_name="pay",
        arguments={"to": "ann", "sum": 1} if arguments is None else arguments,
        created_at=ASKED_AT,
        session_id=session_id,
    )
    return replace(asked, **changes)


SESSIONS = SessionsPart()
CHECKPOINTS = CheckpointsPart()
APPROVALS = ApprovalsPart()
PARTS: tuple[Part, ...] = (SESSIONS, CHECKPOINTS, APPROVALS)
LISTS: tuple[WritablePart, ...] = (SESSIONS, CHECKPOINTS)
"""The parts whose keys are lists."""
