"""A turn as server-sent events, and what becomes of it when the client leaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal, TypeAlias

from problems import problem_of
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure import RunStream

OnLeave: TypeAlias = Literal["hand-over", "finish", "abort"]
"""What becomes of a turn whose client leaves: a worker finishes it, this process does, or it is dropped."""

KEEP_ALIVE = 15.0
"""After how many seconds of silence a comment is sent, so that no proxy takes the connection for dead."""


class TurnStream(Response):
    """Runs a turn, and sends its events as they come. What goes wrong before the first one is an ordinary error."""

    def __init__(self, run: RunStream, on_leave: OnLeave, stopping: asyncio.Event) -> None:
        """Take a turn, what becomes of it when the client leaves, and what is set when the process is stopped."""
        super().__init__(
            media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]
        self._run = run
        self._on_leave = on_leave
        self._stopping = stopping
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the turn."""
        left = asyncio.create_task(_until_left(receive))
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            async with self._run as run:
                await self._show(run, left, stopped, send)
        except asyncio.CancelledError:
            if not left.done() and not stopped.done():
                raise
            if not left.done():
                await self._send(send, "handed-over", {})
        except Exception as error:
            if not self._begun:
                raise
            await self._send(send, "error", problem_of(error))
        finally:
            left.cancel()
            stopped.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _show(
        self, run: RunStream, left: asyncio.Task[None], stopped: asyncio.Task[Literal[True]], send: Send
    ) -> None:
        """Send events until they end, or until the block of the turn is to be left."""
        coming: asyncio.Future[Any] = asyncio.ensure_future(anext(run, None))
        try:
            while True:
                await asyncio.wait((coming, left, stopped), timeout=KEEP_ALIVE, return_when=asyncio.FIRST_COMPLETED)
                if left.done() and self._on_leave == "finish":
                    run.detach()
                    return
                if left.done() and self._on_leave == "abort":
                    return  # to leave the block so drops the turn
                if left.done() or stopped.done():
                    # To the turn that is a crash: it stays pending, and gives its lease back, so that a worker takes it.
                    raise asyncio.CancelledError
                if not coming.done():
                    await self._write(send, b": still there\n\n")
                    continue
                event = coming.result()
                if event is None:
                    return
                if event.type != "error":  # the block raises that, when it ends
                    await self._send(send, event.type, described(event))
                coming = asyncio.ensure_future(anext(run, None))
        finally:
            coming.cancel()

    async def _send(self, send: Send, name: str, facts: dict[str, Any]) -> None:
        await self._write(send, f"event: {name}\ndata: {json.dumps(facts)}\n\n".encode())

    async def _write(self, send: Send, body: bytes) -> None:
        if not self._begun:
            self._begun = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def described(event: Any) -> dict[str, Any]:
    """Return what a client is told of an event."""
    facts: dict[str, Any] = {"run_id": event.run_id, "seq": event.seq, "resumed": event.resumed}
    if event.type == "text.delta":
        facts["text"] = event.text
    elif event.type in ("tool.started", "tool.finished"):
        facts["tool"] = event.tool_name
    elif event.type == "approval.requested":
        facts["approval_id"] = event.approval.id
    elif event.type == "run.done":
        facts |= {"text": event.result.text, "finish_reason": event.result.finish_reason}
    return facts
