"""Pieces of several items: all of them, in order, the first at once."""

import asyncio
from collections.abc import AsyncIterator

from kvactors.actors.cluster.ray.gathering import gathered, scattered


async def pieces(items: AsyncIterator[bytes]) -> list[list[bytes]]:
    return [scattered(piece) async for piece in gathered(items)]


async def numbers(count: int, seconds: float = 0) -> AsyncIterator[bytes]:
    for number in range(count):
        yield str(number).encode()
        await asyncio.sleep(seconds)


def test_all_items_come_in_order_and_in_few_pieces() -> None:
    found = asyncio.run(pieces(numbers(500)))

    assert [item for piece in found for item in piece] == [str(n).encode() for n in range(500)]
    assert len(found) < 100


def test_a_slow_item_does_not_wait_for_the_next() -> None:
    async def first() -> bytes:
        async for piece in gathered(numbers(2, seconds=3600)):
            return piece
        raise AssertionError("nothing came")

    assert scattered(asyncio.run(asyncio.wait_for(first(), 30))) == [b"0"]


def test_silence_is_told_of_with_empty_pieces() -> None:
    async def second() -> bytes:
        found = gathered(numbers(2, seconds=3600))
        await anext(found)
        return await anext(found)

    assert scattered(asyncio.run(asyncio.wait_for(second(), 30))) == []


def test_nothing_is_no_piece() -> None:
    assert asyncio.run(pieces(numbers(0))) == []
