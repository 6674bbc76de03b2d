"""Re-encrypting: every state of a conversation, every crash, live owners, real processes that are killed, and the command."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from core.tests.command_line import Program
from core.tests.processes import dead, die_at
from core.tests.session_world import World, awaiting, elsewhere_running, finished, in_progress, ready
from plugins.redis.tests.servers import VALKEY, shared

from perdure import AgentStore, open_store
from perdure.at_rest import Compression, EncodedJournal, Encryption, KeyRing, ReencryptReport, reencrypt
from perdure.backend import Head, Journal, Key, Part, Replace, journal_stores
from perdure.cli.codecs import load_codec
from perdure.cli.output import CommandError
from perdure.errors import InvalidArgumentError, StoreCorruptedError, WrongKeyError
from perdure.ownership.leases import Process
from perdure_conformance.interception import Call, Died, InterceptedJournal, Interception, at
from perdure_conformance.manual_clock import ManualClock
from perdure_memory.journal import MemoryJournal

pytestmark = pytest.mark.anyio

OLD, NEW = bytes(range(32)), bytes(range(32, 64))


def bundle(
    inner: Journal,
    *keys: bytes,
    clock: ManualClock,
    interception: Interception | None = None,
    process: Process | None = None,
    atomic: bool | None = None,
    accept_plaintext: bool = False,
) -> AgentStore:
    """The bundle of one process over a journal; without keys it is not encrypted."""
    journal: Journal = InterceptedJournal(inner, interception or Interception(), atomic=atomic)
    if keys:
        journal = EncodedJournal(journal, Encryption(KeyRing(keys), accept_plaintext=accept_plaintext))
    stores = journal_stores(journal)
    return AgentStore(
        sessions=stores.sessions,
        checkpoints=stores.checkpoints,
        approvals=stores.approvals,
        clock=clock,
        process=process,
    )


async def idle(world: World) -> None:
    """Nothing is open: the turn was saved."""
    assert await world.status() == "idle"


async def landed(world: World) -> None:
    """A process died when the transcript had the turn, and before the journal was closed."""
    await die_at(world.store, 4, lambda store: world.by(store).send("hello"), atomic=False)
    assert await world.status() == "finished"
    assert (await world.texts())[-1] == "re: hello"


async def cleared(world: World) -> None:
    """The transcript is empty, and a turn waits."""
    await world.session.clear()
    await awaiting(world)


async def without_a_journal(world: World) -> None:
    """There is no turn journal at all."""
    await world.store.checkpoints.delete("s")


STATES: dict[str, Callable[[World], Awaitable[Any]]] = {
    "idle": idle,
    "without a journal": without_a_journal,
    "in progress": in_progress,
    "awaiting": awaiting,
    "ready": ready,
    "finished": finished,
    "landed": landed,
    "cleared": cleared,
}


async def outcome_of(world: World) -> list[str]:
    """Finish whatever is open, and return the transcript."""
    for approval in (await world.store.approvals.list(status="pending")).items:
        await world.store.decide(approval.id, approved=True)
    found = await world.store.checkpoints.load("s")
    if found is not None and found.head.status != "idle":
        await world.by(world.store).resume()
    return await world.texts()


class Case:
    """A conversation in one state, in a store whose data was encrypted by the old key."""

    def __init__(self, state: str, *, atomic: bool) -> None:
        self.state, self.atomic = state, atomic
        self.inner, self.clock = MemoryJournal(), ManualClock()
        self.world = World(self.open(OLD))

    async def make(self) -> Case:
        await self.world.session.send("first")
        await STATES[self.state](self.world)
        self.clock.advance(timedelta(hours=1))
        return self

    def open(
        self, *keys: bytes, interception: Interception | None = None, process: Process | None = None
    ) -> AgentStore:
        return bundle(
            self.inner, *keys, clock=self.clock, interception=interception, process=process, atomic=self.atomic
        )

    async def finish(self, *keys: bytes) -> list[str]:
        self.world.store = self.open(*keys)
        return await outcome_of(self.world)


async def expected_of(state: str, *, atomic: bool) -> list[str]:
    return await (await Case(state, atomic=atomic).make()).finish(OLD)


async def rewrite(case: Case) -> ReencryptReport:
    """Re-encrypt until nothing is left, as an operator does: what a pending turn keeps is done when the turn is."""
    return await reencrypt(case.open(NEW, OLD))


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("state", STATES)
async def test_a_conversation_in_any_state_goes_on_under_the_new_key(state: str, atomic: bool) -> None:
    case = await Case(state, atomic=atomic).make()
    before = await case.world.store.sessions.load("s")
    report = await rewrite(case)
    after = await case.open(NEW, OLD).sessions.load("s")
    assert before is not None
    assert after is not None
    assert (after.records, after.created_at, after.updated_at) == (before.records, before.created_at, before.updated_at)
    if not report.kept:
        assert state != "landed"
        assert await case.finish(NEW) == await expected_of(state, atomic=atomic)
        assert case.world.paid == (["ann"] if state in ("awaiting", "ready", "cleared") else [])
        return
    # The conversation is as it was: its turn ends first.
    assert not atomic or state == "landed"
    assert "a turn is pending" in report.kept["sessions s"]
    assert await case.finish(NEW, OLD) == await expected_of(state, atomic=atomic)
    assert (await rewrite(case)).kept == {}
    assert await case.finish(NEW) == await expected_of(state, atomic=atomic)


@pytest.mark.parametrize(
    "outcome",
    ["die-after", *(pytest.param(one, marks=pytest.mark.soak) for one in ("die-before", "unavailable", "unknown"))],
)
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("state", STATES)
async def test_it_can_be_cut_at_every_write_and_be_run_again(state: str, atomic: bool, outcome: str) -> None:
    wanted = await expected_of(state, atomic=atomic)
    for number in range(1, 30):
        case = await Case(state, atomic=atomic).make()
        interception = at(number, outcome)
        cut = False
        try:
            await reencrypt(case.open(NEW, OLD, interception=interception, process=dead()))
        except (Died, Exception):  # noqa: BLE001  # reason: however it ended, what is left is looked at
            cut = True
        if number % 2:  # either the conversation goes on first, or the rest is re-encrypted first
            assert await case.finish(NEW, OLD) == wanted, (number, outcome)
        report = await rewrite(case)
        if report.kept:
            assert not atomic or state == "landed"
            assert await case.finish(NEW, OLD) == wanted, (number, outcome)
            assert (await rewrite(case)).kept == {}
        assert await case.finish(NEW) == wanted, (number, outcome)
        again = await rewrite(case)
        assert (again.sessions, again.runs, again.approvals, again.kept) == ((), (), (), {})
        if not cut and len(interception.calls) < number:
            return
    raise AssertionError("it never came to its end")


async def test_a_live_owner_is_left_alone_and_its_turn_is_saved() -> None:
    case = Case("idle", atomic=True)
    await case.make()
    await elsewhere_running(case.world)
    report = await rewrite(case)
    assert "is busy" in report.kept["sessions s"]
    assert report.sessions == ()
    with pytest.raises(WrongKeyError):
        await case.open(NEW).sessions.load("s")
    case.clock.advance(timedelta(hours=1))  # its lease has run out
    assert (await rewrite(case)).kept == {}
    assert (await case.finish(NEW))[-1] == "re: hello"


async def test_turns_that_run_meanwhile_are_all_saved(tmp_path: Path) -> None:
    """Sends in another bundle over the same data, while this one re-encrypts again and again."""
    url, ring = f"sqlite:{tmp_path}/x.db", KeyRing([OLD, NEW])
    async with open_store(url, codec=Encryption(ring)) as live, open_store(url, codec=_new()) as operator:
        world = World(live)

        async def converse(name: str) -> None:
            session = world.session.agent.session(name)
            for number in range(4):
                while True:
                    try:
                        await session.send(f"{name} {number}")
                        break
                    except Exception as error:
                        if not getattr(error, "retryable", False):  # it is busy for a moment, as the page says
                            raise
                        await asyncio.sleep(0)

        async def again() -> None:
            for _ in range(6):
                await reencrypt(operator)

        names = [f"s{number}" for number in range(6)]
        await asyncio.gather(again(), *map(converse, names))
        assert (await reencrypt(operator)).kept == {}
    async with open_store(url, codec=Encryption(KeyRing([NEW]))) as store:
        for name in names:
            found = await store.sessions.load(name)
            assert found is not None
            assert found.count == 8


def _new() -> Encryption:
    return Encryption(KeyRing([NEW, OLD]))


async def test_the_new_version_is_one_higher_and_whoever_has_the_old_one_is_told(tmp_path: Path) -> None:
    async with open_store(f"sqlite:{tmp_path}/x.db", codec=Encryption(KeyRing([OLD]))) as store:
        version = await store.sessions.append("a", [{"x": 1}], scope="ann", state={"title": "t"})
    async with open_store(f"sqlite:{tmp_path}/x.db", codec=_new()) as store:
        report = await reencrypt(store)
        found = await store.sessions.load("a")
        assert (report.sessions, report.current) == (("a",), 0)
        assert found is not None
        assert (found.version, found.rewritten) == (version + 1, version + 1)
        assert (found.scope, found.state) == ("ann", {"title": "t"})
        assert (await store.checkpoints.list()).items == ()
        assert (await reencrypt(store)).current == 1


@pytest.mark.parametrize("state", ["idle", "awaiting"])
async def test_a_title_that_is_set_between_reading_and_writing_is_not_lost(state: str) -> None:
    case = await Case(state, atomic=True).make()
    other, is_set = case.open(NEW, OLD), False

    async def before(call: Call) -> None:
        nonlocal is_set
        if not is_set and any(isinstance(one, Replace) and one.key.part == "sessions" for one in call.operations):
            is_set = True
            await other.sessions.append("s", [], state={"title": "new"})

    report = await reencrypt(case.open(NEW, OLD, interception=Interception(before=before)))
    found = await other.sessions.load("s")
    assert found is not None
    assert (is_set, found.state, len(found.records)) == (True, {"title": "new"}, 2)
    assert len(report.kept) == 1


async def test_what_cannot_be_read_is_told_and_keeps_nothing_else_from_it() -> None:
    case = await Case("idle", atomic=True).make()
    for name in ("damaged", "foreign"):
        await case.open(OLD if name == "damaged" else bytes(32)).sessions.append(name, [{"x": 1}, {"x": 2}])
    key = Key(Part.SESSIONS, "damaged")
    found = await case.inner.read(key)
    assert found is not None
    await case.inner.write((Replace(key, 0, tuple(found.items[::-1]), Head(), None, found.updated_at),))
    before = [await case.inner.read(Key(Part.SESSIONS, name)) for name in ("damaged", "foreign")]
    report = await rewrite(case)
    assert report.sessions == ("s",)
    assert "written for another place" in report.kept["sessions damaged"]
    assert "is encrypted with key" in report.kept["sessions foreign"]
    kept = [await case.inner.read(Key(Part.SESSIONS, name)) for name in ("damaged", "foreign")]
    assert kept == before


async def test_what_a_salvage_left_is_mended_only_when_asked(tmp_path: Path) -> None:
    url, codec = f"file:{tmp_path}/data", Encryption(KeyRing([OLD]))
    async with open_store(url, codec=codec) as store:
        for number in range(6):
            await store.sessions.append("a", [{"x": number}], scope="ann")
        await store.sessions.append("whole", [{"x": 1}])
    await asyncio.to_thread(_damage_a_line, tmp_path / "data" / "default" / "sessions" / "a.jsonl", 5)
    code, said = await asyncio.to_thread(perdure, "doctor", url, "--salvage", PERDURE_CODEC="")
    assert (code, "5 items recovered" in said) == (1, True), said
    async with open_store(url, codec=codec) as store:
        with pytest.raises(StoreCorruptedError, match="another place"):
            await store.sessions.load("a")
        assert (await reencrypt(store)).sessions == ()
        report = await reencrypt(store, mend=True)
        assert (report.sessions, report.current, report.kept) == (("a",), 1, {})
        found = await store.sessions.load("a")
        assert found is not None
        assert ([record["x"] for record in found.records], found.scope) == ([0, 1, 3, 4, 5], "ann")


def _damage_a_line(path: Path, number: int) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[number] = lines[number][:-20] + b"x" * 20
    path.write_bytes(b"\n".join(lines))


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0, 5)])
async def test_what_was_swapped_repeated_or_put_in_is_not_mended(order: tuple[int, int]) -> None:
    case = await Case("idle", atomic=True).make()
    store = case.open(OLD)
    await store.sessions.append("b", [{"x": 1}] * 6)
    key, other = Key(Part.SESSIONS, "s"), await case.inner.read(Key(Part.SESSIONS, "b"))
    found = await case.inner.read(key)
    assert found is not None
    assert other is not None
    items = [*found.items, *other.items]
    await case.inner.write(
        (Replace(key, 0, tuple(items[place] for place in order), Head(), None, found.updated_at),),
    )
    report = await reencrypt(store, mend=True)
    assert list(report.kept) == ["sessions s"]


async def test_a_store_that_was_in_use_is_encrypted_and_then_strict() -> None:
    inner, clock = MemoryJournal(), ManualClock()
    world = World(bundle(inner, clock=clock))
    await world.session.send("first")
    await awaiting(world)
    migrating = bundle(inner, NEW, clock=clock, accept_plaintext=True)
    report = await reencrypt(migrating)
    assert (report.sessions, report.runs, len(report.approvals), report.kept) == (("s",), ("s",), 1, {})
    world.store = bundle(inner, NEW, clock=clock)
    assert (await outcome_of(world))[-1] == "re: paid ann"
    stored = [await inner.read(Key(part, "s")) for part in (Part.SESSIONS, Part.RUNS)]
    assert all(item.startswith(b"\xf5PE") for found in stored if found is not None for item in found.items)


async def test_what_has_become_too_large_is_kept_and_keeps_nothing_else_from_it() -> None:
    inner, clock = MemoryJournal(), ManualClock()
    store = bundle(inner, OLD, clock=clock)
    for name, size in (("a", 10), ("b", 3000), ("c", 10)):
        await store.sessions.append(name, [{"text": "x" * size}])
    stores = journal_stores(EncodedJournal(inner, [Compression(max_size=1000), Encryption(KeyRing([NEW, OLD]))]))
    now = AgentStore(sessions=stores.sessions, checkpoints=stores.checkpoints, approvals=stores.approvals, clock=clock)
    report = await reencrypt(now)
    assert (report.sessions, list(report.kept)) == (("a", "c"), ["sessions b"])
    assert "the limit is 1000" in report.kept["sessions b"]
    assert (await now.checkpoints.list()).items == ()  # and no claim is left


async def test_archives_and_runs_without_a_session_are_rewritten_too() -> None:
    case = await Case("idle", atomic=True).make()
    await case.world.session.send("second")
    await case.world.session.compact(keep=1, archive=True)
    await case.world.session.agent.run("hello", run_id="alone")
    report = await rewrite(case)
    assert (len(report.sessions), report.runs, report.kept) == (2, ("s", "alone.run"), {})
    assert [message.text for message in await World(case.open(NEW)).session.history()][:2] == ["first", "re: first"]
    assert (await World(case.open(NEW)).session.agent.run("hello", run_id="alone")).text == "re: hello"


async def test_it_does_not_make_what_it_rewrites_look_younger() -> None:
    case = await Case("idle", atomic=True).make()
    case.clock.advance(timedelta(days=30))
    await rewrite(case)
    report = await case.open(NEW).prune(older_than=timedelta(days=7))
    assert (report.sessions, report.runs) == (("s",), ("s",))


async def test_a_store_without_a_codec_is_refused(store: AgentStore) -> None:
    with pytest.raises(InvalidArgumentError, match="without a codec"):
        await reencrypt(store)


@pytest.mark.parametrize("kind", ["file", "sqlite", "valkey"])
async def test_every_backend_is_rewritten(kind: str, tmp_path: Path) -> None:
    url = {
        "file": f"file:{tmp_path}/data",
        "sqlite": f"sqlite:{tmp_path}/x.db",
        "valkey": f"{shared(VALKEY).url}?namespace={tmp_path.name}",
    }[kind]
    async with open_store(url, codec=Encryption(KeyRing([OLD]))) as store:
        world = World(store)
        await world.session.send("first")
        approval = await awaiting(world)
    async with open_store(url, codec=_new()) as store:
        report = await reencrypt(store)
        assert report.approvals == (approval,)
        assert bool(report.kept) == (kind == "file")
        if report.kept:
            await outcome_of(World(store))
            assert (await reencrypt(store)).kept == {}
    async with open_store(url, codec=Encryption(KeyRing([NEW]))) as store:
        assert (await outcome_of(World(store)))[-1] == "re: paid ann"


# --- real processes ---

CHILD = """
import asyncio, os, sys
import perdure
from perdure.at_rest import EncodedJournal, encryption_from_environment, reencrypt

write = EncodedJournal.write

async def told(self, operations):
    versions = await write(self, operations)
    print("wrote", flush=True)
    return versions

EncodedJournal.write = told

async def main():
    async with perdure.open_store(sys.argv[1], codec=encryption_from_environment()) as store:
        await reencrypt(store)

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["file", "sqlite"])
async def test_a_process_that_is_killed_loses_nothing_and_the_next_one_finishes(kind: str, tmp_path: Path) -> None:
    url = f"file:{tmp_path}/data" if kind == "file" else f"sqlite:{tmp_path}/x.db"
    names = [f"s{number:02}" for number in range(12)]
    async with open_store(url, codec=Encryption(KeyRing([OLD]))) as store:
        for name in names:
            await store.sessions.append(name, [{"x": name}] * 3)
    for lines in (2, 9):
        await asyncio.to_thread(_killed_after, lines, url)
        async with open_store(url, codec=_new()) as store:
            for name in names:
                found = await store.sessions.load(name)
                assert found is not None
                assert list(found.records) == [{"x": name}] * 3
    async with open_store(url, codec=_new()) as store:
        report = await reencrypt(store)
        assert report.kept == {}
        assert 0 < len(report.sessions) < len(names)  # what was done before is not done again
    async with open_store(url, codec=Encryption(KeyRing([NEW]))) as store:
        assert len((await store.sessions.list()).items) == len(names)
        assert (await store.checkpoints.list()).items == ()


def _environment() -> dict[str, str]:
    keys = " ".join(base64.b64encode(key).decode() for key in (NEW, OLD))
    return os.environ | {"PERDURE_KEYS": keys, "PERDURE_CODEC": "perdure.at_rest:encryption_from_environment"}


def _killed_after(lines: int, url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, url], env=_environment(), stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for _ in range(lines):
            assert child.stdout.readline() == "wrote\n"
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL


# --- the command ---


def perdure(*arguments: str, **environment: str) -> tuple[int, str]:
    ran = Program("perdure", Path.cwd(), _environment() | environment, errors_in_out=True)(*arguments)
    return ran.code, ran.out


async def test_the_command_re_encrypts_and_says_what_is_left(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/x.db"
    async with open_store(url, codec=Encryption(KeyRing([OLD]))) as store:
        await store.sessions.append("a", [{"x": 1}])
    async with open_store(url) as store:
        await store.sessions.append("b", [{"x": 1}], state={"plain": True})
    code, said = await asyncio.to_thread(perdure, "reencrypt", "--store", url, "--json")
    result = json.loads(said)["result"]
    assert (code, result["sessions"]) == (1, ["a"])
    assert "is not encrypted" in result["kept"]["sessions b"]
    async with open_store(url) as store:
        await store.sessions.delete("b")
    code, said = await asyncio.to_thread(perdure, "reencrypt", "--store", url)
    assert (code, said) == (
        0,
        "Encrypted again: 0 sessions, 0 turn journals and 0 approvals. Nothing had to be done for 1.\n",
    )
    lost = KeyRing.new_key()
    code, said = await asyncio.to_thread(
        perdure, "--codec", "perdure.at_rest:encryption_from_environment", "ls", "--store", url, PERDURE_KEYS=lost
    )
    assert (code, "is encrypted with key" in said, lost in said) == (2, True, False)


@pytest.mark.parametrize(
    "target", ["", "perdure", "perdure:", ":x", "nowhere_to_be_found:x", "perdure:nothing", "os:sep"]
)
def test_what_names_no_codec_is_refused(target: str) -> None:
    with pytest.raises((CommandError, InvalidArgumentError)):
        load_codec(target)


def test_a_codec_is_loaded_from_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_KEYS", base64.b64encode(OLD).decode())
    assert isinstance(load_codec("perdure.at_rest:encryption_from_environment"), Encryption)
