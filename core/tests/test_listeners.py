"""Listeners hear of every event in its order, and nothing that they do reaches the conversation."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn

import pytest

from perdure.events import InputQueued, RunEvent, RunStarted
from perdure.observers import listening
from perdure.observers.listening import Channel, Channels
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


def ignore(_: RunEvent) -> None:
    """Observe nothing."""


@pytest.fixture
def channel(clock: ManualClock) -> Channel:
    return Channel("s", clock, ignore)


def send(channel: Channel, *names: str) -> None:
    for name in names:
        channel.emit(InputQueued, "r", input_id=name)


class Ear:
    """Listens, in one of the ways in which a listener may be written."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.threads: set[int] = set()

    def plain(self, event: InputQueued) -> None:
        self.threads.add(threading.get_ident())
        self.heard.append(event.input_id)

    async def coroutine(self, event: InputQueued) -> None:
        await asyncio.sleep(0)
        self.plain(event)

    async def __call__(self, event: InputQueued) -> None:
        await self.coroutine(event)

    async def also(self, event: InputQueued, *, more: str) -> None:
        self.plain(event)
        self.heard.append(more)


async def test_an_event_carries_its_run_its_session_its_number_and_its_instant(
    channel: Channel, clock: ManualClock
) -> None:
    first = channel.emit(RunStarted, "r")
    clock.advance()
    second = channel.emit(InputQueued, "r", resumed=True, input_id="i")
    assert (first.run_id, first.session_id, first.seq, first.resumed) == ("r", "s", 1, False)
    assert (second.seq, second.resumed, second.at) == (2, True, clock.now())
    assert (first.type, second.type) == ("run.started", "input.queued")


async def test_every_kind_of_function_hears_everything_in_order(channel: Channel) -> None:
    names = [str(number) for number in range(50)]
    plain, coroutine, called = Ear(), Ear(), Ear()
    for listener in (plain.plain, coroutine.coroutine, called, lambda event: called.coroutine(event)):
        channel.on(listener)
    send(channel, *names[:20])
    await asyncio.sleep(0)
    send(channel, *names[20:])
    await channel.catch_up()
    assert plain.heard == coroutine.heard == names
    assert sorted(called.heard, key=int) == [name for name in names for _ in range(2)]
    assert coroutine.threads | called.threads == {threading.get_ident()}
    assert threading.get_ident() not in plain.threads


async def test_a_partial_of_a_coroutine_function_is_awaited(channel: Channel) -> None:
    ear = Ear()
    channel.on(partial(ear.also, more="!"))
    send(channel, "a", "b")
    await channel.catch_up()
    assert ear.heard == ["a", "!", "b", "!"]


async def test_it_hears_from_when_it_listens_to_when_that_is_ended(channel: Channel) -> None:
    ear, other = Ear(), Ear()
    channel.on(other.coroutine)
    send(channel, "before")
    off = channel.on(ear.coroutine)
    again = channel.on(ear.coroutine)
    send(channel, "one")
    off()
    off()
    send(channel, "two")
    again()
    send(channel, "after")
    await channel.catch_up()
    await asyncio.sleep(0)
    assert ear.heard in (["one", "one", "two"], ["one", "two", "one"])
    assert other.heard == ["before", "one", "two", "after"]


async def test_it_runs_in_the_context_of_whoever_listens(channel: Channel) -> None:
    user: ContextVar[str] = ContextVar("user", default="nobody")
    heard: list[str] = []

    async def coroutine(_: RunEvent) -> None:
        heard.append(user.get())

    def plain(_: RunEvent) -> None:
        heard.append(user.get())

    user.set("listener")
    channel.on(coroutine)
    channel.on(plain)
    user.set("sender")
    send(channel, "a")
    await channel.catch_up()
    assert heard == ["listener", "listener"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has no eager tasks")
async def test_one_that_ends_at_once_takes_no_event_from_the_next(channel: Channel) -> None:
    asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", None))
    ear = Ear()

    async def once(_: RunEvent) -> None:
        off()

    off = channel.on(once)
    channel.on(ear.coroutine)
    send(channel, "a", "b")
    await channel.catch_up()
    asyncio.get_running_loop().set_task_factory(None)
    assert ear.heard == ["a", "b"]


def failing(kind: str) -> Callable[[Any], Awaitable[None] | None]:
    def plain(_: RunEvent) -> NoReturn:
        raise ValueError("broken")

    async def coroutine(_: RunEvent) -> NoReturn:
        raise ValueError("broken")

    def leaving(_: RunEvent) -> NoReturn:
        raise SystemExit("broken")

    kinds = {"plain": plain, "leaving": leaving, "coroutine": coroutine, "answer": lambda event: coroutine(event)}
    return kinds[kind]


@pytest.mark.parametrize("kind", ["plain", "leaving", "coroutine", "answer"])
async def test_what_a_listener_raises_is_logged_and_goes_no_further(
    kind: str, channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    ear = Ear()
    channel.on(failing(kind))
    channel.on(ear.coroutine)
    send(channel, "a", "b")
    await channel.catch_up()
    assert ear.heard == ["a", "b"]
    assert [record.name for record in caplog.records] == ["perdure.listeners"] * 2
    assert all(record.exc_info and str(record.exc_info[1]) == "broken" for record in caplog.records)
    assert "failing" in vars(caplog.records[0])["perdure"]["listener"]


async def test_a_listener_that_waits_for_what_was_cancelled_hears_the_next_event(
    channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    ear = Ear()

    async def wait(event: InputQueued) -> None:
        await ear.coroutine(event)
        gone = asyncio.create_task(asyncio.Event().wait())
        gone.cancel()
        await gone

    def plain(event: InputQueued) -> None:
        ear.plain(event)
        raise asyncio.CancelledError

    channel.on(wait)
    channel.on(lambda event: wait(event))
    channel.on(plain)
    send(channel, "a", "b")
    await channel.catch_up()
    assert sorted(ear.heard) == ["a", "a", "a", "b", "b", "b"]
    assert len(caplog.records) == 6


async def test_a_cancelled_listener_ends(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    started = asyncio.Event()

    async def wait(_: RunEvent) -> None:
        started.set()
        await asyncio.Event().wait()

    channel.on(wait)
    before = asyncio.all_tasks()
    send(channel, "a")
    await started.wait()
    (task,) = asyncio.all_tasks() - before
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert caplog.records == []


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
async def test_a_listener_that_hangs_is_not_waited_for_without_end(
    kind: str, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "CATCH_UP", 0)
    opened, gate = asyncio.Event(), threading.Event()
    heard: list[str] = []

    async def coroutine(event: InputQueued) -> None:
        await opened.wait()
        heard.append(event.input_id)

    def plain(event: InputQueued) -> None:
        gate.wait(60)
        heard.append(event.input_id)

    channel.on(plain if kind == "plain" else coroutine)
    send(channel, "a")
    await channel.catch_up()
    assert heard == []
    opened.set()
    gate.set()
    monkeypatch.setattr(listening, "CATCH_UP", 60)
    await channel.catch_up()
    assert heard == ["a"]


async def test_a_listener_does_not_wait_for_itself(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "CATCH_UP", 3600)
    heard: list[str] = []

    async def listener(event: InputQueued) -> None:
        if event.input_id == "a":
            send(channel, "b")
            await channel.catch_up()
        heard.append(event.input_id)

    channel.on(listener)
    send(channel, "a")
    await channel.catch_up()
    assert heard == ["a", "b"]


async def test_a_listener_that_is_too_slow_loses_the_oldest_events_with_one_warning(
    channel: Channel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "BACKLOG", 2)
    ear = Ear()
    channel.on(ear.coroutine)
    for _ in range(2):
        send(channel, "a", "b", "c", "d")
        await channel.catch_up()
    assert ear.heard == ["c", "d", "c", "d"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


async def test_streams_and_observers_get_the_same_object(clock: ManualClock) -> None:
    observed: list[Any] = []
    streamed: list[Any] = []
    channel = Channel(None, clock, observed.append)
    sent = channel.emit(RunStarted, "r", streamed.append)
    assert observed[0] is streamed[0] is sent
    assert sent.session_id is None


async def test_a_conversation_has_one_channel_while_somebody_holds_it(clock: ManualClock) -> None:
    channels = Channels(ignore)
    held = channels.of("s", "s", clock)
    assert channels.of("s", "s", clock) is held
    assert channels.of("t", "t", clock) is not held
    send(held, "a")
    del held
    gc.collect()
    assert channels.of("s", "s", clock).emit(RunStarted, "r").seq == 1


async def test_a_detached_task_that_fails_is_logged_and_closing_ends_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> NoReturn:
        raise ValueError("broken")

    ended = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    channels = Channels(ignore)
    failed = asyncio.create_task(fail())
    channels.detach(failed)
    await asyncio.wait([failed])
    channels.detach(asyncio.create_task(hang()))
    await asyncio.sleep(0)
    await channels.close()
    assert ended.is_set()
    assert channels.background == set()
    (record,) = caplog.records
    assert record.exc_info
    assert str(record.exc_info[1]) == "broken"
    await channels.close()


async def test_all_listeners_together_are_waited_for_once(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are slow, a call that has ended waits for the time of one."""
    waits: list[float | None] = []
    wait = asyncio.wait

    async def noted(tasks: Any, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109  # reason: as `asyncio.wait`
        waits.append(timeout)
        return await wait(tasks, timeout=0)

    monkeypatch.setattr(asyncio, "wait", noted)
    may_hear = asyncio.Event()

    async def slow(_: RunEvent) -> None:
        await may_hear.wait()

    for _ in range(3):
        channel.on(slow)
    send(channel, "a")
    await channel.catch_up()
    assert waits == [listening.CATCH_UP]
    may_hear.set()
    monkeypatch.undo()
    await channel.catch_up()
