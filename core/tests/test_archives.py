"""Archives: they hold the full transcript, history reads through them, and they go with their conversation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from core.tests.compaction_world import (
    archives,
    compacted_with_archives,
    gist,
    heard,
    lived,
    records,
    said,
    session,
    status,
    texts,
)
from core.tests.processes import another, die_at, everything

from perdure import Agent, AgentStore, Message, PruneReport, safe_id
from perdure.archives import archive_id, archive_of, archive_state
from perdure.errors import StoreCorruptedError
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure_conformance.interception import Call, Interception
from perdure_conformance.manual_clock import TICK, ManualClock

pytestmark = pytest.mark.anyio

WEEK = timedelta(days=7)
NOTHING: dict[str, list[Any]] = {"sessions": [], "runs": [], "approvals": []}


# --- what they hold ---


async def test_the_full_transcript_as_it_was(any_store: AgentStore) -> None:
    live = await lived(any_store, 3)
    foreign = {"from": "somebody else", "numbers": [1, -0.0, 2**70], "text": "\x00\ud800"}
    await any_store.sessions.append("s", [foreign])
    before = await any_store.sessions.load("s")
    assert before is not None
    done = await live.compact(keep=1, summarize=gist, archive=True)
    assert done.archive_id == safe_id(f"s.archive-{before.version}")
    archive = await any_store.sessions.load(done.archive_id or "")
    assert archive is not None
    assert (archive.records, archive.scope) == (before.records, "acme")
    assert archive_of(archive) == "s"
    summary = (await records(any_store))[0]
    assert (summary["archive"], summary["archived"]) == (done.archive_id, 4)
    assert await heard(any_store) == said(3)


async def test_whoever_makes_the_summary_may_change_what_it_is_given(store: AgentStore) -> None:
    live = await lived(store, 0)
    await live.send(Message("user", [{"type": "text", "text": "whole"}]))

    def summarize(messages: Sequence[Message]) -> str:
        for message in messages:
            for part in message.content:
                if isinstance(part, dict):
                    part["text"] = "changed"
        return "summary"

    await live.compact(keep=0, summarize=summarize, archive=True)
    assert (await live.history())[0].text == "whole"


@pytest.mark.parametrize("keep", [0, 1, 2])
async def test_history_reads_through_all_of_them(any_store: AgentStore, keep: int) -> None:
    live = await lived(any_store, 3)
    for n in range(3, 8):
        await live.compact(keep=keep, summarize=gist, archive=True)
        await live.send(f"m{n}")
    assert await heard(any_store) == said(8)
    assert len(await archives(any_store)) == 5


async def test_history_beside_what_is_somebody_elses(store: AgentStore) -> None:
    live = await lived(store, 1)
    for n in range(1, 4):
        await store.sessions.append("s", [{"from": "somebody else", "n": n}])
        await live.send(f"m{n}")
        await live.compact(keep=1, summarize=gist, archive=True)
        assert await heard(store) == said(n + 1)


async def test_history_without_the_older_archive(store: AgentStore) -> None:
    first, second = await compacted_with_archives(store, 2)
    await store.sessions.delete(first)
    assert await heard(store) == ["<u:m0|a:re: m0>", *said(4)[2:]]
    await store.sessions.delete(second)
    assert await heard(store) == await texts(store)


async def test_history_after_one_that_kept_no_archive(store: AgentStore) -> None:
    live = await lived(store, 2)
    await live.compact(keep=1, summarize=gist, archive=True)
    await live.send("m2")
    await live.compact(keep=1, summarize=gist)
    await live.send("m3")
    await live.compact(keep=1, summarize=gist, archive=True)
    assert await heard(store) == [*said(1), "<u:<u:m0|a:re: m0>|u:m1|a:re: m1>", *said(4)[4:]]


@pytest.mark.parametrize("named", ["nobody", "s", "x--other", 5, None, "a b"])
async def test_a_summary_that_names_what_is_no_archive_of_it(store: AgentStore, named: Any) -> None:
    await lived(store, 1, "x--other")
    summary = {"kind": "summary", "archive": named, "archived": 9, "message": {"role": "user", "content": "gist"}}
    await store.sessions.append("s", [summary], expected_version=0)
    assert await heard(store) == ["gist"]
    await session(store).clear()
    assert await heard(store) == []
    assert await heard(store, "x--other") == said(1)


@pytest.mark.parametrize("archived", [-1, "two", 2.5, None])
async def test_a_summary_that_does_not_tell_how_much_it_stands_for_is_damage(store: AgentStore, archived: Any) -> None:
    live = await lived(store, 2)
    await live.compact(keep=1, summarize=gist, archive=True)
    first, *others = await records(store)
    await store.sessions.replace("s", [first | {"archived": archived}, *others], expected_version=None)
    with pytest.raises(StoreCorruptedError, match="session s is damaged: its summary does not tell"):
        await session(store).history()


def test_what_is_an_archive() -> None:
    class Info:
        def __init__(self, session_id: str, state: dict[str, Any]) -> None:
            self.session_id = session_id
            self.state = state

    good = archive_state("s", 5)
    assert archive_of(Info(archive_id("s", 5), good)) == "s"  # type: ignore[arg-type]  # reason: all that is looked at
    for session_id, state in [
        ("s", good),
        (archive_id("s", 5), {}),
        (archive_id("s", 5), archive_state("s", 6)),
        (archive_id("s", 5), archive_state("t", 5)),
        (archive_id("s", 5), {"archive_of": 5, "archive_version": 5}),
        (archive_id("s", 1), {"archive_of": "s", "archive_version": True}),
    ]:
        assert archive_of(Info(session_id, state)) is None  # type: ignore[arg-type]  # reason: as above


# --- they go with their conversation ---


async def test_clear_takes_them_along(any_store: AgentStore) -> None:
    """B107: nothing that was derived from before is left."""
    await compacted_with_archives(any_store, 3)
    await compacted_with_archives(any_store, 1, "t")
    await session(any_store).clear()
    assert (await texts(any_store), await heard(any_store), await archives(any_store)) == ([], [], [])
    assert len(await archives(any_store, "t")) == 1
    live = session(any_store)
    assert (await live.send("again", input_id="i0")).text == "re: again"
    assert (await live.compact(keep=0, summarize=gist)).summary == "<u:again|a:re: again>"


async def test_delete_takes_them_along(any_store: AgentStore) -> None:
    await compacted_with_archives(any_store, 3)
    await compacted_with_archives(any_store, 1, "s-2")
    left = await archives(any_store, "s-2")
    assert await any_store.delete_session("s") is True
    after = await everything(any_store)
    assert sorted(info.session_id for info in after["sessions"]) == sorted(["s-2", *left])
    assert await any_store.delete_session("s") is False


async def test_delete_without_turn_journals(store: AgentStore) -> None:
    await compacted_with_archives(store, 3)
    alone = AgentStore(sessions=store.sessions)
    assert await alone.delete_session("s") is True
    assert (await store.sessions.list()).items == ()


async def test_an_archive_may_be_deleted_alone(store: AgentStore) -> None:
    first, second = await compacted_with_archives(store, 2)
    assert await store.delete_session(first) is True
    assert await archives(store) == [second]
    assert await store.delete_session("s") is True
    assert (await store.sessions.list()).items == ()


async def test_a_copy_that_names_it_does_not_own_it(store: AgentStore) -> None:
    await compacted_with_archives(store, 1)
    await store.sessions.append("copy", await records(store), expected_version=0)
    await store.delete_session("copy")
    assert await heard(store) == said(3)


# --- prune ---


async def prune(store: AgentStore, older_than: timedelta = WEEK) -> PruneReport:
    """Prune, after a dry run that writes nothing and reports the same; a second time nothing is left to do."""
    before = await everything(store) if "checkpoints" in store else None
    foretold = await store.prune(older_than=older_than, dry_run=True)
    assert before is None or await everything(store) == before
    report = await store.prune(older_than=older_than)
    assert foretold == PruneReport(True, report.sessions, report.runs, report.approvals, report.kept)
    assert await store.prune(older_than=older_than) == PruneReport(False, kept=report.kept)
    return report


@pytest.mark.parametrize("alone", [False, True])
async def test_prune_takes_them_along(any_store: AgentStore, clock: ManualClock, *, alone: bool) -> None:
    used = AgentStore(sessions=any_store.sessions, clock=clock) if alone else any_store
    made = await compacted_with_archives(any_store, 3)
    clock.advance(WEEK + TICK)
    report = await prune(used)
    assert sorted(report.sessions) == sorted(["s", *made])
    assert (await any_store.sessions.list()).items == ()


@pytest.mark.parametrize("alone", [False, True])
async def test_the_archive_of_a_living_conversation_stays_however_old(
    any_store: AgentStore, clock: ManualClock, *, alone: bool
) -> None:
    used = AgentStore(sessions=any_store.sessions, clock=clock) if alone else any_store
    made = await compacted_with_archives(any_store, 3)
    clock.advance(timedelta(days=3650))
    await session(any_store).send("m5")
    assert await prune(used) == PruneReport(False)
    assert sorted(await archives(any_store)) == sorted(made)
    assert await heard(any_store) == [*said(5), "m5", "re: m5"]


@pytest.mark.parametrize("alone", [False, True])
async def test_an_archive_whose_conversation_is_gone(store: AgentStore, clock: ManualClock, *, alone: bool) -> None:
    used = AgentStore(sessions=store.sessions, clock=clock) if alone else store
    made = await compacted_with_archives(store, 3)
    await store.sessions.delete("s")
    await store.checkpoints.delete("s")
    clock.advance(WEEK)
    assert await prune(used) == PruneReport(False)
    clock.advance(TICK)
    assert sorted((await prune(used)).sessions) == sorted(made)


async def test_an_archive_that_nobody_names(store: AgentStore, clock: ManualClock) -> None:
    """One that a process which slept has left, beside a living conversation."""
    (named,) = await compacted_with_archives(store, 1)
    left = archive_id("s", 7)
    await store.sessions.append(left, [], expected_version=0, state=archive_state("s", 7))
    clock.advance(WEEK + TICK)
    await session(store).send("m3")
    assert await prune(store) == PruneReport(False, (left,))
    assert await archives(store) == [named]


async def test_the_archive_of_a_compaction_that_goes_on_stays(store: AgentStore, clock: ManualClock) -> None:
    """It is named by the claim alone."""
    await lived(store)
    seen: list[PruneReport] = []

    async def before(call: Call) -> None:
        if call.number == 6:  # the replace
            clock.advance(TICK)
            seen.append(await store.prune(older_than=timedelta(0)))

    await session(another(store, Interception(before=before))).compact(keep=1, summarize=gist, archive=True)
    assert seen == [PruneReport(False, kept={"s": "a live owner holds it"})]
    assert await heard(store) == said(4)


async def test_an_archive_beside_a_damaged_transcript_stays(store: AgentStore, clock: ManualClock) -> None:
    (named,) = await compacted_with_archives(store, 1)
    clock.advance(WEEK + TICK)
    await session(store).send("m3")

    class Damaged:
        def __getattr__(self, name: str) -> Any:
            return getattr(store.sessions, name)

        async def load(self, session_id: str, **options: Any) -> Any:
            if session_id == "s" and options.get("limit") != 0:
                raise StoreCorruptedError("session s: records[0]", "not JSON")
            return await store.sessions.load(session_id, **options)

    damaged = AgentStore(sessions=Damaged(), checkpoints=store.checkpoints, clock=clock)  # type: ignore[arg-type]  # reason: all that is used
    report = await damaged.prune(older_than=WEEK)
    assert list(report.kept) == [named]
    assert await damaged.delete_session("s") is True  # damage stops no deletion
    assert (await store.prune(older_than=WEEK)).sessions == (named,)


@pytest.mark.parametrize("write", [1, 2, 3, 4, 5])
async def test_prune_meets_a_compaction_that_died(store: AgentStore, clock: ManualClock, write: int) -> None:
    await lived(store)
    await die_at(store, write, lambda used: session(used).compact(keep=1, summarize=gist, archive=True))
    clock.advance(WEEK + TICK)
    report = await prune(store)
    assert "s" in report.sessions
    assert await everything(store) == NOTHING


async def test_prune_that_lets_go_undoes_the_compaction_it_met(store: AgentStore, clock: ManualClock) -> None:
    await lived(store)
    await die_at(store, 4, lambda used: session(used).compact(keep=1, summarize=gist, archive=True))
    clock.advance(WEEK + TICK)

    async def before(call: Call) -> None:
        if call.number == 1:  # the claim
            await store.sessions.append("s", [{"late": 1}])

    report = await another(store, Interception(before=before)).prune(older_than=WEEK)
    assert report.kept["s"] == "it was written to meanwhile"
    assert (await status(store), await archives(store)) == ("idle", [])


async def test_a_compaction_without_an_archive_still_names_the_one_before(any_store: AgentStore) -> None:
    live = Agent(model=FunctionModel(_echo), store=any_store).session("s")
    await live.send("one")
    await live.compact(keep=0, summarize=lambda _: "first summary", archive=True)
    await live.send("two")
    await live.compact(keep=0, summarize=lambda _: "second summary")
    await live.send("three")
    assert [message.text for message in await live.load()] == ["second summary", "three", "re: three"]
    history = [message.text for message in await live.history()]
    assert history == ["one", "re: one", "second summary", "three", "re: three"]
    await live.compact(keep=0, summarize=lambda _: "third summary", archive=True)
    assert [message.text for message in await live.history()] == history
    assert len((await any_store.sessions.list()).items) == 3
    await any_store.delete_session("s")
    assert (await any_store.sessions.list()).items == ()


async def _echo(request: ModelRequest) -> ModelResponse:
    return ModelResponse(text=f"re: {request.messages[-1].text}")
