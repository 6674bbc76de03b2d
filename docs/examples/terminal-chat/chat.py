"""A chat in the terminal that may be interrupted, killed and started again: python chat.py --store sqlite:chat.db"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Awaitable, Sequence
from typing import Any

from assistant import make_agent
from terminal import Interrupted, Terminal, plain

from perdure import Agent, TurnResult, open_store
from perdure.errors import ApprovalError, PerdureError, SessionAwaitingApprovalError

HELP = "Ctrl-C stops an answer, Ctrl-D leaves. /retry goes on with a turn that failed, /drop drops it, /clear forgets all.\n"
SHOWN = 6
"""How many messages of the conversation are shown when it goes on."""


class Chat:
    """One conversation in one terminal."""

    def __init__(self, agent: Agent, session_id: str, terminal: Terminal) -> None:
        self._agent = agent
        self._session = agent.session(session_id)
        self._terminal = terminal
        self._streamed = False
        self._stopping: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Chat until the input ends."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._on_interrupt)
        self._terminal.write(HELP)
        for message in (await self._session.load())[-SHOWN:]:
            if message.role != "tool" and message.text:
                self._terminal.write(f"{'> ' if message.role == 'user' else ''}{plain(message.text)}\n")
        if await self._session.pending() is not None:
            self._terminal.write("(going on where we stopped)\n")
            await self._try(self._go_on())
        while (line := await self._next_line()) is not None:
            await self._try(self._obey(line))

    async def _next_line(self) -> str | None:
        while True:
            try:
                return await self._terminal.line("> ")
            except Interrupted:
                self._terminal.write("\n(Ctrl-D leaves)\n")

    async def _obey(self, line: str) -> None:
        if line == "/retry":
            await self._go_on()
        elif line == "/drop":
            dropped = await self._session.discard_pending()
            self._terminal.write("(dropped)\n" if dropped else "(there is nothing to drop)\n")
        elif line == "/clear":
            await self._session.clear()
            self._terminal.write("(forgotten)\n")
        elif line:
            await self._send(line)

    async def _try(self, step: Awaitable[object]) -> None:
        """Do something, and tell what it raises: the chat goes on, and what is stored stays."""
        self._streamed = False  # whatever was shown before was broken off
        try:
            await step
        except Interrupted:
            self._terminal.write("\n(it waits for your decision: /retry asks again)\n")
        except SessionAwaitingApprovalError:
            self._terminal.write("(something waits for your decision first; your message was not taken)\n")
            await self._try(self._go_on())
        except PerdureError as error:
            self._terminal.write(
                f"\n({plain(str(error))} {plain(error.hint) if error.hint not in str(error) else ''})\n"
            )
        except Exception as error:  # noqa: BLE001  # reason: whatever a model raises, its turn stays pending
            self._terminal.write(f"\n({plain(f'{type(error).__name__}: {error}')}; /retry or /drop)\n")

    # --- turns ---

    async def _send(self, text: str) -> None:
        async with self._session.stream(text) as run:
            async for event in run:
                self._show(event)
        await self._finish(run.result)

    async def _go_on(self) -> None:
        """Finish the pending turn, and ask for the decisions that it waits for."""
        pending = await self._session.pending()
        if pending is None:
            return
        if pending.approval_ids:
            await self._ask(pending.approval_ids)

        async def show(event: Any) -> None:
            self._show(event)

        stop = self._session.on(show)
        try:
            result = await self._session.resume()
        finally:
            stop()
        if result is not None:
            await self._finish(result)

    async def _finish(self, result: TurnResult) -> None:
        if result.finish_reason == "aborted":
            self._terminal.write("\n(stopped; the conversation is as it was before)\n")
        elif result.finish_reason == "awaiting-approval":
            await self._go_on()
        elif result.finish_reason != "stop":
            self._terminal.write(f"({result.finish_reason})\n")

    def _show(self, event: Any) -> None:
        if event.type == "text.delta":
            self._streamed = True
            self._terminal.write(plain(event.text))
        elif event.type == "model.responded":
            # A model that does not stream has told nothing yet.
            self._terminal.write("\n" if self._streamed else plain(event.message.text and f"{event.message.text}\n"))
            self._streamed = False
        elif event.type == "tool.started":
            self._terminal.write(f"[{plain(event.tool_name)} ...]\n")

    # --- decisions ---

    async def _ask(self, approval_ids: Sequence[str]) -> None:
        for approval_id in approval_ids:
            asked = await self._agent.approvals.get(approval_id)
            if asked is None or asked.decided:
                continue
            again = " again, though it may have run" if asked.kind == "in-doubt" else ""
            arguments = json.dumps(asked.arguments, ensure_ascii=False)
            self._terminal.write(f"{plain(asked.tool_name)}{plain(arguments)}\n")
            answer = await self._terminal.line(f"May this run{again}? [y/n] ")
            if answer is None:
                raise Interrupted
            approved = answer.lower() in ("y", "yes")
            note = None if approved else await self._terminal.line("Why not? ") or None
            try:
                await self._agent.approvals.decide(approval_id, approved=approved, note=note, decided_by="terminal")
            except ApprovalError as error:  # it has expired, or was decided elsewhere
                self._terminal.write(f"({plain(str(error))})\n")

    # --- Ctrl-C ---

    def _on_interrupt(self) -> None:
        """Stop what runs: a line that is awaited, then the turn, and the second time the program."""
        if self._terminal.interrupt():
            return
        if self._stopping is None or self._stopping.done():
            self._stopping = asyncio.create_task(self._try(self._session.abort()))
            return
        # It does not stop, so die as by a kill: the turn stays pending, and the next start goes on with it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)


async def main() -> None:
    """Open the store and chat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="sqlite:chat.db", help="where the conversation is kept")
    parser.add_argument("--session", default="terminal", help="which conversation")
    given = parser.parse_args()
    logging.basicConfig(filename="chat.log", level=logging.INFO)  # not between the lines of the chat
    async with open_store(given.store) as store:
        await Chat(make_agent(store), given.session, Terminal()).run()
    sys.stdout.write("\n")


if __name__ == "__main__":
    asyncio.run(main())
