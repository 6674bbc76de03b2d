"""Failures that sound alike: one mistake of a store breaks many laws, and is best looked for in one of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from perdure_conformance.reports.model import LawData

FEWEST = 3
"""From how many laws on a likeness is told."""

SHOWN = 160
"""How many characters of what went wrong are told."""

_ESCAPED = re.compile(r"(?P<error>\w+) escaped (?:at `.*?` \([\w.]+:\d+\)|outside the laws): ", re.DOTALL)
_VARIES = re.compile(r"""'[^']*'|"[^"]*"|\d+|<[^>]*>|/\S+""")
_WORD = re.compile(r"[A-Za-z]{3,}")


@dataclass(frozen=True, slots=True)
class Cause:
    """What several failures have in common.

    Attributes:
        problem: What was expected and what came, or which error escaped, as the first of them tells it.
        laws: Which laws failed so, the one with the fewest store calls first: the one to begin with.
    """

    problem: str
    laws: tuple[str, ...]

    @property
    def first(self) -> str:
        """The law to begin with."""
        return self.laws[0]

    def __str__(self) -> str:
        return f"{len(self.laws)} laws: {self.problem}; begin with {self.first}"


def common_causes(laws: Iterable[LawData]) -> list[Cause]:
    """Return what failures have in common, the most frequent first; those that stand alone are left out."""
    alike: dict[str, list[LawData]] = defaultdict(list)
    for law in laws:
        if law.failure is not None and _tells(problem := _problem(law)):
            alike[_VARIES.sub("_", problem)].append(law)
    found = []
    for failed in alike.values():
        if len(failed) >= FEWEST:
            failed.sort(key=_calls)
            found.append(Cause(_problem(failed[0]), tuple(law.id for law in failed)))
    return sorted(found, key=lambda cause: -len(cause.laws))


def _problem(law: LawData) -> str:
    """Return in one line what went wrong, without the place at which it did."""
    assert law.failure is not None
    failure, escaped = law.failure, _ESCAPED.match(law.message)
    if escaped is not None:
        text = f"{escaped['error']}: {law.message[escaped.end() :]}"
    else:
        text = f"expected {failure.expected}, got {failure.got}" if failure.expected else failure.got
    return text.partition("\n")[0][:SHOWN]


def _tells(problem: str) -> bool:
    """Whether it says more than two values: those are alike by chance."""
    return len(_WORD.findall(_VARIES.sub("", problem.replace("expected", "").replace(" got ", " ")))) > 1


def _calls(law: LawData) -> int:
    assert law.failure is not None
    return len(law.failure.calls) + law.failure.calls_left_out
