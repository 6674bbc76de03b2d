"""What a compaction tells of itself, and when one is made before a turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core.tests.compaction_world import (
    SlowSummary,
    gist,
    heard,
    lived,
    records,
    session,
    status,
    texts,
)
from core.tests.processes import another

from perdure import AgentStore, Message
from perdure.errors import (
    StoreUnavailableError,
    SummaryError,
)
from perdure.events import CompactionDone, CompactionStarted
from perdure.observers.listening import Channel
from perdure.runtime.transcript.compaction import Compactor, compact_if_due
from perdure.runtime.transcript.compaction_policy import Compaction, CompactionOptions, due
from perdure.runtime.transcript.digest import Digest
from perdure_conformance.interception import at

pytestmark = pytest.mark.anyio

FOREIGN = {"from": "somebody else", "message": {"role": "user", "content": "never sent"}}


# --- events ---


async def test_events_come_after_what_they_tell_of(store: AgentStore) -> None:
    live = await lived(store)
    heard: list[Any] = []
    channel = store.channels.of("s", "s", store.clock)

    async def hear(event: Any) -> None:
        heard.append((type(event), await status(store), (await texts(store))[0][:1]))

    channel.on(hear)
    slow = SlowSummary()
    compacting = asyncio.create_task(live.compact(summarize=slow))
    await slow.reached.wait()
    await channel.catch_up()
    assert heard == [(CompactionStarted, "compacting", "m")]
    slow.may_go_on.set()
    await compacting
    await channel.catch_up()
    assert heard[1:] == [(CompactionDone, "idle", "<")]


async def test_what_the_events_say(store: AgentStore) -> None:
    live = await lived(store)
    heard: list[Any] = []
    channel = Channel("s", store.clock, heard.append)
    bad, good = (CompactionOptions(keep=1, archive=True, summarize=made) for made in (lambda _: "", gist))
    with pytest.raises(SummaryError):
        await Compactor(live.agent, store, live._view, channel, bad).run(await store.checkpoints.load("s"))
    done = await Compactor(live.agent, store, live._view, channel, good).run(await store.checkpoints.load("s"))
    assert [type(event) for event in heard] == [CompactionStarted, CompactionDone] * 2
    failed, well = heard[1], heard[3]
    assert (failed.replaced, failed.archive_id, "empty" in failed.error) == (0, None, True)
    assert (well.replaced, well.archive_id, well.error) == (6, done.archive_id, None)
    assert done.archive_id is not None
    assert {event.run_id for event in heard} == {None}


# --- automatic ---


async def test_a_turn_goes_on_without_a_summary(store: AgentStore, caplog: pytest.LogCaptureFixture) -> None:
    live = await lived(store)
    heard: list[Any] = []
    before = await records(store)
    channel = Channel("s", store.clock, heard.append)

    def fails(_: object) -> str:
        raise OSError("the provider is away")

    found = await store.checkpoints.load("s")
    options = CompactionOptions(summarize=fails)
    done = await Compactor(live.agent, store, live._view, channel, options).run_if_possible(found)
    assert (done.replaced, await records(store), await status(store)) == (0, before, "idle")
    assert "the provider is away" in heard[1].error
    assert "was not compacted" in caplog.text


async def test_before_a_turn(store: AgentStore) -> None:
    """As it is called: with the journal and the transcript that were read, once for each input."""
    live = await lived(store)
    parts = (live._journal, live._view, live._channel)
    found = await store.checkpoints.load("s")
    assert not await compact_if_due(*parts, found, Compaction(max_tokens=10, keep=1))
    assert await compact_if_due(*parts, found, Compaction(max_tokens=9, keep=1, summarize=gist, archive=True))
    assert (await texts(store))[1:] == ["m3", "re: m3"]
    assert await heard(store) == [text for n in range(4) for text in (f"m{n}", f"re: m{n}")]
    await live.send("m4")
    before = await records(store)
    await live.load()
    stale = await compact_if_due(*parts, found, Compaction(max_tokens=9, keep=1, summarize=gist))
    assert (stale, await records(store)) == (True, before)  # somebody else was first


@pytest.mark.parametrize("how", ["clear", "delete"])
async def test_a_turn_goes_on_when_the_transcript_was_changed_meanwhile(store: AgentStore, how: str) -> None:
    live, slow = await lived(store), SlowSummary()
    options = CompactionOptions(summarize=slow)
    found = await store.checkpoints.load("s")
    compactor = Compactor(live.agent, store, live._view, live._channel, options)
    compacting = asyncio.create_task(compactor.run_if_possible(found))
    await slow.reached.wait()
    if how == "clear":
        await store.sessions.replace("s", [], expected_version=None)
    else:
        await store.delete_session("s", force=True)
    slow.may_go_on.set()
    assert (await compacting).replaced == 0
    assert (await live.send("next")).text == "re: next"
    assert await texts(store) == ["next", "re: next"]


async def test_a_store_that_fails_is_not_passed_over(store: AgentStore) -> None:
    await lived(store)
    broken = session(another(store, at(2, "unavailable")))
    compactor = Compactor(broken.agent, broken.store, broken._view, broken._channel, CompactionOptions(summarize=gist))
    with pytest.raises(StoreUnavailableError):
        await compactor.run_if_possible(await store.checkpoints.load("s"))


def turn(text: str, **usage: int) -> list[dict[str, Any]]:
    made = [
        {"kind": "message", "run_id": text[:4], "message": {"role": role, "content": text}}
        for role in ("user", "assistant")
    ]
    return [made[0], made[1] | {"usage": usage}]


@pytest.mark.parametrize(
    ("given", "is_due"),
    [
        ([], False),
        ([*turn("a" * 20), *turn("b" * 20)], False),  # 80 characters
        ([*turn("a" * 20), *turn("b" * 21)], True),
        ([*turn("a"), *turn("b", requests=1, input_tokens=15, output_tokens=5)], False),
        ([*turn("a"), *turn("b", requests=1, input_tokens=15, output_tokens=6)], True),
        ([*turn("a" * 90), *turn("b" * 90, requests=1, input_tokens=15, output_tokens=5)], False),
        ([*turn("a"), *turn("b", requests=2, input_tokens=150, output_tokens=6)], False),  # of several requests
        ([*turn("a" * 90), *turn("b" * 90, requests=1)], True),  # the provider does not tell
        ([*turn("b" * 900)], False),  # nothing is in front of the newest turn
        ([*turn("a"), *turn("b"), FOREIGN | {"text": "x" * 900}], False),
    ],
)
def test_when_it_is_due(given: list[dict[str, Any]], is_due: bool) -> None:
    assert due(Digest(given), Compaction(max_tokens=20, keep=1)) is is_due


async def test_it_is_not_due_again_at_once(store: AgentStore) -> None:
    """What the kept turn's request has read is not what the next one will read."""
    live = await lived(store, 4)
    policy = Compaction(max_tokens=9, keep=1)
    assert due(Digest(await records(store)), policy)
    await live.compact(keep=2, summarize=lambda _: "s")
    assert not due(Digest(await records(store)), Compaction(max_tokens=7, keep=1))
    await live.send("next")
    assert due(Digest(await records(store)), policy)  # by what that turn's request has told


def test_calls_count_too() -> None:
    call = {"id": "c", "name": "n" * 40, "arguments": {"x": "y" * 40}}
    record = {"kind": "message", "run_id": "b", "message": {"role": "assistant", "content": "", "tool_calls": [call]}}
    assert due(Digest([*turn("a"), record]), Compaction(max_tokens=20, keep=1))
    assert not due(Digest([*turn("a"), record]), Compaction(max_tokens=30, keep=1))


def test_a_message_of_a_summary_is_the_users() -> None:
    assert Message.from_record({"role": "user", "content": "x", "metadata": {"summary": True}}).metadata == {
        "summary": True
    }
