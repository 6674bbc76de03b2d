"""Odd arguments and odd failures at the stores: each has a typed error, on every backend the same."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from perdure import AgentStore, codec
from perdure.contracts.sessions import SessionStore
from perdure.errors import (
    InvalidArgumentError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedOperationError,
    VersionConflictError,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("key", ["\ud800", "a\0b", "../a", "", "x" * 1000, 7, ["a"]], ids=repr)
async def test_a_cursor_that_names_no_key(any_store: AgentStore, key: Any) -> None:
    cursor = base64.urlsafe_b64encode(codec.encode(["id", None, key])).decode()
    for store in (any_store.sessions, any_store.checkpoints):
        with pytest.raises(InvalidArgumentError, match="cursor"):
            await store.list(cursor=cursor)


async def test_places_beyond_all_stores(any_store: AgentStore) -> None:
    store, beyond = any_store.sessions, 10**40
    await store.append("s", [{"a": 1}], expected_version=0)
    with pytest.raises(VersionConflictError):
        await store.replace("s", [], expected_version=None, keep=beyond)
    for window, count in (({"after": beyond}, 0), ({"limit": beyond}, 1), ({"last": beyond}, 1)):
        found = await store.load("s", **window)
        assert found is not None
        assert len(found.records) == count


class Mute(Exception):  # noqa: N818  # reason: it stands for what drivers raise, whatever it is called
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


class Failing(SessionStore):
    async def _load(self, *_: Any, **__: Any) -> Any:
        raise Mute

    async def _append(self, *_: Any, **__: Any) -> Any:
        raise Mute


async def test_a_failure_whose_text_fails_is_typed_all_the_same() -> None:
    with pytest.raises(StoreUnavailableError, match="Mute"):
        await Failing().load("s")
    with pytest.raises(OutcomeUnknownError, match="Mute"):
        await Failing().append("s", [])


@pytest.mark.parametrize("part", ["sessions", "checkpoints", "approvals"])
async def test_a_part_that_is_absent_says_so_whatever_is_asked_of_it(part: str) -> None:
    store = getattr(AgentStore(), part)
    for call in (store.list(), store.delete("s")):
        with pytest.raises(UnsupportedOperationError, match=rf"this bundle \(it has no {part}\) does not support"):
            await call
