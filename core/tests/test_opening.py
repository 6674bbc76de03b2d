import asyncio
import contextlib
import importlib
import pickle
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import perdure
from perdure import plugins
from perdure.backend import (
    ApprovalStore,
    InvalidArgumentError,
    PluginError,
    RecordTooLargeError,
    SessionStore,
    StoreClosedError,
    StoredTranscript,
    StoreUnavailableError,
    StoreURLError,
    UnknownSchemeError,
    UnsupportedOperationError,
    WrongLoopError,
)

pytestmark = pytest.mark.anyio

PLUGIN = """
import asyncio
from perdure.backend import Journal, SessionStore, StoreUnavailableError, hookimpl, journal_hooks
from pydantic import BaseModel

PERDURE_CONTRACT = 1
LOG = []

class Options(BaseModel):
    fails: str = ""

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("it has no text")

class Recording(Journal):
    def __init__(self, title, fails, namespace):
        self.title, self.fails, self.namespace = title, fails, namespace

    @classmethod
    def from_url(cls, url):
        LOG.append(f"make {url.path}")
        return cls(url.path, url.options.fails, url.namespace)

    async def open(self):
        LOG.append(f"open {self.title}")
        if self.fails == "open":
            raise OSError("no route to host")
        if self.fails == "open-typed":
            raise StoreUnavailableError("open", self.title, "typed")
        if self.fails == "hangs":
            await asyncio.sleep(3600)

    async def close(self):
        LOG.append(f"close {self.title}")
        await asyncio.sleep(0)
        if self.fails == "close-mute":
            raise Mute
        if self.fails == "close-cancelled":
            await asyncio.gather(self.cancelled())
        if self.fails == "close":
            raise OSError(f"{self.title} would not close")
        if self.fails == "slow-close":
            await asyncio.sleep(0.05)
        LOG.append(f"closed {self.title}")

    async def cancelled(self):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async def read(self, key, *, after=0, limit=None, last=None):
        return None

    async def write(self, operations, /):
        return tuple(1 for _ in operations)

    async def scan(self, part, *, group, status, before, order, after, limit):
        return ()

perdure_session_store, perdure_checkpoint_store, perdure_approval_store = journal_hooks(Recording)
"""

HALF = PLUGIN + "\nperdure_checkpoint_store = perdure_approval_store = None\n"


class Clock:
    def now(self) -> datetime:
        return datetime(2020, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0


class Mine(SessionStore):
    async def _load(self, session_id: str, **_: Any) -> StoredTranscript | None:
        return None

    async def _append(self, session_id: str, records: tuple[bytes, ...], **_: Any) -> int:
        return 1


Install = Callable[[str, str], ModuleType]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a plugin: a module, and a distribution whose entry point names it."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(scheme: str, source: str) -> ModuleType:
        info = tmp_path / f"{scheme}_store-1.0.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {scheme}-store\nVersion: 1.0\n")
        info.joinpath("entry_points.txt").write_text(f"[perdure.stores]\n{scheme} = {scheme}_plugin\n")
        tmp_path.joinpath(f"{scheme}_plugin.py").write_text(source)
        importlib.invalidate_caches()
        return importlib.import_module(f"{scheme}_plugin")

    yield install
    for name in set(sys.modules) - before:
        del sys.modules[name]


COUNTING = """
from pydantic import model_validator

class Options(Options):
    @model_validator(mode="after")
    def _count(self):
        LOG.append("check")
        return self
"""


@pytest.fixture
def log(install: Install) -> list[str]:
    found: list[str] = install("rec", PLUGIN).LOG
    return found


async def logged(log: list[str], line: str) -> None:
    for _ in range(10_000):
        if line in log:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{line} never came")


async def test_one_url_is_one_journal_opened_and_closed_once(log: list[str]) -> None:
    async with perdure.open_store("rec:a") as store:
        assert [part in store for part in ("sessions", "checkpoints", "approvals")] == [True] * 3
        assert await store.sessions.load("s") is None
    assert log == ["make a", "open a", "close a", "closed a"]


async def test_awaited_it_is_closed_by_hand_and_closing_again_does_nothing(log: list[str]) -> None:
    store = await perdure.open_store("rec:a")
    await asyncio.gather(store.close(), store.close())
    await store.close()
    assert log == ["make a", "open a", "close a", "closed a"]


async def test_nothing_is_done_before_it_is_awaited(log: list[str]) -> None:
    perdure.open_store("rec:a")
    perdure.open_store("no url")
    assert log == []


async def test_parts_with_equal_urls_share_and_others_do_not(log: list[str]) -> None:
    parts = {"sessions": "rec:a?namespace=x", "checkpoints": "REC:%61?namespace=x", "approvals": "rec:a?namespace=y"}
    async with perdure.open_store(**parts):  # type: ignore[arg-type]  # reason: the checker does not look at the keys
        assert log == ["make a", "make a", "open a", "open a"]


async def test_a_url_is_checked_once_for_all_its_parts(install: Install) -> None:
    counting = install("counting", PLUGIN + COUNTING)
    for _ in range(2):
        async with perdure.open_store("counting:a", approvals="counting:b"):
            assert counting.LOG[:5] == ["check", "make a", "check", "make b", "open a"]
        counting.LOG.clear()


async def test_each_opening_is_one_of_its_own(log: list[str]) -> None:
    opening = perdure.open_store("rec:a")
    first = await opening
    second = await opening
    await first.close()
    assert await second.sessions.load("s") is None
    await second.close()
    assert log.count("close a") == 2


async def test_what_is_called_to_close_a_bundle_may_hold_it_too() -> None:
    closed: list[str] = []
    stack = contextlib.AsyncExitStack()
    stack.callback(closed.append, "what it needs")
    store = await stack.enter_async_context(perdure.AgentStore(closing=stack.aclose))
    await store.close()
    await store.close()
    assert closed == ["what it needs"]


async def test_after_close_every_store_is_sealed(log: list[str]) -> None:
    async with perdure.open_store("rec:a", approvals="rec:b") as store:
        pass
    with pytest.raises(StoreClosedError):
        await store.sessions.load("s")
    with pytest.raises(StoreClosedError):
        await store.checkpoints.load("s")
    with pytest.raises(StoreClosedError):
        await store.approvals.get("s")


async def test_an_object_stays_its_owners(log: list[str]) -> None:
    mine = Mine()
    async with perdure.open_store("rec:a", sessions=mine, clock=Clock()) as store:
        assert store.sessions is mine
        assert mine.clock.now().year == store.approvals.clock.now().year == store.clock.now().year == 2020
    assert await mine.load("s") is None
    with pytest.raises(StoreClosedError):
        await store.checkpoints.load("s")


async def test_a_part_alone_leaves_the_others_absent(log: list[str]) -> None:
    async with perdure.open_store(sessions="rec:a") as store:
        assert "sessions" in store
        assert "checkpoints" not in store
        with pytest.raises(UnsupportedOperationError):
            await store.approvals.get("a")


async def test_a_part_that_the_plugin_lacks_is_absent(install: Install) -> None:
    install("half", HALF)
    async with perdure.open_store("half:a") as store:
        assert [part in store for part in ("sessions", "checkpoints", "approvals")] == [True, False, False]


async def test_a_part_asked_for_by_url_must_be_there(install: Install) -> None:
    half = install("half", HALF)
    with pytest.raises(UnsupportedOperationError, match="the plugin of 'half' does not support approvals"):
        await perdure.open_store("half:a", approvals="half:b")
    assert half.LOG == ["make a"]


async def test_the_limit_of_a_record_is_the_stores(log: list[str]) -> None:
    async with perdure.open_store("rec:a?max_record=10", approvals="rec:b") as store:
        assert store.sessions.max_record == 10
        assert store.approvals.max_record == ApprovalStore.max_record
        with pytest.raises(RecordTooLargeError):
            await store.sessions.append("s", [{"text": "longer than that"}])


async def test_stores_belong_to_the_loop_that_opened_them(log: list[str]) -> None:
    async with perdure.open_store("rec:a") as store:

        def elsewhere() -> None:
            with pytest.raises(WrongLoopError):
                asyncio.run(store.sessions.load("s"))

        await asyncio.to_thread(elsewhere)


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({}, "url"),
        ({"clock": Clock()}, "url"),
        ({"url": Path("agent.db")}, "url"),
        ({"url": 5}, "url"),
        ({"url": Mine()}, "url"),
        ({"sessions": 5}, "sessions"),
        ({"approvals": Mine()}, "approvals"),
        ({"checkpoints": b"rec:a"}, "checkpoints"),
    ],
)
async def test_what_is_neither_a_url_nor_a_store_is_refused(arguments: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await perdure.open_store(**arguments)
    assert caught.value.argument == argument
    assert "sqlite:agent.db" in caught.value.problem


async def test_a_wrong_url_opens_nothing(log: list[str]) -> None:
    for wrong, kind in {
        "rec:a?x=1": StoreURLError,
        "rec://a": StoreURLError,
        "": StoreURLError,
        "reck:a": UnknownSchemeError,
    }.items():
        with pytest.raises(kind):
            await perdure.open_store("rec:a", approvals=wrong)
        with pytest.raises(PluginError):
            await perdure.open_store(wrong)
    assert [line for line in log if not line.startswith("make")] == []


async def test_a_failed_opening_closes_what_it_attempted_in_reverse_order(log: list[str]) -> None:
    with pytest.raises(StoreUnavailableError) as caught:
        await perdure.open_store(sessions="rec:a", checkpoints="rec:b?fails=open", approvals="rec:c")
    assert log[3:] == ["open a", "open b", "close b", "closed b", "close a", "closed a"]
    assert (caught.value.operation, caught.value.key) == ("open", "b")
    assert caught.value.problem == "OSError: no route to host"
    assert isinstance(caught.value.__cause__, OSError)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


async def test_a_typed_failure_to_open_passes_as_it_is(log: list[str]) -> None:
    with pytest.raises(StoreUnavailableError, match="typed"):
        await perdure.open_store("rec:a?fails=open-typed")
    assert log[-1] == "closed a"


async def test_a_failure_to_close_neither_hides_the_first_nor_stops_the_others(log: list[str]) -> None:
    with pytest.raises(StoreUnavailableError, match="no route to host") as caught:
        await perdure.open_store(sessions="rec:a", checkpoints="rec:b?fails=close", approvals="rec:c?fails=open")
    assert log[-4:] == ["closed c", "close b", "close a", "closed a"]
    assert "b would not close" in "".join(caught.value.__notes__)


async def test_of_several_failures_to_close_the_first_is_raised_with_the_others_as_notes(log: list[str]) -> None:
    store = await perdure.open_store(sessions="rec:a?fails=close", checkpoints="rec:b?fails=close", approvals="rec:c")
    with pytest.raises(StoreUnavailableError, match="b would not close") as caught:
        await store.close()
    assert "a would not close" in "".join(caught.value.__notes__)
    await store.close()
    assert [line for line in log if line.startswith("close ")] == ["close c", "close b", "close a"]


async def test_the_error_of_the_body_is_not_hidden_by_closing(log: list[str]) -> None:
    with pytest.raises(RuntimeError, match="body") as caught:
        async with perdure.open_store("rec:a?fails=close"):
            raise RuntimeError("body")
    assert "a would not close" in "".join(caught.value.__notes__)
    with pytest.raises(StoreUnavailableError, match="a would not close"):
        async with perdure.open_store("rec:a?fails=close"):
            pass


async def test_a_cancelled_opening_closes_what_it_attempted(log: list[str]) -> None:
    async def opening() -> None:
        await perdure.open_store(sessions="rec:a?fails=slow-close", approvals="rec:b?fails=hangs")

    task = asyncio.create_task(opening())
    await logged(log, "open b")
    task.cancel()
    await logged(log, "close a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log[-4:] == ["close b", "closed b", "close a", "closed a"]


async def test_a_cancelled_close_is_finished_all_the_same(log: list[str]) -> None:
    store = await perdure.open_store(sessions="rec:a", approvals="rec:b?fails=slow-close")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(store.close(), 0.01)
    assert log[-2:] == ["close a", "closed a"]


@pytest.mark.parametrize("fails", ["close-mute", "close-cancelled"])
async def test_however_one_fails_to_close_the_others_are_closed(log: list[str], fails: str) -> None:
    store = await perdure.open_store(sessions="rec:a", approvals=f"rec:b?fails={fails}")
    with pytest.raises(StoreUnavailableError, match="close of b failed"):
        await store.close()
    assert log[-3:] == ["close b", "close a", "closed a"]


async def test_whoever_closes_at_the_same_time_waits_until_it_is_closed(log: list[str]) -> None:
    store = await perdure.open_store("rec:a?fails=slow-close")
    first = asyncio.create_task(store.close())
    await logged(log, "close a")
    await store.close()
    assert log[-1] == "closed a"
    await first


@pytest.mark.parametrize("entry", [b"folder", None, 7, ["folder"], "a\0b", "\ud800"], ids=repr)
async def test_what_cannot_be_a_place_on_the_path_hides_no_plugin(
    log: list[str], monkeypatch: pytest.MonkeyPatch, entry: Any
) -> None:
    monkeypatch.setattr(sys, "path", [entry, *sys.path])
    assert "rec" in {plugin.scheme for plugin in plugins.installed()}
