"""A process that has imported the kit and forks a worker for each that is asked for, which is faster than to start one.

Run as `python -m perdure_conformance.fork_server DESCRIPTOR`, with the socket on which the kit asks. It has one thread, no
event loop and no store: what a driver does when it is imported, it does in each worker anew. A worker is a process like any
other, and may be killed. When the kit is gone, be it by `kill -9`, the socket ends; the server then kills the workers that are
left, with what they have started, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from typing import Any, TypeAlias

from perdure import opening, plugins
from perdure_conformance import worker

HEADER = 8
"""How many bytes before a request tell its length; with those of a worker come the descriptors."""

Request: TypeAlias = dict[str, Any]

IMPORTED = (opening, plugins, worker)
"""What no worker has to import."""


class Server:
    """The workers that live, by their processes and by the kit's numbers."""

    def __init__(self, control: socket.socket) -> None:
        """Serve what is asked on a socket."""
        self._control = control
        self._woken, self._waking = socket.socketpair()
        self._waking.setblocking(False)
        self._numbers: dict[int, int] = {}
        self._endings: dict[int, socket.socket] = {}

    def serve(self) -> Request | None:
        """Do what the kit asks until it is gone.

        Returns:
            `None` then; and in each worker, which is forked here, what was asked.
        """
        signal.set_wakeup_fd(self._waking.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            for one in (self._control, self._woken):
                selector.register(one, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._woken in ready:
                    self._reap()
                if self._control not in ready:
                    continue
                request, descriptors = self._asked()
                if request is None:
                    break
                if "kill" in request:
                    self._kill(request["kill"])
                elif self._forked(request, descriptors):
                    return request
        for number in self._numbers:
            self._kill(number)
        return None

    def _asked(self) -> tuple[Request | None, list[int]]:
        """Return a request and the descriptors that come with it; `None` if the kit is gone."""
        header, descriptors, _, _ = socket.recv_fds(self._control, HEADER, 3)
        text = self._control.recv(int(header), socket.MSG_WAITALL) if len(header) == HEADER else b""
        return (json.loads(text) if text else None), descriptors

    def _forked(self, request: Request, descriptors: list[int]) -> bool:
        """Fork a worker; return whether this is it."""
        speech, complaints, ending = (socket.socket(fileno=descriptors[0]), descriptors[1], descriptors[2])
        sys.path[:] = request["path"]
        plugins.installed()  # it reads them once, while the path stays the same
        process = os.fork()
        if process == 0:
            self._forget()
            os.setpgid(0, 0)
            for standard in (1, 2):  # what the store prints is no answer
                os.dup2(complaints, standard)
            request["speech"] = os.dup(speech.fileno())
        else:
            with contextlib.suppress(OSError):  # the worker has done it already, and may have ended
                os.setpgid(process, process)
            self._numbers[request["number"]] = process
            self._endings[process] = socket.socket(fileno=ending)
        speech.close()
        os.close(complaints)
        if process == 0:
            os.close(ending)
        return process == 0

    def _forget(self) -> None:
        """Let go, in a worker, of all that is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in (self._control, self._woken, self._waking, *self._endings.values()):
            one.close()

    def _reap(self) -> None:
        """Tell the kit how each worker ended that has ended."""
        self._woken.recv(4096)
        while self._endings:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            self._numbers = {number: one for number, one in self._numbers.items() if one != process}
            with self._endings.pop(process) as ending, contextlib.suppress(OSError):  # the kit need not listen any more
                ending.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))

    def _kill(self, number: int) -> None:
        """Kill a worker and all that it has started, unless it has ended."""
        if number in self._numbers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._numbers[number], signal.SIGKILL)


def work(request: Request) -> None:
    """Be the worker that was asked for, in a process that was just forked."""
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    importlib.invalidate_caches()
    sys.stdout = sys.stderr  # that of the server keeps what is printed until a block is full
    worker.listen(request["speech"])
    worker.say("ready")
    asyncio.run(worker.serve(request["url"]))


if __name__ == "__main__":
    gc.freeze()  # a collection in a worker would copy all the memory of what is imported
    asked = Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    if asked is not None:
        work(asked)
