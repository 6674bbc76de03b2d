"""What the conformance kit may do to a directory. Nothing but the kit comes here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from perdure_file.lines import FORMAT
from perdure_file.names import to_name
from perdure_file.power import Synced

if TYPE_CHECKING:
    from perdure.backend import StoreURL


def helpers(url: StoreURL) -> dict[str, Callable[[StoreURL], object]]:
    """Return what can be done to the directories of a URL, in a namespace that is the kit's own.

    A loss of power takes from a whole directory, so each place must have a fresh one, by `{dir}` or `{place}`.
    """
    offered: dict[str, Callable[[StoreURL], object]] = {"damage": damage, "newer_schema": newer_schema}
    if "{dir}" in url.path or "{place}" in url.path:
        offered["power_loss"] = lambda url: Synced(Path(url.path)).cut
    return offered


def damage(url: StoreURL) -> None:
    """Overwrite every journal with what is none."""
    for file in _journals(url):
        file.write_bytes(b"this is no journal\n" * 50)


def newer_schema(url: StoreURL) -> Callable[[], None]:
    """Mark every journal as a newer release's, and return what takes the marks back."""
    text = b'{"perdure":"file","format":%d' % (FORMAT + 1)
    opening = b'%s,"check":"%08x"}\n' % (text, crc32(text))
    before = {file: file.read_bytes() for file in _journals(url)}
    for file, content in before.items():
        file.write_bytes(opening + content.partition(b"\n")[2])

    def undo() -> None:
        for file, content in before.items():
            file.write_bytes(content)

    return undo


def _journals(url: StoreURL) -> list[Path]:
    """Return the files of a namespace. Others may keep theirs beside it."""
    return sorted(Path(url.path, to_name(url.namespace)).rglob("*.jsonl"))
