"""A process that has imported everything once, and forks one process for each program that it is told to run.

What a user starts is a process of its own with its own files, environment and directory. So is this; only the second that
Python takes to import everything is spent once. It is told through the socket on standard input: a line of JSON with the
three files beside it. It answers with the process id, and, when the program has ended, with its exit code.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import runpy
import signal
import socket
import sys
import termios
import threading
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import perdure.cli
import perdure_conformance.cli
from perdure import plugins

SCRIPTS = {"perdure": perdure.cli.main, "perdure-conformance": perdure_conformance.cli.main}


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


def become(wanted: dict[str, Any], files: list[int]) -> NoReturn:
    """Be the process that a shell would have started, and end as it would."""
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
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # reason: the same
    sys.argv = wanted["command"]
    code = 0
    try:
        SCRIPTS[sys.argv[0]]() if sys.argv[0] in SCRIPTS else python(sys.argv[1:])
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:  # noqa: BLE001  # reason: the interpreter would do the same
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    end(code)


def end(code: int) -> NoReturn:
    """End as the interpreter does, but for taking down what was imported: that costs more than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]  # reason: what multiprocessing calls in a child
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        file.flush()
    os._exit(code)


def python(arguments: list[str]) -> None:
    """Run what Python is given: a file, `-c` and code, or `-m` and a module."""
    first, *rest = arguments
    option = first if first in ("-c", "-m") else ""
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path.insert(0, {"-c": "", "-m": str(Path.cwd())}.get(option, str(Path(first).resolve().parent)))
    sys.argv = ["-c", *rest[1:]] if option == "-c" else [*rest] if option == "-m" else arguments
    if option == "-c":
        exec(compile(rest[0], "<string>", "exec"), sys.modules["__main__"].__dict__ | {"__name__": "__main__"})
    elif option == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    for module in perdure.cli.COMMANDS.values():
        import_module(f"perdure.cli.{module}")
    for one in plugins.installed():
        plugins.load(one.scheme)
    for module in (
        "_pytest.assertion.rewrite", "hypothesis", "perdure_conformance.checking", "perdure_file.journal", "perdure_redis.journal",
        "perdure_sqlite.journal", "pytest", "typer.rich_utils",
    ):  # fmt: skip
        import_module(module)
    perdure_conformance.cli.application()
    gc.freeze()
    with socket.socket(fileno=0) as control:
        os.open(os.devnull, os.O_RDONLY)
        serve(control)
