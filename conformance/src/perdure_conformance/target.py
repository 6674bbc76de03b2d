"""What is tested: how to open the store at a place, and how another process opens it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from perdure.clock import SYSTEM_CLOCK, Clock
from perdure_conformance.from_plugins import plugin_helpers

if TYPE_CHECKING:
    from perdure_conformance.parts import Stores


@dataclass(frozen=True)
class Place:
    """Where a law keeps its data.

    Attributes:
        name: A name that no other place has, of lower-case letters and digits.
        path: Where `directory` is, once somebody has asked for it.
        namespace: The tenant.
        max_record: The limit of one record in bytes, or `None` for the store's own.
        clock: The clock that a store at the place must go by.
    """

    name: str
    path: Path
    namespace: str = "default"
    max_record: int | None = None
    clock: Clock = SYSTEM_CLOCK

    @cached_property
    def directory(self) -> Path:
        """A directory of the place's own, made when it is first asked for, and removed when the law is over."""
        # Another process has it from whoever started it, and may be killed at what it changes.
        if not self.path.exists():
            self.path.mkdir(exist_ok=True)
        return self.path


Opener: TypeAlias = "Callable[[Place, Clock], Awaitable[Stores]]"


PowerLoss: TypeAlias = "Callable[[Place], Callable[[], Callable[[], None]]]"
"""How a loss of power is played, in three steps: what a close writes must not count.

Called with a place before it is first opened, it begins to note what is synced there, and returns a function. That is called
while the store is open, at the instant when the power goes, and returns another function. That one is called when the store
is closed, and drops all that was not synced at the instant.
"""


@dataclass(frozen=True)
class Target:
    """A store under test.

    Attributes:
        name: How reports call it.
        opener: Opens the store at a place with a clock: empty the first time, the same data when it is asked again.
        url: Returns what another process passes to `perdure.open_store` for a place; `None`: no process can.
        reopens: Whether the opener finds the data of a place again while this process lives.
        namespaces: Whether the opener heeds `Place.namespace`.
        limits: Whether the opener heeds `Place.max_record`.
        damage: Spoils what is stored at a closed place, beyond reading; `None`: the laws about damage are not run.
        kill_server: Kills the server of a place as `kill -9` does, while stores are open there, and returns when it serves
            again; `None`: there is none, or no way.
        newer_schema: Marks what is stored at a closed place as a newer release's, and returns what takes the mark back, or
            `None`; `None` in its place: the law about newer schemas is not run.
        power_loss: Begins to note what a place syncs, before it is first opened; `None`: power loss is not tested. See `PowerLoss`.
        template: The URL that `from_url` made the target of.
    """

    name: str
    opener: Opener
    url: Callable[[Place], str] | None = None
    reopens: bool = True
    namespaces: bool = True
    limits: bool = True
    damage: Callable[[Place], None] | None = None
    kill_server: Callable[[Place], None] | None = None
    newer_schema: Callable[[Place], Callable[[], None] | None] | None = None
    power_loss: PowerLoss | None = None
    template: str | None = None

    @classmethod
    def from_url(cls, url: str, *, name: str | None = None, damage: Callable[[Place], None] | None = None) -> Target:
        """Make the target that a store URL names.

        Args:
            url: A store URL. `{dir}` in it becomes a fresh directory and `{place}` a fresh name for each place; a URL
                with neither gets a fresh namespace for each place.
            name: How reports call it; `None`: the scheme.
            damage: Spoils what is stored at a closed place; `None`: as the store's plugin does, or else every file of the
                place is overwritten, where the URL says `{dir}`.

        What else can be done to the store, the hook `conformance_helpers` of its plugin says.

        Raises:
            TypeError: The hook offers something that the kit does not know.
        """

        def locate(place: Place) -> str:
            return located(url, place)

        async def opener(place: Place, clock: Clock) -> Stores:
            import perdure

            return await perdure.open_store(locate(place), clock=clock)

        helpers: dict[str, Any] = {"damage": overwrite_files} if "{dir}" in url else {}
        helpers |= plugin_helpers(url, locate)
        if damage is not None:
            helpers["damage"] = damage
        return cls(name or url.partition(":")[0], opener, url=locate, template=url, **helpers)


def located(url: str, place: Place) -> str:
    """Return the URL of a place: with its directory, its name, its namespace and its limit."""
    options = []
    fresh = "{dir}" in url or "{place}" in url
    namespace = place.namespace if fresh else f"{place.name}-{place.namespace}"
    if namespace != "default":
        options.append(f"namespace={namespace}")
    if place.max_record is not None:
        options.append(f"max_record={place.max_record}")
    located = url.replace("{dir}", quote(str(place.directory))) if "{dir}" in url else url
    located = located.replace("{place}", place.name)
    return located + ("&" if "?" in located else "?") + "&".join(options) if options else located


def overwrite_files(place: Place) -> None:
    """Overwrite every file of a closed place with what no store can read."""
    for file in place.directory.rglob("*"):
        if file.is_file():
            file.write_bytes(b"spoilt by the conformance kit\n" * 200)
