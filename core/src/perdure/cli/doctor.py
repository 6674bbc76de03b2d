"""`perdure doctor`: whether a store can be relied on, and whether what it holds is whole."""

from __future__ import annotations

import asyncio
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, TypeAlias

import typer
from rich.status import Status

from perdure import plugins
from perdure.cli.codecs import codec_of_command
from perdure.cli.examination import Examination
from perdure.cli.exit_codes import ExitCode
from perdure.cli.output import JsonOption, console, print_json, say
from perdure.cli.store_url import StoreOption, UrlArgument, one_of, require_existing
from perdure.contracts.findings import Finding
from perdure.contracts.urls import StoreURL
from perdure.errors import UnsupportedOperationError
from perdure.journal.contract import Journal, Part
from perdure.opening import open_store

LookAtStore: TypeAlias = Callable[..., Iterable[Finding]]
"""The function `doctor(url, *, salvage)` that a plugin module may have: it looks at what the store is made of."""
ReadOnly: TypeAlias = Callable[[StoreURL], Journal]
"""The function `read_only(url)` that it may have: a journal, not yet open, that makes and migrates nothing."""


@dataclass(slots=True)
class Diagnosis:
    """What was found, and how much was looked at.

    Attributes:
        findings: What was found.
        counts: How many sessions, records, runs and approvals were read and found to be whole; empty: none were read.
        unread: How many were not read for want of the codec or key that wrote them.
    """

    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    unread: int = 0

    @property
    def damaged(self) -> bool:
        """Whether damage is left."""
        return any(finding.damaged for finding in self.findings)


def doctor(
    url: UrlArgument = None,
    store: StoreOption = None,
    salvage: Annotated[
        bool,
        typer.Option(
            "--salvage", help="Recover what is whole in damaged data, where the store can. The damaged data is kept."
        ),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Take warnings for findings: exit with 1.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at a store's settings, read everything in it, and exit with 1 if something is damaged.

    Without --salvage nothing is changed: a store that is not there is not made, and none is migrated.
    """
    text = one_of(url, store)
    found = _diagnose(text, salvage=salvage)
    failed = found.damaged or found.unread or (strict and any(finding.warning for finding in found.findings))
    code = ExitCode.FOUND if failed else ExitCode.DONE
    if as_json:
        findings = [finding._asdict() for finding in found.findings]
        print_json("doctor", asdict(found) | {"findings": findings, "damaged": found.damaged}, code=code)
    else:
        _print(found, salvage=salvage)
    raise typer.Exit(code)


def _diagnose(text: str, *, salvage: bool) -> Diagnosis:
    plugin = plugins.load(StoreURL.parse(text).scheme)
    url = plugin.check(StoreURL.parse(text))
    module = pkgutil.resolve_name(plugin.installed.module)
    look: LookAtStore | None = getattr(module, "doctor", None)
    read_only: ReadOnly | None = getattr(module, "read_only", None)
    require_existing(text, or_empty=read_only is not None)
    found = Diagnosis()
    if look is not None:
        found.findings.extend(Finding(*finding) for finding in look(url, salvage=salvage))
    elif salvage:
        raise UnsupportedOperationError(f"the plugin of {url.scheme!r}", "salvage")
    asyncio.run(_read_opened(text, found) if read_only is None else _read(read_only(url), found))
    return found


async def _read(journal: Journal, found: Diagnosis) -> None:
    """Read all that is in a journal that makes nothing."""
    codec = codec_of_command()
    if codec is not None:
        from perdure.at_rest.encoded_journal import EncodedJournal  # most stores have no codec

        journal = EncodedJournal(journal, codec)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of settings, which were told before
            await journal.open()
        await _examine(journal, tuple(Part), found)
    finally:
        await journal.close()


async def _read_opened(text: str, found: Diagnosis) -> None:
    """Open a store as an application does, since its plugin has no other way, and read what is in its journals."""
    async with open_store(text, codec=codec_of_command()) as store:
        for name, part in (("sessions", Part.SESSIONS), ("checkpoints", Part.RUNS), ("approvals", Part.APPROVALS)):
            journal = getattr(getattr(store, name), "journal", None)
            if isinstance(journal, Journal):
                await _examine(journal, (part,), found)
            elif name in store:
                problem = f"{getattr(store, name).title}: what it holds was not read, since it is no journal"
                found.findings.append(Finding(problem, warning=True))


async def _examine(journal: Journal, parts: Sequence[Part], found: Diagnosis) -> None:
    """Read parts of an open journal, and add what is wrong with them."""
    examination = Examination(journal, [finding.text for finding in found.findings if finding.damaged], parts)
    with _progress() as read:
        async for finding in examination.findings():
            read()
            if finding is not None:
                found.findings.append(finding)
    found.counts |= examination.counts
    found.unread += examination.unread


@contextmanager
def _progress() -> Iterator[Callable[[], None]]:
    """Tell on a terminal how many keys were read; the function is called after each."""
    shown = console(stderr=True)
    count = 0
    with Status("reading", console=shown) if shown.is_terminal else _nothing() as status:

        def read() -> None:
            nonlocal count
            count += 1
            if status is not None and count % 50 == 0:
                status.update(f"{count} keys read")

        yield read


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


def _print(found: Diagnosis, *, salvage: bool) -> None:
    for finding in found.findings:
        style = "red" if finding.damaged else "yellow" if finding.warning else None
        prefix = "DAMAGED  " if finding.damaged else "warning  " if finding.warning else "         "
        say(f"{prefix}{finding.text}", style=style)
    counts: dict[str, Any] = {name: found.counts.get(name, 0) for name in ("sessions", "records", "runs", "approvals")}
    if found.counts:
        names = "{sessions} sessions with {records} records, {runs} turn journals, {approvals} approvals"
        say(f"Whole: {names.format(**counts)}.")
    if found.unread:
        say(f"{found.unread} were not read: they are encrypted or compressed. Give perdure --codec.", style="yellow")
    if found.damaged:
        say("Damage is left." if salvage else "Damage was found.", style="bold red")
    else:
        say("No damage is left." if salvage else "No damage was found.", style="bold green")
