"""A head that goes out again is not encoded anew: only as long as that would come to the same."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from perdure import codec, open_store
from perdure.contracts.checkpoints import CheckpointHead, CheckpointStore
from perdure.errors import InvalidIdError, RecordTooLargeError

pytestmark = pytest.mark.anyio


async def stored(checkpoints: CheckpointStore, key: str, head: CheckpointHead) -> CheckpointHead:
    """Append a head, and return it as it is read."""
    await checkpoints.append(key, [], expected_version=None, head=head)
    found = await checkpoints.load(key)
    assert found is not None
    return found.head


async def test_a_head_is_encoded_once_and_one_with_a_change_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []
    encode: Callable[..., bytes] = codec.encode

    def noted(value: object, *where: Any) -> bytes:
        encoded.append(value)
        return encode(value, *where)

    monkeypatch.setattr(codec, "encode", noted)
    async with open_store("memory:") as store:
        head = CheckpointHead("in-progress", session_id="s")
        for one in (head, head, replace(head, attempts=1), head):
            assert await stored(store.checkpoints, "s", one) == one
    assert len(encoded) == 2


async def test_what_was_changed_in_place_is_not_overlooked() -> None:
    async with open_store("memory:") as store:
        head = CheckpointHead("awaiting-approval", session_id="s")
        changes: list[Callable[[], object]] = [
            lambda: head.extra.update(new=1),
            lambda: head.extra.update(new=2),
            lambda: head.approval_ids.append("a"),
            head.extra.clear,
            head.approval_ids.clear,
        ]
        assert await stored(store.checkpoints, "s", head) == head
        for change in changes:
            change()
            assert await stored(store.checkpoints, "s", head) == head


async def test_a_head_is_checked_for_each_journal_and_each_limit() -> None:
    async with open_store("memory:") as store, open_store("memory:?max_record=20") as small:
        head = CheckpointHead("in-progress", session_id="s")
        await store.checkpoints.append("s", [], expected_version=0, head=head)
        with pytest.raises(InvalidIdError):
            await store.checkpoints.append("other", [], expected_version=0, head=head)
        with pytest.raises(RecordTooLargeError):
            await small.checkpoints.append("s", [], expected_version=0, head=head)


async def test_what_a_head_was_settled_to_is_no_part_of_it() -> None:
    async with open_store("memory:") as store:
        head, fresh = (CheckpointHead("in-progress", session_id="s") for _ in range(2))
        await store.checkpoints.append("s", [], expected_version=0, head=head)
    for same in (head, copy.copy(head), replace(head), pickle.loads(pickle.dumps(head))):
        assert (same, repr(same), same.to_record()) == (fresh, repr(fresh), fresh.to_record())


@dataclass(frozen=True)
class Labelled(CheckpointHead):
    """A head of somebody else's, with a field that can change in place."""

    labels: list[str] = field(default_factory=list)


async def test_a_head_of_another_class_is_settled_anew() -> None:
    async with open_store("memory:") as store:
        head = Labelled("idle", labels=["one"])
        assert (await stored(store.checkpoints, "s", head)).extra == {"labels": ["one"]}
        head.labels.append("two")
        assert (await stored(store.checkpoints, "s", head)).extra == {"labels": ["one", "two"]}
