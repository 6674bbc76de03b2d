"""Time limits that share a timer end what `asyncio.timeout` would end, and nothing else."""

import asyncio

import pytest

from perdure_redis.deadlines import Deadline, Deadlines

pytestmark = pytest.mark.anyio


async def wait_in(deadlines: Deadlines) -> None:
    with Deadline(deadlines):
        await asyncio.Event().wait()


async def test_what_is_late_times_out_and_its_task_goes_on() -> None:
    deadlines = Deadlines(0)
    with pytest.raises(TimeoutError):
        await wait_in(deadlines)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert not deadlines.running


async def test_what_is_in_time_shares_one_timer() -> None:
    deadlines = Deadlines(3600)
    with Deadline(deadlines):
        timer = deadlines.timer
    for _ in range(3):
        with Deadline(deadlines):
            assert len(deadlines.running) == 1
    assert deadlines.timer is timer is not None
    assert not deadlines.running


async def test_who_began_later_has_as_long() -> None:
    deadlines = Deadlines(0)
    with Deadline(deadlines):  # arms the timer, and is over before it rings
        deadlines.seconds = 3600
    later = asyncio.create_task(wait_in(deadlines))
    await asyncio.sleep(0)
    (block,) = deadlines.running
    deadlines.look()
    assert deadlines.timer is not None
    assert deadlines.timer.when() == block.at
    await asyncio.sleep(0)
    assert not later.done()
    later.cancel()
    with pytest.raises(asyncio.CancelledError):
        await later
    assert not deadlines.running


async def test_whom_somebody_else_cancels_too_is_cancelled() -> None:
    deadlines = Deadlines(0)
    task = asyncio.create_task(wait_in(deadlines))
    await asyncio.sleep(0)
    deadlines.look()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_an_error_of_the_block_is_its_own() -> None:
    with pytest.raises(KeyError), Deadline(Deadlines(3600)):
        raise KeyError
