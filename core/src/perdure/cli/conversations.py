"""The conversation that an id on the command line names, and what stands in its parts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import typer

from perdure.bundle import AgentStore
from perdure.cli.output import CommandError
from perdure.contracts.approvals import Approval
from perdure.contracts.checkpoints import Checkpoint
from perdure.contracts.ids import RUN_SUFFIX, conversation_of, is_run, is_session_id, safe_id, session_of
from perdure.contracts.sessions import Transcript
from perdure.conversations.claims import approvals_of, session_head
from perdure.errors import StoreCorruptedError

_INNER = re.compile(r"\.run|(\.turn-[0-9]+)?(\.s[0-9]+\.c[0-9]+(\.d[0-9]+)?)?")
"""What follows the name of a conversation in the ids of its turns and approvals. Any other dot is one of a user's id."""

IdArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A session id; the id of a run or an approval names its conversation too, and NAME.run a run.",
    ),
]


@dataclass(slots=True)
class Conversation:
    """The heads of a conversation's parts, as far as they can be read.

    Attributes:
        key: The key of its turn journal.
        session: Its transcript without records, `None` if there is none.
        journal: Its turn journal, `None` if there is none.
        approvals: Its approvals, oldest first.
        damaged: What could not be read.
    """

    key: str
    session: Transcript | None = None
    journal: Checkpoint | None = None
    approvals: list[Approval] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def is_absent(self) -> bool:
        """Whether nothing of it is there."""
        return self.session is None and self.journal is None and not self.approvals and not self.damaged

    def require(self, given: str) -> None:
        """Raise if nothing of it is there."""
        if not self.is_absent:
            return
        named = "" if given == self.key else f", which is what {given!r} names"
        raise CommandError(
            f"there is no conversation {self.key}{named}", "List them with: perdure ls, perdure pending."
        )


def key_of(text: str) -> str:
    """Return the key of the turn journal of the conversation that an id names.

    An id that no session can have stands for its safe id, under which an application keeps such a conversation.
    """
    name = conversation_of(text)
    if not is_session_id(name) or _INNER.fullmatch(text, len(name)) is None:
        return safe_id(text)
    return text if text == name + RUN_SUFFIX else name


async def read_conversation(store: AgentStore, key: str) -> Conversation:
    """Read the heads of a conversation's parts; damage of one does not hide the others."""
    found = Conversation(key)
    try:
        found.session = await session_head(store, key)
    except StoreCorruptedError as error:
        found.damaged.append(str(error))
    try:
        if "checkpoints" in store:
            found.journal = await store.checkpoints.load(key)
            if found.journal is None and found.session is None and not is_run(key):
                await _read_run(store, found)
    except StoreCorruptedError as error:
        found.damaged.append(str(error))
    run_id = None if found.journal is None else found.journal.head.run_id
    try:
        found.approvals = await approvals_of(store, session_of(found.key), run_id)
    except StoreCorruptedError as error:
        found.damaged.append(str(error))
    return found


async def _read_run(store: AgentStore, found: Conversation) -> None:
    """Take the run without a session that has the name, where no session has it."""
    key = found.key + RUN_SUFFIX
    try:
        found.journal = await store.checkpoints.load(key)
    except StoreCorruptedError:
        found.key = key
        raise
    if found.journal is not None:
        found.key = key
