"""The names of the keys. They are part of the stored layout: `index.lua` makes the same ones."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from perdure.backend import Part, conversation_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.backend import Key

TAGS = tuple(f"{number:02o}pd" for number in range(64))
"""The hash tags. Those letters behind the number spread the tags evenly over the slots of a cluster, one in each 64th."""


class Keys:
    """The keys of one namespace.

    Attributes:
        prefix: What all of them begin with; the colon at its end keeps a namespace from being the prefix of another.
        tags: The hash tags of the indexes: on a single server there is one of each, without a tag.
    """

    def __init__(self, namespace: str, *, cluster: bool) -> None:
        """Name the keys of a namespace, on a cluster or on a single server."""
        self.prefix = f"perdure:{namespace}:"
        self.tags: Sequence[str] = TAGS if cluster else ("",)
        self._cluster = cluster

    def journal(self, part: str, name: str) -> bytes:
        """Return the key that holds a journal."""
        return f"{self.prefix}{{{tag_of(name)}}}:{part}:{name}".encode()

    def conversation(self, name: str) -> list[bytes]:
        """Return the journals that a conversation may have besides its approvals, then all indexes they may be in."""
        conversation, tag = conversation_of(name), self.index_tag(name)
        names = (Part.SESSIONS, conversation), (Part.RUNS, conversation), (Part.RUNS, f"{conversation}.run")
        indexes = [key for part in Part for key in (self.index(part, tag), self.due(part, tag))]
        return [*(self.journal(part, name) for part, name in names), *indexes]

    def index_tag(self, name: str) -> str:
        """Return the tag of the indexes that an id is in."""
        return tag_of(name) if self._cluster else ""

    def index(self, part: str, tag: str) -> bytes:
        """Return the key of an index."""
        return f"{self.prefix}{f'{{{tag}}}:' if tag else ''}index:{part}".encode()

    def due(self, part: str, tag: str) -> bytes:
        """Return the key of the list of what is due to expire."""
        return f"{self.prefix}{f'{{{tag}}}:' if tag else ''}due:{part}".encode()

    def of(self, key: Key) -> tuple[bytes, bytes]:
        """Return the keys that a write of a journal touches."""
        return self.journal(key.part, key.id), self.index(key.part, self.index_tag(key.id))


@lru_cache(maxsize=4096)
def tag_of(name: str) -> str:
    """Return the hash tag of the conversation that an id belongs to: a digest, the same that the scripts make."""
    digest = 0
    for byte in conversation_of(name).encode():
        digest = (31 * digest + byte) % 65521
    return TAGS[digest % len(TAGS)]
