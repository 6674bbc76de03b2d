"""A process that has imported the command line once, and forks one process for each command that it is told to run.

What a user starts is a process of its own with its own files, environment and directory. So is this; only the second that
Python takes to import everything is spent once. It is told through the socket on standard input: a line of JSON with the
three files beside it. It answers with the process id, and, when the command has ended, with its exit code.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import signal
import socket
import sys
import termios
from importlib import import_module
from typing import Any

import perdure.cli
from perdure import plugins


def serve(control: socket.socket) -> None:
    while True:
        data, files, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            become(json.loads(data), files)
        for file in files:
            os.close(file)
        control.sendall(b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        control.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def become(wanted: dict[str, Any], files: list[int]) -> None:
    """Be the process that a shell would have started, and never return."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    if wanted["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(wanted["directory"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(name, signal.default_int_handler if name is signal.SIGINT else signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python starts
    # As the interpreter makes them; it lives for as long as they do.
    sys.stdin, sys.stdout, sys.stderr = map(os.fdopen, (0, 1, 2), ("r", "w", "w"))
    sys.stdout.reconfigure(line_buffering=wanted["terminal"])  # type: ignore[union-attr]  # reason: it is a text file
    sys.argv = ["perdure", *wanted["arguments"]]
    code: object = 1
    try:
        perdure.cli.main()
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:  # noqa: BLE001  # reason: the interpreter would do the same
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    for module in perdure.cli.COMMANDS.values():
        import_module(f"perdure.cli.{module}")
    for one in plugins.installed():
        plugins.load(one.scheme)
    for driver in ("perdure_file.journal", "perdure_redis.journal", "perdure_sqlite.journal", "typer.rich_utils"):
        import_module(driver)
    gc.freeze()
    with socket.socket(fileno=0) as control:
        os.open(os.devnull, os.O_RDONLY)
        serve(control)
