"""`perdure worker`: run an agent's turns that nobody runs, until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.bundle import AgentStore
from perdure.cli.agent_target import AgentArgument, load_agent
from perdure.cli.codecs import codec_of_command
from perdure.cli.store_url import NoStoreError, OwnStoreOption, require_existing
from perdure.contracts.store import describe
from perdure.errors import InvalidArgumentError, StoreUnavailableError
from perdure.opening import open_store
from perdure.runtime.workers.sweeps import log, logger

if TYPE_CHECKING:
    from perdure.runtime.workers.worker import Worker


@dataclass(frozen=True)
class _Options:
    target: str
    url: str | None
    settings: dict[str, Any]


def worker(
    agent: AgentArgument,
    store: OwnStoreOption = None,
    concurrency: Annotated[int, typer.Option(help="How many turns run at a time.")] = 4,
    poll: Annotated[float, typer.Option(help="Seconds between sweeps.")] = 1.0,
    slow_poll: Annotated[float, typer.Option(help="Seconds between looks at turns that wait for approvals.")] = 10.0,
    max_attempts: Annotated[
        int, typer.Option(help="A turn that so many attempts in a row brought no further is set aside.")
    ] = 5,
) -> None:
    """Take an agent's turns that nobody runs, from any host, and finish them.

    SIGTERM or SIGINT stops it: it gives its turns back, and others may take them at once. A second signal ends it at
    once.
    """
    _show_log()
    settings = {
        "concurrency": concurrency,
        "poll": _duration("--poll", poll),
        "slow_poll": _duration("--slow-poll", slow_poll),
        "max_attempts": max_attempts,
    }
    asyncio.run(_main(_Options(agent, store, settings)))


def _duration(option: str, seconds: float) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(option, "must be a number of seconds") from error


def _show_log() -> None:
    """Print what the worker logs, a line each."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


# --- the process ---


class _Stop:
    """What a signal does: the first one stops the worker, or whatever comes before it runs; a second one exits."""

    def __init__(self) -> None:
        self.asked = False
        self.worker: Worker | None = None
        self.task: asyncio.Task[None] | None = None

    def __call__(self, number: int) -> None:
        if self.asked:
            os._exit(128 + number)
        self.asked = True
        log(logging.INFO, "worker stopping", signal=signal.Signals(number).name)
        if self.worker is not None:
            self.worker.stop()
        elif self.task is not None:
            self.task.cancel()


async def _main(options: _Options) -> None:
    """Work until a signal says stop."""
    stop = _Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Where the loop cannot do that, an interrupt cancels all tasks, which gives the turns back too.
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
    stop.task = asyncio.create_task(_work(options, stop))
    try:
        await stop.task
    except asyncio.CancelledError:
        if not stop.asked:
            raise


async def _work(options: _Options, stop: _Stop) -> None:
    from perdure.runtime.workers.worker import Worker  # --help does without

    agent = await load_agent(options.target)
    store = None if options.url is None else await _opened(options.url)
    try:
        stop.worker = Worker(agent, store=store, **options.settings)
        await stop.worker.run()
    finally:
        if store is not None:
            await store.close()


async def _opened(url: str) -> AgentStore:
    """Open the store; one that is away, or that nobody has made yet, delays that, nothing more."""
    rest = 1.0
    while True:
        try:
            require_existing(url)
            return await open_store(url, codec=codec_of_command())
        except (
            NoStoreError,
            StoreUnavailableError,
            OSError,
        ) as error:  # the last of a folder that cannot be looked into
            log(logging.WARNING, "the store cannot be opened", error=describe(error))
        await asyncio.sleep(rest)
        rest = min(rest * 2, 30.0)
