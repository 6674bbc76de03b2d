"""Runs the command line as a user does: real processes, pipes, and a real terminal."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

SERVER = Path(__file__).with_name("command_server.py")
SIZE = (30, 100)


@dataclass(frozen=True)
class Ran:
    """What became of a command."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> Any:
        """The result of a command that printed JSON: all that is on standard output."""
        document = json.loads(self.out)
        assert document["exit_code"] == self.code
        return document["result"]

    @property
    def error(self) -> Any:
        document = json.loads(self.out)
        assert document["exit_code"] == self.code
        return document["error"]


class Program:
    """Runs one program in a directory: `perdure`, `perdure-conformance`, or `python` with a file, `-c` or `-m`."""

    def __init__(
        self, name: str, directory: Path, environment: Mapping[str, str], *, errors_in_out: bool = False
    ) -> None:
        self.name = name
        self.errors_in_out = errors_in_out
        self.directory = directory
        self.environment = dict(environment)

    def __call__(self, *arguments: str, given: str = "", code: int | None = None, **environment: str) -> Ran:
        """Run it to its end; `given` is what it reads, `code` what it must end with."""
        with tempfile.TemporaryFile() as reads, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            reads.write(given.encode())
            reads.seek(0)
            errors = out if self.errors_in_out else err
            ended = self._start(arguments, [reads.fileno(), out.fileno(), errors.fileno()], environment)()
            for file in (out, err):
                file.seek(0)
            ran = Ran(ended, out.read().decode(), err.read().decode())
        assert code in (None, ran.code), ran
        return ran

    def _start(
        self, arguments: tuple[str, ...], files: list[int], environment: dict[str, str], *, terminal: bool = False
    ) -> Callable[[], int]:
        control = _server()
        _stop_what_runs(control)
        wanted = {
            "command": [self.name, *arguments],
            "directory": str(self.directory),
            "environment": self.environment | environment,
            "terminal": terminal,
        }
        socket.send_fds(control, [json.dumps(wanted).encode()], files)
        self.pid = _line(control)
        _running.append(self.pid)

        def wait() -> int:
            code = _line(control)
            _running.clear()
            return code

        return wait


class Perdure(Program):
    """Runs commands of `perdure` in a directory, on a store."""

    def __init__(self, directory: Path, store: str | None = None) -> None:
        known = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        super().__init__("perdure", directory, known | ({} if store is None else {"PERDURE_STORE": store}))

    def __call__(self, *arguments: str, given: str = "", code: int | None = None, **environment: str) -> Ran:
        """Run a command to its end; whatever happens it must not end with a traceback."""
        ran = super().__call__(*arguments, given=given, code=code, **environment)
        assert "Traceback" not in ran.err, ran.err
        return ran

    def json(self, *arguments: str, code: int = 0, **environment: str) -> Any:
        """Run a command with `--json`, and return its result."""
        return self(*arguments, "--json", code=code, **environment).result

    def into_closed_pipe(self, *arguments: str) -> Ran:
        """Run a command whose reader has gone away."""
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as out:
            return self._into(out, arguments)

    def into(self, file: str, *arguments: str) -> Ran:
        """Run a command whose output goes into a file."""
        with Path(file).open("wb") as out:
            return self._into(out, arguments)

    def _into(self, out: IO[bytes], arguments: tuple[str, ...]) -> Ran:
        with tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
            code = self._start(arguments, [nothing.fileno(), out.fileno(), err.fileno()], {})()
            err.seek(0)
            return Ran(code, "", err.read().decode())

    def on_terminal(self, *arguments: str, types: str = "", after: str = "", **environment: str) -> Ran:
        """Run a command on a terminal, and type when a text has been shown; `out` is all that the terminal got."""
        mine, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        wait = self._start(arguments, [its, its, its], {"TERM": "xterm-256color"} | environment, terminal=True)
        os.close(its)
        shown, typed = b"", False
        with (
            os.fdopen(mine, "r+b", buffering=0) as terminal,
            contextlib.suppress(OSError),
        ):  # EIO: the last has closed it
            while chunk := terminal.read(1 << 16):
                shown += chunk
                if types and not typed and after.encode() in shown:
                    typed = True
                    self._sleeps()
                    terminal.write(types.encode())
        return Ran(wait(), shown.decode(), "")

    def _sleeps(self) -> None:
        """Wait until the command waits: a signal that comes between a question and its reading does not end the reading."""
        with contextlib.suppress(OSError):  # it has ended
            while Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0] in "RD":
                os.sched_yield()

    def interrupted(
        self, *arguments: str, when: Callable[[], bool], by: signal.Signals = signal.SIGINT, reads: int | None = None
    ) -> Ran:
        """Run a command, and send it a signal when something holds; `reads` is the descriptor of its standard input."""
        with tempfile.TemporaryFile() as out, Path(os.devnull).open("rb") as nothing:
            given = nothing.fileno() if reads is None else reads
            wait = self._start(arguments, [given, out.fileno(), out.fileno()], {})
            while not when():
                time.sleep(0.01)
            os.kill(self.pid, by)
            code = wait()
            out.seek(0)
            return Ran(code, out.read().decode(), "")


_running: list[int] = []
"""The command that the server waits for: a test whose time is up leaves it."""


def _stop_what_runs(control: socket.socket) -> None:
    """Let the server wait for a new command."""
    for pid in _running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _line(control)
    _running.clear()


@cache
def _server() -> socket.socket:
    """Start the server of this process."""
    mine, its = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-P", str(SERVER)], stdin=its.fileno())
    its.close()

    def end() -> None:
        mine.close()
        process.wait()

    atexit.register(end)
    return mine


def _line(control: socket.socket) -> int:
    line = b""
    while not line.endswith(b"\n"):
        byte = control.recv(1)
        assert byte, "the server has ended"
        line += byte
    return int(line)
