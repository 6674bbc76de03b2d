"""Reading JSON Lines that others wrote, where the last line may be torn and others may be damaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure import codec
from perdure.errors import ImportDataError
from perdure.interchange.notes import LEFT_OUT, Note

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        number: From 1.
        value: What it says.
        data: Its bytes, without the line end.
    """

    number: int
    value: Any
    data: bytes


def read_lines(lines: Iterable[bytes], notes: list[Note], *, strict: bool = True) -> Iterator[Line]:
    """Read JSON Lines. Empty lines are passed over.

    Args:
        lines: The lines, each with its line end, as a binary file gives them.
        notes: Gets a note of a torn last line, and of each damaged one that is passed over.
        strict: Whether a damaged line ends it, by an error.

    Raises:
        ImportDataError: A line other than a torn last one is no JSON; it names the line and where it begins.
    """
    offset = 0
    for number, raw in enumerate(lines, 1):
        data = raw.strip(b" \t\r\n")
        if data:
            try:
                value = codec.decode(data)
            except ValueError as error:
                deep = isinstance(error.__cause__, RecursionError)
                _damaged(
                    number, offset, raw, notes, "nested too deep to be read" if deep else "not JSON", strict=strict
                )
            else:
                yield Line(number, value, data)
        offset += len(raw)


def unusable(
    where: str, problem: str, hint: str = "Is the file of this format? On the command line --format names it."
) -> ImportDataError:
    """Return the error of what no passing over of damaged lines mends."""
    error = ImportDataError(where, problem)
    error.hint = hint
    return error


def _damaged(number: int, offset: int, raw: bytes, notes: list[Note], problem: str, *, strict: bool) -> None:
    where = f"line {number} (byte {offset})"
    if problem == "not JSON" and not raw.endswith(b"\n"):
        notes.append(Note(where, LEFT_OUT, f"the last line is torn: {len(raw)} bytes were left out"))
    elif strict:
        raise ImportDataError(where, f"is {problem}")
    else:
        notes.append(Note(where, LEFT_OUT, f"the line is {problem}: {len(raw)} bytes were left out"))
