"""A stored head that cannot be one is damage, and is said to be."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import StoreCorruptedError


@pytest.mark.parametrize("lease", ["30", [], 1e300], ids=repr)
def test_a_lease_that_is_no_duration(lease: Any) -> None:
    with pytest.raises(StoreCorruptedError, match=r"head\.lease"):
        CheckpointHead.from_record({"status": "idle", "lease": lease})


@pytest.mark.parametrize("until", ["soon", 7, "2031-03-14T15:09:26"], ids=repr)
def test_an_end_of_a_lease_that_is_no_instant(until: Any) -> None:
    with pytest.raises(StoreCorruptedError, match=r"head\.lease_expires_at"):
        CheckpointHead.from_record({"status": "idle", "lease_expires_at": until})


def test_a_head_without_a_status() -> None:
    with pytest.raises(StoreCorruptedError, match="head"):
        CheckpointHead.from_record({})
