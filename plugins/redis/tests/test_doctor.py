"""`perdure doctor redis://HOST`, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from core.tests.command_line import Perdure
from plugins.redis.tests.servers import Server

from perdure import open_store
from perdure_redis.keys import Keys


async def _fill(url: str) -> None:
    async with open_store(url) as store:
        for name in ("a", "b", "c"):
            await store.sessions.append(name, [{"n": 1}, {"n": 2}])


@pytest.fixture
def store(server: Server, namespace: str) -> str:
    url = f"{server.url}?namespace={namespace}"
    asyncio.run(_fill(url))
    return url


@pytest.fixture
def perdure(store: str, tmp_path: Path) -> Perdure:
    return Perdure(tmp_path, store)


def test_a_server_is_told_of_and_all_of_a_namespace_is_read(perdure: Perdure, server: Server, namespace: str) -> None:
    names = f"perdure:{namespace}:*"
    before = server.ask("KEYS", names)
    found = perdure.json("doctor")
    assert found["counts"] == {"sessions": 3, "records": 6}
    assert (found["damaged"], len(found["findings"])) == (False, 1)
    assert "maxmemory-policy noeviction, appendonly yes, save no" in found["findings"][0]["text"]
    assert server.ask("KEYS", names) == before


def test_what_does_not_fit_is_found(perdure: Perdure, server: Server, namespace: str) -> None:
    keys = Keys(namespace, cluster=False)
    server.ask("LSET", keys.journal("sessions", "a"), 1, b"{")
    server.ask("LSET", keys.journal("sessions", "b"), 0, b"no head")
    server.ask("ZREM", keys.index("sessions", ""), b"i:c")
    no_text = keys.journal("sessions", "") + b"\xff"
    server.ask("RPUSH", no_text, "of another program")
    found = perdure.json("doctor", code=1)
    server.ask("DEL", no_text)
    texts = [finding["text"] for finding in found["findings"] if finding["damaged"]]
    assert [text.partition(": ")[2] for text in texts] == [
        "sessions c is in no index: no listing shows it",
        "records[0]: the stored bytes are not JSON",
        "sessions b: its first element is not a head",
    ]
    listed = perdure.json("ls", "--order", "id", code=1)
    assert [one["session_id"] for one in listed["sessions"]] == ["a"]
    server.ask("RPOP", keys.journal("sessions", "a"))
    assert "does not have the items that its head counts" in perdure("doctor", code=1).out


def test_journals_that_have_expired_are_no_damage(perdure: Perdure, server: Server, namespace: str) -> None:
    server.ask("DEL", Keys(namespace, cluster=False).journal("sessions", "a"))
    shown = perdure("doctor", code=0).out
    assert "the index of sessions names 1 that have expired" in shown


def test_settings_that_may_lose_data_are_warnings(servers: Callable[..., Server], tmp_path: Path) -> None:
    options = {"appendonly": "no", "maxmemory-policy": "allkeys-lru"}
    perdure = Perdure(tmp_path, servers(options=options).start().url + "?strict=1")
    found = perdure.json("doctor")
    assert [finding["warning"] for finding in found["findings"]] == [False, True, True]
    shown = perdure("doctor", "--strict", code=1).out
    assert "maxmemory-policy is allkeys-lru: conversations are deleted when memory is full" in shown
    assert "neither appendonly nor save is set: a restart loses everything" in shown


def test_a_user_who_may_not_walk_the_keys_is_told(servers: Callable[..., Server], tmp_path: Path) -> None:
    server = servers().start()
    server.ask("ACL", "SETUSER", "bot", "on", ">hunter2", "~*", "+@all", "-scan")
    url = server.url.replace("//", "//bot:hunter2@")
    asyncio.run(_fill(url))
    found = Perdure(tmp_path, url).json("doctor")
    assert found["counts"] == {"sessions": 3, "records": 6}
    assert [finding["warning"] for finding in found["findings"]] == [False, True]
    assert "whether the indexes have every journal was not looked at" in found["findings"][1]["text"]
    assert "hunter2" not in str(found)


def test_a_server_that_is_away_cannot_be_looked_at(tmp_path: Path) -> None:
    error = Perdure(tmp_path)("doctor", "redis://:hunter2@127.0.0.1:1", "--json", code=2).error
    assert (error["type"], error["retryable"]) == ("StoreUnavailableError", True)
    assert "hunter2" not in str(error)
    assert "backup of the server" in Perdure(tmp_path)("doctor", "redis://127.0.0.1:1", "--salvage", code=2).err


def test_a_namespace_of_its_own_is_measured_and_emptied(perdure: Perdure, server: Server) -> None:
    with server.client() as client:
        before = set(client.scan_iter())
        found = perdure.json("bench", "--seconds", "0.2")
        assert [figure["calls"] >= 3 for figure in found["figures"]] == [True] * 5
        assert found["left"] == []
        assert set(client.scan_iter()) <= before  # some of other tests expire
