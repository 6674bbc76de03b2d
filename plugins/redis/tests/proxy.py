"""A proxy in front of a server that does what networks and servers do: delay, cut, refuse."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


@dataclass(eq=False)
class Fault:
    """What happens to the next command of a name, once.

    Attributes:
        name: The command.
        action: `cut-before`: the connection ends, the server never sees the command. `cut-after`: it ends when the server has
            answered. `hold-before`, `hold-after`: the command, or its answer, waits for `go`. Anything else is the answer, and
            the server never sees the command.
        reached: Set when the command has come so far.
        go: What a held command waits for.
    """

    name: str
    action: str
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


class Proxy:
    """Listens on a port of its own and forwards command by command."""

    def __init__(self, target: int, tls: ssl.SSLContext | None = None) -> None:
        self.target, self.tls = target, tls
        self.faults: list[Fault] = []
        self.commands: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def fault(self, name: str, action: str) -> Fault:
        self.faults.append(Fault(name, action))
        return self.faults[-1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream, answer = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            while command := await _command(reader):
                if not await self._pass(command, upstream, answer, writer):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # whoever went away is what is tested
        finally:
            writer.close()
            answer.close()
            self._tasks.discard(task)

    async def _pass(
        self,
        command: tuple[str, bytes],
        upstream: asyncio.StreamReader,
        answer: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Handle one command; say whether the connection lives on."""
        name, raw = command
        self.commands.append(name)
        fault = next((one for one in self.faults if one.name == name), None)
        action = "" if fault is None else fault.action
        if fault is not None:
            self.faults.remove(fault)
            if action in {"cut-before", "hold-before"}:
                fault.reached.set()
            if action == "hold-before":
                await fault.go.wait()
        if action == "cut-before":
            return False
        if action and not action.startswith(("cut", "hold")):
            writer.write(action.encode() + b"\r\n")
            return True
        answer.write(raw)
        reply = await _reply(upstream)
        if fault is not None and action in {"cut-after", "hold-after"}:
            fault.reached.set()
        if fault is not None and action == "hold-after":
            await fault.go.wait()
        if action == "cut-after":
            return False
        writer.write(reply)
        return True


async def _command(reader: asyncio.StreamReader) -> tuple[str, bytes] | None:
    """Read one command: its name and its bytes; nothing at the end."""
    line = await reader.readline()
    if not line:
        return None
    raw, words = [line], []
    for _ in range(int(line[1:])):
        header = await reader.readexactly(1) + await reader.readline()
        body = await reader.readexactly(int(header[1:]) + 2)
        raw += [header, body]
        words.append(body[:-2])
    return words[0].decode().upper(), b"".join(raw)


async def _reply(reader: asyncio.StreamReader) -> bytes:
    """Read one reply of RESP 2 or 3 and return its bytes."""
    line = await reader.readline()
    if not line:
        raise asyncio.IncompleteReadError(b"", None)
    if line[:1] in b"$=!" and line[1:2] != b"-":
        return line + await reader.readexactly(int(line[1:]) + 2)
    if line[:1] in b"*~>%" and line[1:2] != b"-":
        many = int(line[1:]) * (2 if line[:1] == b"%" else 1)
        return line + b"".join([await _reply(reader) for _ in range(many)])
    return line
