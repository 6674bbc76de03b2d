"""Fills stores with conversations."""

import asyncio

from benchmarks.messages import message

from perdure import AgentStore

MESSAGES = [message(256, "user"), message(256)]


def name_of(number: int) -> str:
    """Return the id of a conversation."""
    return f"user-{number:07}"


async def fill(store: AgentStore, start: int, stop: int, *, at_once: int = 64) -> None:
    """Make conversations of two messages of 256 bytes, so many tasks at a time."""
    numbers = iter(range(start, stop))

    async def make() -> None:
        for number in numbers:
            await store.sessions.append(name_of(number), MESSAGES, expected_version=0)

    await asyncio.gather(*(make() for _ in range(at_once)))
