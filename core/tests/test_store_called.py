"""`store.called`: what observers hear of each call of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from core.tests.recorder import Recorder, registered

from perdure import AgentStore, codec, observers
from perdure.backend import (
    Approval,
    ApprovalStore,
    CheckpointHead,
    CheckpointReplace,
    InvalidArgumentError,
    OutcomeUnknownError,
    SessionAppend,
    SessionStore,
    StoredTranscript,
    StoreUnavailableError,
    UnsupportedOperationError,
    VersionConflictError,
)
from perdure.events import StoreCalled
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with registered() as made:
        yield made


async def test_every_call_of_each_part_is_told(store: AgentStore, clock: ManualClock, recorder: Recorder) -> None:
    version = await store.sessions.append("s", [{"n": 1}])
    version = await store.sessions.replace("s", [{"n": 2}], expected_version=version)
    await store.sessions.load("s")
    await store.sessions.list()
    head = CheckpointHead(status="idle", session_id="s", agent="a")
    turn = await store.checkpoints.append("s", [{"n": 1}], expected_version=0, head=head)
    turn = await store.checkpoints.replace("s", [], expected_version=turn, head=head)
    await store.checkpoints.load("s")
    await store.checkpoints.list()
    await store.write(SessionAppend("s", [], version), CheckpointReplace("s", [], head, turn))
    await store.approvals.create(request(clock))
    await store.approvals.get("s.s1.c1")
    await store.approvals.decide("s.s1.c1", approved=True)
    await store.approvals.list()
    for part, key in ((store.approvals, "s.s1.c1"), (store.sessions, "s"), (store.checkpoints, "s")):
        await part.delete(key)
    await observers.catch_up()
    assert {outcome for _, _, outcome in recorder.calls()} == {"ok"}
    assert [f"{part} {operation}" for part, operation, _ in recorder.calls()] == [
        *(f"sessions {operation}" for operation in ("append", "replace", "load", "list")),
        *(f"checkpoints {operation}" for operation in ("append", "replace", "load", "list", "write")),
        *(f"approvals {operation}" for operation in ("create", "get", "get", "decide", "list", "delete")),
        "sessions delete",
        "checkpoints delete",
    ]


def request(clock: ManualClock) -> Approval:
    arguments = {"to": "a secret"}
    return Approval("s.s1.c1", "s", "c1", "pay", arguments, clock.now(), session_id="s", agent="a")


async def test_the_size_is_that_of_the_encoded_bytes(store: AgentStore, clock: ManualClock, recorder: Recorder) -> None:
    records, state = [{"text": "ä" * 100}, {}], {"mood": "good"}
    stored = sum(len(codec.encode(value, "")) for value in (*records, state))
    version = await store.sessions.append("s", records, state=state)
    await store.sessions.load("s")
    await store.sessions.load("s", limit=0)
    await store.sessions.load("absent")
    head = CheckpointHead(status="idle", session_id="s", agent="a")
    turn = await store.checkpoints.append("s", [{"n": 1}], expected_version=0, head=head)
    await store.checkpoints.load("s")
    await store.write(SessionAppend("s", records, version), CheckpointReplace("s", [{"n": 1}], head, turn))
    approval = await store.approvals.create(request(clock))
    await store.approvals.list()
    await store.sessions.delete("s")
    await observers.catch_up()
    entry, small = len(b'{"n":1}'), len(codec.encode(state, ""))
    headed = recorder.events[4].size
    assert headed > entry
    assert [event.size for event in recorder.events] == [
        stored,
        stored,
        small,
        0,
        headed,
        headed,
        stored - small + headed,
        len(approval.encode()),
        len(approval.encode()),
        0,
    ]


async def test_neither_ids_nor_content_are_told(store: AgentStore, clock: ManualClock, recorder: Recorder) -> None:
    await store.sessions.append("private-id", [{"text": "a secret"}], state={"text": "a secret"})
    await store.approvals.create(request(clock))
    with pytest.raises(VersionConflictError):
        await store.sessions.append("private-id", [{"text": "a secret"}], expected_version=1)
    await observers.catch_up()
    told = repr(recorder.events)
    assert len(recorder.events) == 3
    assert "secret" not in told
    assert "private-id" not in told


class Odd(SessionStore):
    """A third party's store: it calls no `super().__init__()`, and has names of its own."""

    def __init__(self, behave: Callable[[], Any]) -> None:
        self.behave = behave
        self.sink = self._sink = self.watch = self._watch = "mine"

    async def _load(self, session_id: str, **_: Any) -> StoredTranscript | None:
        return await self.behave()  # type: ignore[no-any-return]  # reason: the test says what

    async def _append(self, session_id: str, records: tuple[bytes, ...], **_: Any) -> int:
        return await self.behave()  # type: ignore[no-any-return]  # reason: the test says what


async def test_duration_and_instant_are_by_the_clock_of_the_bundle(clock: ManualClock, recorder: Recorder) -> None:
    async def slow() -> int:
        clock.advance(timedelta(seconds=7))
        return 1

    store = AgentStore(sessions=Odd(slow), clock=clock)
    await store.sessions.append("s", [])
    await store.close()
    (event,) = recorder.events
    assert (event.duration, event.at) == (timedelta(seconds=7), clock.now())
    assert event == StoreCalled(
        part="sessions", operation="append", duration=event.duration, outcome="ok", size=0, at=event.at
    )


async def test_the_outcome_is_the_error_that_the_caller_gets(recorder: Recorder) -> None:
    async def fail() -> NoReturn:
        raise OSError("no route to host")

    store = AgentStore(sessions=Odd(fail))
    with pytest.raises(StoreUnavailableError):
        await store.sessions.load("s")
    with pytest.raises(OutcomeUnknownError):
        await store.sessions.append("s", [{}])
    await store.close()
    assert recorder.calls() == [
        ("sessions", "load", "StoreUnavailableError"),
        ("sessions", "append", "OutcomeUnknownError"),
    ]
    assert [event.size for event in recorder.events] == [0, 2]


async def test_a_cancelled_call_is_told(recorder: Recorder) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    store = AgentStore(sessions=Odd(hang))
    task = asyncio.create_task(store.sessions.append("s", [{}]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.close()
    assert recorder.calls() == [("sessions", "append", "CancelledError")]


async def test_what_a_store_of_a_third_party_answers_is_measured_or_left_alone(recorder: Recorder) -> None:
    class Strange:
        def encode(self) -> NoReturn:
            raise RuntimeError("not like that")

    answers: list[Any] = [None, Strange()]

    async def answer() -> Any:
        return answers.pop(0)

    store = AgentStore(sessions=Odd(answer))
    assert await store.sessions.load("s") is None
    with pytest.raises(AttributeError):
        await store.sessions.load("s")  # what it answers is no transcript, with and without observers
    await store.close()
    assert [event.size for event in recorder.events] == [0, 0]


async def test_refused_arguments_absent_parts_and_stores_without_a_bundle_tell_nothing(recorder: Recorder) -> None:
    async def nothing() -> None:
        return None

    store = AgentStore()
    with pytest.raises(UnsupportedOperationError):
        await store.sessions.load("s")
    assert await Odd(nothing).load("s") is None
    with pytest.raises(InvalidArgumentError):
        await AgentStore(sessions=Odd(nothing)).sessions.load("s", limit=-1)
    await store.close()
    assert recorder.events == []


async def test_a_part_that_is_no_store_of_ours_is_left_alone() -> None:
    class Duck:
        pass

    duck: Any = Duck()
    assert AgentStore(approvals=duck).approvals is duck
    assert vars(duck) == {}
    assert not isinstance(duck, ApprovalStore)
