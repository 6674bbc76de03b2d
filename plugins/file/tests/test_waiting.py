"""Queues of writers: in order, left at once, and never stuck."""

import asyncio

import pytest

from perdure.backend import Key, Part, StoreUnavailableError
from perdure_file.directory import Place
from perdure_file.waiting import Patience, Queues

pytestmark = pytest.mark.anyio

PLACE = Place(Key(Part.SESSIONS, "s"))


async def test_a_turn_that_is_given_to_somebody_who_is_cancelled_just_then_goes_to_the_next() -> None:
    queues = Queues()
    first = await queues.join(PLACE, Patience(60))
    second, third, fourth = (asyncio.create_task(queues.join(PLACE, Patience(60))) for _ in range(3))
    await asyncio.sleep(0)
    third.cancel()
    queues.leave(first)
    second.cancel()
    queues.leave(await fourth)
    assert second.cancelled()
    assert third.cancelled()
    assert queues._waiting == {}


async def test_who_waits_for_too_long_leaves_the_queue() -> None:
    queues = Queues()
    first = await queues.join(PLACE, Patience(0))
    with pytest.raises(StoreUnavailableError, match="lock"):
        await queues.join(PLACE, Patience(0))
    await queues.join(Place(Key(Part.RUNS, "s")), Patience(0))
    queues.leave(first)
    queues.leave(await queues.join(PLACE, Patience(0)))


async def test_the_end_comes_behind_all_who_wait() -> None:
    queues, order = Queues(), list[int]()

    async def write(number: int) -> None:
        queue = await queues.join(PLACE, Patience(60))
        order.append(number)
        await asyncio.sleep(0)
        queues.leave(queue)

    writes = [asyncio.create_task(write(number)) for number in range(3)]
    await asyncio.sleep(0)
    await queues.end()
    assert order == [0, 1, 2]
    assert queues._waiting == {}
    await asyncio.gather(*writes)


async def test_a_wait_in_a_thread_ends_when_it_is_given_up() -> None:
    patience = Patience(60)

    def take() -> bool:
        patience.give_up()
        return False

    with pytest.raises(StoreUnavailableError, match="lock"):
        patience.wait(take, PLACE)
