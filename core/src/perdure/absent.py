"""What stands in a bundle for a part that is not there: every use says so."""

from __future__ import annotations

from typing import Any, NoReturn

from perdure.contracts.approvals import ApprovalStore
from perdure.contracts.checkpoints import CheckpointStore
from perdure.contracts.sessions import SessionStore
from perdure.errors import UnsupportedOperationError


def _refuse(part: str, operation: str) -> NoReturn:
    raise UnsupportedOperationError(_title(part), operation)


def _title(part: str) -> str:
    return f"this bundle (it has no {part})"


class AbsentSessions(SessionStore):
    """No session store."""

    @property
    def title(self) -> str:
        """What is missing where."""
        return _title("sessions")

    async def _load(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("sessions", "load")

    async def _append(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("sessions", "append")


class AbsentCheckpoints(CheckpointStore):
    """No checkpoint store."""

    @property
    def title(self) -> str:
        """What is missing where."""
        return _title("checkpoints")

    async def _load(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("checkpoints", "load")

    async def _append(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("checkpoints", "append")

    async def _replace(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("checkpoints", "replace")

    async def _delete(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("checkpoints", "delete")

    async def _list(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("checkpoints", "list")


class AbsentApprovals(ApprovalStore):
    """No approval store."""

    @property
    def title(self) -> str:
        """What is missing where."""
        return _title("approvals")

    async def _create(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("approvals", "create")

    async def _get(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("approvals", "get")

    async def _settle(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("approvals", "decide")

    async def _list(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("approvals", "list")
