"""Messages that stand in several lists, as the one sequence that a model is asked with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, overload

from perdure.runtime.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator


class JoinedMessages(Sequence["Message"]):
    """The messages of several lists, one list behind the other, as they are when this is made.

    No list is copied, so that thousands of messages cost what a few do. The lists may grow afterwards, which does not show
    here; they never lose what they hold. What is taken out belongs to whoever takes it: adapters of models mark parts as
    they send them.
    """

    def __init__(self, *lists: Sequence[Message]) -> None:
        self._parts: list[tuple[Sequence[Message], int]] = []
        for messages in lists:
            if isinstance(messages, JoinedMessages):
                self._parts.extend(messages._parts)
            else:
                self._parts.append((messages, len(messages)))
        self._length = sum(map(len, lists))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Message]:
        return map(Message.for_others, self._shared())

    def _shared(self) -> Iterator[Message]:
        return chain.from_iterable(islice(messages, length) for messages, length in self._parts)

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, place: int | slice) -> Message | tuple[Message, ...]:
        if isinstance(place, slice):
            return tuple([self[one] for one in range(self._length)[place]])
        left = place if place >= 0 else self._length + place
        for messages, length in self._parts:
            if 0 <= left < length:
                return messages[left].for_others()
            left -= length
        raise IndexError(f"there is no message {place} of {self._length}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self._shared()) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # reason: messages hold dictionaries, so it has no hash, as their tuple has none

    def __repr__(self) -> str:
        return repr(tuple(self._shared()))
