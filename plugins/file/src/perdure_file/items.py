"""The items that a read answers: pieces of the file, taken apart when somebody looks at them."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple, overload

from perdure.backend import DecodableItems, Record
from perdure_file.lines import decode_items, read_items
from perdure_file.reports import damage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Piece(NamedTuple):
    """A piece of a file that ends with whole writes.

    Attributes:
        data: The piece.
        start: Where they begin in it.
        items: How many items they have, as their commits say.
    """

    data: bytes
    start: int
    items: int


class Items(DecodableItems):
    """Items as they stand in the file, which has been checked."""

    def __init__(self, pieces: list[Piece], first: int, count: int, where: str) -> None:
        """Take pieces that follow one another, how many of their items to skip, and how many come then."""
        self._pieces, self._window, self._count, self._where = pieces, (first, first + count), count, where
        self._items: list[bytes] | None = None

    def decoded(self) -> Iterator[Record | bytes]:
        """Decode each piece in one call; what does not let itself be decoded so, and what is no object, stays as it is."""
        if self._items is not None:
            return iter(self._items)
        return islice(chain.from_iterable(_decoded(self._pieces[::-1], self._where)), *self._window)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        return self._all()[index]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == (other._all() if isinstance(other, Items) else other)

    __hash__ = None  # type: ignore[assignment]  # reason: like a list

    def _all(self) -> list[bytes]:
        if self._items is None:
            items = chain.from_iterable(_encoded(piece, self._where) for piece in self._pieces)
            self._items = list(islice(items, *self._window))
            self._pieces = []
        return self._items


def _decoded(pieces: list[Piece], where: str) -> Iterator[Sequence[Record | bytes]]:
    """Decode pieces, the last one first, and let each go."""
    while pieces:
        piece = pieces.pop()
        found = decode_items(memoryview(piece.data)[piece.start :], piece.items)
        yield _encoded(piece, where) if found is None else found


def _encoded(piece: Piece, where: str) -> list[bytes]:
    items = read_items(piece.data, piece.start)
    if len(items) != piece.items:
        raise damage(where, "the number of its items is not as it was written")
    return items
