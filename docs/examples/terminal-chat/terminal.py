"""The terminal: lines that can be waited for beside everything else, and text that can do no harm to it."""

from __future__ import annotations

import asyncio
import os
import sys


class Interrupted(Exception):  # noqa: N818  # reason: it is no error
    """Ctrl-C was pressed while a line was awaited."""


class Terminal:
    """Reads lines and writes text, in one event loop."""

    def __init__(self) -> None:
        self._read = b""
        self._waiting: asyncio.Future[str | None] | None = None

    async def line(self, prompt: str) -> str | None:
        """Return the next line that is typed, `None` at the end of the input (Ctrl-D).

        Raises:
            Interrupted: `interrupt` was called.
        """
        self.write(prompt)
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        loop.add_reader(sys.stdin.fileno(), self._on_input)
        try:
            self._take_line()  # more than one may have been typed, or pasted
            return await self._waiting
        finally:
            loop.remove_reader(sys.stdin.fileno())
            self._waiting = None

    def interrupt(self) -> bool:
        """Have `line` raise `Interrupted`; return whether a line was awaited."""
        if self._waiting is None or self._waiting.done():
            return False
        self._waiting.set_exception(Interrupted())
        return True

    def _on_input(self) -> None:
        piece = os.read(sys.stdin.fileno(), 4096)
        self._read += piece
        if not piece and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        self._take_line()

    def _take_line(self) -> None:
        if self._waiting is None or self._waiting.done() or b"\n" not in self._read:
            return
        line, _, self._read = self._read.partition(b"\n")
        self._waiting.set_result(line.decode("utf-8", errors="replace").strip())

    def write(self, text: str) -> None:
        """Write text as it is."""
        sys.stdout.write(text)
        sys.stdout.flush()


def plain(text: str) -> str:
    """Return text without what would steer the terminal: a model may be made to say anything."""
    return "".join(character for character in text if character.isprintable() or character in "\n\t")
