"""Circles through what behaviours let run on other threads, and asyncio there."""

import asyncio
from typing import Any

import pytest
from behaviours import Does, DoesBlocking, asks, seven, spawn

from kvactors.actors import AgentBehaviour, AgentSystem, AskCycle

WAIT = 60


async def blocks_in(me: AgentBehaviour) -> Any:
    return await me.run_blocking(lambda: me.ask("a", seven).get())


async def blocks_for(me: AgentBehaviour) -> Any:
    return await me.run_blocking(me.ask("a", seven).get)


async def leaves_it_to_a_thread(me: AgentBehaviour) -> Any:
    return me.run_blocking(me.ask("a", seven).get)


async def awaits_what_is_made_of_it(me: AgentBehaviour) -> Any:
    return await me.ask("a", seven).map(str)


async def blocks_for_what_is_made_of_it(me: AgentBehaviour) -> Any:
    return await me.run_blocking(me.ask("a", seven).join(me.ask("a", seven)).get)


@pytest.mark.parametrize(
    "back",
    [
        blocks_in,
        blocks_for,
        leaves_it_to_a_thread,
        awaits_what_is_made_of_it,
        blocks_for_what_is_made_of_it,
    ],
)
def test_what_blocks_elsewhere_waits_in_circles_no_more_than_others(
    system: AgentSystem, back: Any
) -> None:
    a, _ = spawn(system, a=Does(), b=Does())

    with pytest.raises(AskCycle, match=r"'a' -> 'b' -> 'a'|'b' -> 'a' -> 'b'"):
        a.request(asks("b", back)).get(timeout=WAIT)
    assert system.wait_idle(WAIT)


def test_what_blocks_elsewhere_and_nobody_awaits_closes_no_circle(system: AgentSystem) -> None:
    a, _ = spawn(system, a=Does(), b=Does())
    begun = list[Any]()

    async def begins(me: AgentBehaviour) -> None:
        begun.append(me.run_blocking(me.ask("a", seven).get))

    assert a.request(asks("b", begins)).get(timeout=WAIT) is None
    assert begun[0].get(timeout=WAIT) == 7


def test_asyncio_may_run_within_what_blocks(system: AgentSystem) -> None:
    a, b = spawn(system, a=DoesBlocking(), b=Does())

    async def both(me: AgentBehaviour) -> Any:
        return await asyncio.gather(b.request(seven), me.ask("b", seven))

    assert a.request(lambda me: asyncio.run(both(me))).get(timeout=WAIT) == [7, 7]
