"""Inputs that are small programs: what a model answers is a pure function of the conversation, known without asking it.

`n3: look+ask/~pay` is the input `n3`: a response with the calls `look` and `ask`, then one with the call `pay`, for which
the model fails when it is asked the first time, then the text `did n3`. An input that joins a turn takes its place: from
there on the model follows the newest input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st


@dataclass(frozen=True)
class Kind:
    """What a tool is like.

    Attributes:
        idempotent: Whether it may run again without a question.
        in_doubt: Its policy.
        gated: Whether a human decides first.
        expires: Whether that question expires.
        probe: Whether it can be found out what became of it.
        raises: `error`: each time; `propagating`: the first time.
    """

    idempotent: bool = False
    in_doubt: str | None = None
    gated: bool = False
    expires: bool = False
    probe: bool = False
    raises: str | None = None


KINDS: Final[dict[str, Kind]] = {
    "look": Kind(idempotent=True),
    "wire": Kind(in_doubt="rerun"),
    "note": Kind(in_doubt="fail"),
    "book": Kind(in_doubt="ask"),
    "pay": Kind(),
    "check": Kind(probe=True),
    "boom": Kind(in_doubt="rerun", raises="error"),
    "trip": Kind(in_doubt="rerun", raises="propagating"),
    "ask": Kind(gated=True, in_doubt="ask"),
    "sign": Kind(gated=True, idempotent=True, expires=True),
}

FAILS: Final = "~"


@dataclass(frozen=True)
class Planned:
    """A call that a program makes."""

    id: str
    tool: str

    @property
    def kind(self) -> Kind:
        """What its tool is like."""
        return KINDS[self.tool]


def name_of(text: str) -> str:
    """Return the name of an input."""
    return text.partition(":")[0]


def steps_of(text: str) -> list[str]:
    """Return the responses with calls that an input asks for."""
    program = text.partition(":")[2].strip()
    return program.split("/") if program else []


def calls_at(text: str, number: int) -> list[Planned]:
    """Return the calls of the n-th response to an input, from 0; none: it is the last one."""
    steps = steps_of(text)
    if number >= len(steps):
        return []
    tools = steps[number].removeprefix(FAILS).split("+")
    return [Planned(f"{name_of(text)}.{number}.{place}", tool) for place, tool in enumerate(tools)]


def fails_at(text: str, number: int) -> bool:
    """Whether the model fails when it is asked for this response the first time."""
    steps = steps_of(text)
    return number < len(steps) and steps[number].startswith(FAILS)


def said_at(text: str, number: int) -> str:
    """Return the text of the n-th response."""
    return "" if calls_at(text, number) else f"did {name_of(text)}"


def place_of(inputs: Sequence[str], counts: Sequence[int], step: int) -> tuple[str, int]:
    """Return the input that a response follows, and its number among the responses to that one.

    Args:
        inputs: The texts of the turn's inputs.
        counts: For each response up to this one: how many inputs its request held.
        step: Which response of the turn.
    """
    count = counts[step]
    return inputs[count - 1], sum(earlier == count for earlier in counts[:step])


_OFTEN: Final = tuple(KINDS) + 3 * ("pay",) + 2 * ("ask", "sign", "book")
_tools = st.sampled_from(_OFTEN)
_fails = st.sampled_from([""] * 7 + [FAILS])
_steps = st.tuples(_fails, st.lists(_tools, min_size=1, max_size=3).map("+".join)).map("".join)
programs = st.lists(_steps, max_size=2).map("/".join)
"""Programs, without the name of their input."""
