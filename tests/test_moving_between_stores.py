"""Every conversation from each kind of store to each, by real processes that are killed on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from core.tests.moving_world import CALLS, RAN, agent, differences, everything, fill
from plugins.redis.tests.servers import VALKEY, shared

from perdure import AgentStore, open_store
from perdure.moving import copy_conversations

pytestmark = pytest.mark.anyio
KINDS = ("memory", "file", "sqlite", "redis")
ROOT = Path(__file__).resolve().parent.parent
COMMAND = (sys.executable, "-P", "-c", "from perdure.cli import main; main()")

COPIER = """
import asyncio, sys
from core.tests.processes import another
from perdure import open_store
from perdure.moving import copy_conversations
from perdure_conformance.interception import Interception

async def tell(call):
    print(call, flush=True)
    sys.stdin.readline()  # the parent lets it go on, or kills it right here

async def main():
    async with open_store(sys.argv[1]) as source, open_store(sys.argv[2]) as target:
        one, other = another(source), another(target)
        if sys.argv[3] == "source":
            one = another(source, Interception(before=tell))
        else:
            other = another(target, Interception(before=tell))
        await copy_conversations(one, other)

asyncio.run(main())
"""


def url(kind: str, directory: Path) -> str:
    name = uuid.uuid4().hex
    places = {
        "memory": f"memory:{name}",
        "file": f"file:{directory / name}",
        "sqlite": f"sqlite:{directory / name}.db",
        "redis": f"{shared(VALKEY).url}?namespace={name}",
    }
    return places[kind]


@pytest.mark.parametrize("kind", KINDS)
async def test_everything_goes_from_a_store_of_each_kind_to_each(kind: str, tmp_path: Path) -> None:
    async with open_store(url(kind, tmp_path)) as source:
        await fill(source)
        for other in KINDS:
            async with open_store(url(other, tmp_path)) as target:
                report = await copy_conversations(source, target)
                assert (report.copied, report.not_copied) == (9, {})
                assert differences(await everything(target), await everything(source)) == [], other
                if other == kind:
                    await _goes_on(target)


async def _goes_on(store: AgentStore) -> None:
    """The pending turn is finished where it is now, and what was done is not done again."""
    (asked,) = (await store.approvals.list(session_id="waiting")).items
    await store.decide(asked.id, approved=True)
    RAN.clear()
    result = await agent(store, CALLS["waiting"]).resume("waiting")
    assert result is not None
    assert (result.text, RAN) == ("Paid.", ["pay ann"])


def _killed_at(number: int, source: str, target: str, side: str) -> str:
    """Copy until a process is about to make its n-th write, and kill it there; return what it was, "" if it ended before."""
    child = subprocess.Popen(
        [sys.executable, "-c", COPIER, source, target, side],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        said = ""
        for _ in range(number):
            said = child.stdout.readline().strip()
            if not said:
                return ""
            if _ + 1 < number:
                child.stdin.write("\n")
                child.stdin.flush()
        child.kill()
        return said


def _copied(source: str, target: str) -> dict[str, Any]:
    """Copy as a user does; return what the command says."""
    done = subprocess.run(
        [*COMMAND, "copy", source, target, "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    said: dict[str, Any] = json.loads(done.stdout)["result"]
    return said


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("sqlite", "file"),
        pytest.param("file", "redis", marks=pytest.mark.soak),
        pytest.param("redis", "sqlite", marks=pytest.mark.soak),
    ],
)
async def test_a_copy_that_is_killed_again_and_again_ends_with_everything(
    kind: str, other: str, tmp_path: Path
) -> None:
    source, target = url(kind, tmp_path), url(other, tmp_path)
    async with open_store(source) as store:
        await fill(store)
        before = await everything(store, turn_versions=False)
    for number, side in ((5, "target"), (8, "source")):
        assert _killed_at(number, source, target, side)
    result = _copied(source, target)
    assert result["not_copied"] == {}
    assert result["present"] > 0
    assert result["copied"] + result["present"] == 9
    async with open_store(source) as store, open_store(target) as copied:
        assert differences(await everything(copied), await everything(store)) == []
        assert differences(await everything(store, turn_versions=False), before) == []
