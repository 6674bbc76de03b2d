"""What a server says of itself: whether it keeps what it is given."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.backend import UnsupportedOperationError
from perdure_redis.failures import failure, refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure_redis.routes import Call, Command

OLDEST, WAITAOF = (6, 2), (7, 2)
UNTOLD = re.compile(r"NOPERM|unknown command|no permissions")


class RedisSettingsWarning(UserWarning):
    """The server's settings may lose what was acknowledged."""


PERMISSIONS = b"""
local key, missing = ARGV[1], {}
local writes = {
  {'DEL', key}, {'LSET', key, 0, ''}, {'LTRIM', key, 0, 0}, {'PERSIST', key}, {'PEXPIRE', key, 1}, {'RPUSH', key, ''},
  {'TIME'}, {'ZADD', key, 0, ''}, {'ZREM', key, ''},
}
for _, command in ipairs(redis.acl_check_cmd and writes or {}) do
  local known, allowed = pcall(redis.acl_check_cmd, unpack(command)) -- an administrator may have renamed it
  if not (known and allowed) then missing[#missing + 1] = command[1] end
end
return missing"""
"""Which of the commands that a write needs the user may not run: a script must not find out half way. Redis 7 tells it."""


def questions(prefix: str) -> tuple[Command, ...]:
    """Return what a server is asked; `prefix`: what the names of keys begin with."""
    return (
        (b"INFO", b"server"),
        (b"INFO", b"memory"),
        (b"INFO", b"persistence"),
        (b"CONFIG", b"GET", b"save"),  # often forbidden where somebody else runs the server
        (b"EVAL", PERMISSIONS, b"0", f"{prefix}index:sessions".encode()),
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that matter; `None`: the server does not tell.

    Attributes:
        version: The version of Redis that the server is or is compatible with.
        policy: What it does when memory is full.
        appends: Whether it appends each write to a file.
        saves: Whether it saves snapshots from time to time.
        forbidden: The commands of the scripts that the user may not run.
    """

    version: tuple[int, ...] | None
    policy: str | None
    appends: bool | None
    saves: bool | None
    forbidden: tuple[str, ...]

    @classmethod
    def read(cls, replies: Sequence[Any], call: Call) -> Settings:
        """Read the replies to `questions`; a server that does not let us ask keeps its secrets, one that is ill does not pass."""
        for reply in replies:
            if isinstance(reply, Exception) and refused(reply) and not UNTOLD.search(str(reply)):
                raise failure(reply, call, sent=True)
        facts = {name: value for reply in replies[:3] if isinstance(reply, bytes) for name, value in lines(reply)}
        version, appends, save = facts.get("redis_version"), facts.get("aof_enabled"), _config(replies[3])
        return cls(
            version=None if version is None else tuple(int(part) for part in version.split(".")[:2] if part.isdigit()),
            policy=facts.get("maxmemory_policy"),
            appends=None if appends is None else appends == "1",
            saves=None if save is None else save != b"",
            forbidden=tuple(name.decode() for name in replies[4]) if isinstance(replies[4], list) else (),
        )

    def check(self, title: str, *, strict: bool, expiring: bool, waitaof: bool) -> None:
        """Warn of settings that may lose data.

        Args:
            title: The server.
            strict: Raise instead.
            expiring: Whether the keys have a time to live.
            waitaof: Whether writes are to wait for the disk.

        Raises:
            UnsupportedOperationError: The server cannot do what is needed, or `strict` refuses it.
        """
        if self.version is not None and self.version < OLDEST:
            raise UnsupportedOperationError(title, f"Redis {'.'.join(map(str, self.version))}; 6.2 or newer is needed")
        if waitaof and (self.appends is False or (self.version is not None and self.version < WAITAOF)):
            raise UnsupportedOperationError(title, "waitaof, which needs Redis 7.2 or newer with appendonly yes")
        for danger in self.dangers(expiring):
            if strict:
                raise UnsupportedOperationError(title, f"strict: {danger}")
            warnings.warn(f"{title}: {danger}", RedisSettingsWarning, stacklevel=2)

    def dangers(self, expiring: bool) -> list[str]:
        """Return what may lose data; `expiring`: whether the keys have a time to live."""
        found = []
        if self.policy is not None and self.policy.startswith(("allkeys", "volatile") if expiring else "allkeys"):
            found.append(f"maxmemory-policy is {self.policy}: conversations are deleted when memory is full")
        if self.appends is False and self.saves is False:
            found.append("neither appendonly nor save is set: a restart loses everything")
        return found


def lines(text: bytes) -> list[tuple[str, str]]:
    """Return the names and values that a reply to INFO has."""
    pairs = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return [(name, value) for name, _, value in pairs]


def _config(reply: Any) -> bytes | None:
    """Return the value of a CONFIG GET of one name, which is a list in RESP 2 and a dictionary in RESP 3."""
    values = list(reply.values()) if isinstance(reply, dict) else reply[1:] if isinstance(reply, list) else []
    return values[0] if values else None
