"""`perdure reencrypt`: write again, by the first key of the key ring, what other keys or none have written."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.codecs import VARIABLE, codec_of_command
from perdure.cli.exit_codes import ExitCode
from perdure.cli.output import CommandError, JsonOption, print_json, say
from perdure.cli.store_url import StoreOption, opened

if TYPE_CHECKING:
    from perdure.at_rest.reencryption import ReencryptReport


def reencrypt(
    store: StoreOption = None,
    mend: Annotated[
        bool,
        typer.Option(
            "--mend", help="Accept that records of transcripts are gone, as after doctor --salvage. Look at them first."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Encrypt everything again that the first key of the key ring has not encrypted.

    The codec is that of --codec or PERDURE_CODEC; its key ring has the new key first, and the old ones behind it. It can be
    cut anywhere and be run again, and other processes may work on the store meanwhile. Exits with 1 if something was left.
    """
    if codec_of_command() is None:
        raise CommandError("no codec is given", f"Give perdure --codec, or set {VARIABLE}.", ExitCode.CANNOT)
    report = asyncio.run(_reencrypt(store, mend=mend))
    code = ExitCode.FOUND if report.kept else ExitCode.DONE
    if as_json:
        print_json("reencrypt", asdict(report), code=code)
    else:
        _tell(report)
    if code:
        raise typer.Exit(code)


async def _reencrypt(url: str | None, *, mend: bool) -> ReencryptReport:
    from perdure.at_rest.reencryption import reencrypt as reencrypted  # --help does without

    async with opened(url) as store:
        return await reencrypted(store, mend=mend)


def _tell(report: ReencryptReport) -> None:
    counts = f"{len(report.sessions)} sessions, {len(report.runs)} turn journals and {len(report.approvals)} approvals"
    say(f"Encrypted again: {counts}. Nothing had to be done for {report.current}.")
    for what, why in report.kept.items():
        say(f"Left: {what}: {why}")
    if report.kept:
        say("Keep the old keys, and run it again.")
