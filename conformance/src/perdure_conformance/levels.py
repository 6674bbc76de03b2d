"""Levels: what a store may call itself after a check. Each is granted only when each of its laws ran and passed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from perdure_conformance.laws.register import Law
from perdure_conformance.runner import Outcome

PARTS = ("sessions", "checkpoints", "approvals")
OPTIONAL = frozenset({"replace", "delete", "list"})
"""The operations that a store may leave out."""

FOREIGN = {"approvals": frozenset({"replace", "atomic"})}
"""By part, what its contract knows nothing of: nobody misses it there."""

Declared: TypeAlias = Mapping[str, Mapping[str, bool]]
"""By part that is there, what it declares."""


class Standing(StrEnum):
    """What became of a level."""

    GRANTED = "granted"
    REFUSED = "refused"
    NOT_CLAIMED = "not claimed"
    NOT_TESTED = "not tested"


@dataclass(frozen=True, slots=True)
class Level:
    """One level, and the laws that it stands for.

    Attributes:
        name: What it is called.
        meaning: What a store that has it promises.
        claimed: The capabilities that a store must declare to claim it.
        belongs: Whether a law is one of its laws.
        helper: What a target must offer for its laws to be tried, a name of `Target`; empty: nothing.
    """

    name: str
    meaning: str
    claimed: tuple[str, ...]
    belongs: Callable[[Law], bool]
    helper: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """What became of one level.

    Attributes:
        level: The level.
        standing: What became of it.
        passed: How many of its laws ran and passed.
        laws: How many laws it has for a store that declares what this one does.
        why: Why it is not granted; empty if it is.
    """

    level: Level
    standing: Standing
    passed: int
    laws: int
    why: str


def _beside(name: str) -> Callable[[Law], bool]:
    return lambda law: law.id.endswith(f"-{name}")


LEVELS = (
    Level("plain", "the required methods keep every law", (), lambda law: not law.needs and not _is_beside(law)),
    Level(
        "complete",
        "plain, and replace, delete and list as well",
        ("delete", "list", "replace"),
        lambda law: OPTIONAL.issuperset(law.needs) and not _is_beside(law),
    ),
    Level(
        "durable",
        "what is acknowledged survives closing and a killed process",
        ("durable",),
        lambda law: "durable" in law.needs and not _is_beside(law),
    ),
    Level(
        "shared",
        "several processes use it at once",
        ("shared",),
        lambda law: "shared" in law.needs and not _is_beside(law),
    ),
    Level(
        "atomic",
        "a session and its turn journal are written in one step",
        ("atomic",),
        lambda law: "atomic" in law.needs and not _is_beside(law),
    ),
    Level(
        "server-kill",
        "what is acknowledged survives a killed server",
        ("durable",),
        _beside("server-kill"),
        "kill_server",
    ),
    Level(
        "power-loss",
        "what is acknowledged survives a power loss",
        ("durable",),
        _beside("power-loss"),
        "power_loss",
    ),
)
"""All levels: the first two build on each other, the others stand beside them."""


def _is_beside(law: Law) -> bool:
    """Whether a law has a line of its own: what kills a server or the power is no part of any other level."""
    return law.id.endswith(("-server-kill", "-power-loss"))


def grants(laws: Sequence[Law], outcomes: Mapping[str, Outcome], declared: Declared) -> list[Grant]:
    """Return what became of each level.

    Args:
        laws: Every law of the register, tried or not: what was left out refuses a level.
        outcomes: What became of the laws that were tried, by id.
        declared: What the store declares, by part.
    """
    return [_grant(level, laws, outcomes, declared) for level in LEVELS]


def _grant(level: Level, laws: Sequence[Law], outcomes: Mapping[str, Outcome], declared: Declared) -> Grant:
    own = [law for law in laws if level.belongs(law)]
    if not own:
        return Grant(level, Standing.NOT_TESTED, 0, 0, "the kit has no law of it")
    lacking = _lacking(level, declared)
    if lacking:
        return Grant(level, Standing.NOT_CLAIMED, 0, 0, lacking)
    due = [law for law in own if _declares(law, declared)]
    found = {law.id: outcomes.get(law.id, Outcome.NOT_RUN) for law in due}
    # A law that all was declared for and that has nothing to ask of this store says so itself.
    asked = {name: outcome for name, outcome in found.items() if outcome is not Outcome.NOT_CLAIMED}
    passed = sum(outcome is Outcome.PASSED for outcome in asked.values())
    why = _why_not(asked)
    if _is_untried(asked) and all(map(_is_beside, own)):
        why = (
            f"its laws did not run; they need the target's `{level.helper}`"
            if asked
            else "no law of it is about this store"
        )
        return Grant(level, Standing.NOT_TESTED, 0, len(asked), why)
    return Grant(level, Standing.REFUSED if why else Standing.GRANTED, passed, len(asked), why)


def _is_untried(outcomes: Mapping[str, Outcome]) -> bool:
    return set(outcomes.values()) <= {Outcome.NOT_RUN}


def _lacking(level: Level, declared: Declared) -> str:
    """Say which part does not declare what the level is about."""
    claimed = {part: [name for name in level.claimed if name not in FOREIGN.get(part, ())] for part in declared}
    if level.claimed and not any(claimed.values()):
        return "the store has no part that could"
    missing = {part: [name for name in names if not declared[part].get(name)] for part, names in claimed.items()}
    return "; ".join(f"{part} does not declare {', '.join(names)}" for part, names in missing.items() if names)


def _declares(law: Law, declared: Declared) -> bool:
    """Whether the store has the parts of a law, with all that the law needs."""
    return all(part in declared and all(declared[part].get(need) for need in law.needs) for part in law.parts)


def _why_not(outcomes: Mapping[str, Outcome]) -> str:
    failed = [name for name, outcome in outcomes.items() if outcome is Outcome.FAILED]
    left = [name for name, outcome in outcomes.items() if outcome is Outcome.NOT_RUN]
    reasons = []
    if failed:
        reasons.append(f"{_some(failed)} failed")
    if left:
        reasons.append(f"{_some(left)} did not run")
    return "; ".join(reasons) if outcomes else "none of its laws ran"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
