"""What came of moving conversations."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class CopyReport:
    """What came of a copy or an import.

    Attributes:
        copied: How many conversations were written and read again.
        present: How many were there already, the same.
        records: How many records of transcripts were written.
        approvals: How many approvals were written.
        not_copied: What was not copied, by the key of the conversation (or the id of an approval alone), and why.
    """

    copied: int = 0
    present: int = 0
    records: int = 0
    approvals: int = 0
    not_copied: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether everything is at the target now."""
        return not self.not_copied
