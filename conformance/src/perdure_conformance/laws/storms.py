"""What the writes of a storm are about, so that one line enters a law about a storm that something happens to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perdure_conformance.laws.register import LawFunction, law
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, SESSIONS, Part


@dataclass(frozen=True, slots=True)
class Written:
    """What a kind of storm writes.

    Attributes:
        name: What the ids of its laws begin with.
        method: The contract method that it is about.
        parts: The stores that it is about.
        needs: The capabilities that it needs, beside `durable`.
    """

    name: str
    method: str
    parts: tuple[Part, ...]
    needs: tuple[str, ...] = ()


WRITTEN = {
    "append": Written("sessions-append", "sessions.append", (SESSIONS,)),
    "replace": Written("sessions-replace", "sessions.replace", (SESSIONS,), ("replace",)),
    "delete": Written("sessions-delete", "sessions.delete", (SESSIONS,), ("delete",)),
    "turn": Written("checkpoints-turn", "checkpoints.append", (CHECKPOINTS,)),
    "decide": Written("approvals-decision", "approvals.decide", (APPROVALS,)),
    "commit": Written("atomic-write", "bundle.write", (SESSIONS, CHECKPOINTS), ("atomic",)),
}
"""By kind of storm, as in `perdure_conformance.storm.WRITERS`."""


def law_of_storm(kind: str, survives: str) -> Callable[[LawFunction], LawFunction]:
    """Enter a test as the law that what a storm of this kind has written survives something.

    Args:
        kind: Which writes.
        survives: The end of the law's id, such as `survives-kill`.
    """
    written = WRITTEN[kind]
    return law(
        f"{written.name}-{survives}",
        parts=written.parts,
        methods=[written.method],
        needs=("durable", *written.needs),
        promise=4,
        timeout=60,
    )
