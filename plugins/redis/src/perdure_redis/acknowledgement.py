"""When a write counts as done: when replicas, or the disk, have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.backend import OutcomeUnknownError, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure_redis.routes import Call, Command


class Acknowledgement:
    """Asks, right behind a write and on its connection, how many have it.

    Attributes:
        waitaof: Whether the disk must have it.
        commands: What is sent behind the write.
    """

    def __init__(self, wait: int, waitaof: bool, timeout: float) -> None:
        """Wait for so many replicas and perhaps the disk, half as long as a call may take."""
        self._wait, self.waitaof = wait, waitaof
        limit = b"%d" % max(1, round(timeout * 500))
        self.commands: list[Command] = []
        if waitaof:
            self.commands.append((b"WAITAOF", b"1", b"%d" % wait, limit))
        elif wait:
            self.commands.append((b"WAIT", b"%d" % wait, limit))

    def check(self, replies: Sequence[Any], call: Call) -> None:
        """Raise `OutcomeUnknownError` if too few have the write: it is done, but a failover or a power loss may undo it."""
        for reply in replies:
            if isinstance(reply, Exception):  # also one that says that nothing was done: the write was
                raise OutcomeUnknownError(call.operation, call.key, f"{describe(reply)} ({call.where})") from reply
            *disk, replicas = reply if isinstance(reply, list) else [reply]
            if replicas < self._wait or disk == [0]:
                problem = f"{replicas} of {self._wait} replicas have it{', the disk does not' if disk == [0] else ''}"
                raise OutcomeUnknownError(call.operation, call.key, f"{problem} ({call.where})")
