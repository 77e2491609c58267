"""Several answers of one request at once."""

import asyncio
import gc
import weakref

import pytest

from kvactors.actors.frontends.server.wire.together import all_of


class Answer:
    """What somebody holds."""


def test_what_the_others_returned_is_held_by_nobody_once_one_fails() -> None:
    seen = list[weakref.ref[Answer]]()
    opened = asyncio.Event()

    async def opens() -> Answer:
        answer = Answer()
        seen.append(weakref.ref(answer))
        opened.set()
        return answer

    async def is_refused() -> Answer:
        await opened.wait()
        raise ValueError("it is too much")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="too much") as caught:
            asyncio.run(all_of([opens, is_refused]))
        # The error is still there, as where it becomes an answer.
        assert caught.value
        assert [answer() for answer in seen] == [None]
    finally:
        gc.enable()
