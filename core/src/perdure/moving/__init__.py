"""Moving conversations: whole, between any two stores, at the versions that they have."""

from perdure.moving.copying import Progress, copy_conversations
from perdure.moving.reports import CopyReport
from perdure.moving.snapshots import Snapshot

__all__ = ["CopyReport", "Progress", "Snapshot", "copy_conversations"]
