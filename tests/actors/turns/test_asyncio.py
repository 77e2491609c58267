"""Turns under asyncio: awaited, streamed, cancelled; and a system that a loop begins and ends."""

import ast
import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from house import ROOT
from makers import OpenSystem

from kvactors.actors import AgentSystem, BlockingCall, Sampling, TurnTimeout
from kvactors.actors.testing import FaultyModel
from kvactors.core.errors import InvalidConfig, SystemStopped
from kvactors.core.testing.models import endless_grid

SHORT = Sampling(max_tokens=8)
ENDLESS = Sampling(max_tokens=5000)
WAIT = 60


@pytest.fixture
def system(open_system: OpenSystem) -> AgentSystem:
    """Keeps nothing."""
    return open_system(endless_grid, store=False)


# -- turns ---------------------------------------------------------------------------------


def test_asyncio_users_await_turns_and_streams(system: AgentSystem) -> None:
    agent = system.spawn("a")

    async def main() -> tuple[str, str]:
        replies = await asyncio.gather(*(agent.ask_async([n], sampling=SHORT) for n in range(1, 4)))
        assert len(replies) == 3
        text = ""
        async for piece in agent.stream_async([9], sampling=SHORT):
            text += piece.text
        return text, (await agent.ask([10], sampling=SHORT)).finish_reason

    text, finish = asyncio.run(main())

    assert finish == "length"
    assert agent.transcript().turns[-3].text == text


def test_cancelling_a_task_cancels_its_turn(system: AgentSystem) -> None:
    agent = system.spawn("a")

    async def main() -> None:
        stream = agent.stream_async([1], sampling=ENDLESS)
        await anext(stream)
        task = asyncio.create_task(agent.ask_async([2], sampling=ENDLESS))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stream.aclose()

    asyncio.run(main())

    assert system.wait_idle(WAIT)
    assert [turn.finish for turn in agent.transcript().turns] == [None, "cancelled"]


def test_a_stream_has_its_reply_once_it_has_ended(system: AgentSystem) -> None:
    agent = system.spawn("a")

    async def main() -> None:
        stream = agent.stream_async("hello", sampling=SHORT)
        with pytest.raises(BlockingCall, match="read the stream to its end"):
            _ = stream.reply
        text = "".join([piece.text async for piece in stream])
        assert (stream.reply.text, stream.reply.finish_reason) == (text, "length")

    asyncio.run(main())


def test_a_stream_that_is_closed_early_has_what_there_is(system: AgentSystem) -> None:
    agent = system.spawn("a")

    async def main() -> None:
        async with agent.stream_async("hello", sampling=ENDLESS) as stream:
            async for _ in stream:
                break
        assert stream.reply.finish_reason == "cancelled"

    asyncio.run(main())


def test_a_stream_whose_turn_fails_raises_that(open_system: OpenSystem) -> None:
    model = FaultyModel()
    agent = open_system(model, store=False).spawn("a")
    gate = model.hold()

    async def main() -> None:
        stream = agent.stream_async("hello", timeout=0.05)
        with pytest.raises(TurnTimeout):
            await anext(stream)
        with pytest.raises(TurnTimeout):
            _ = stream.reply

    asyncio.run(main())
    gate.set()


def test_a_stream_that_is_let_go_cancels_its_turn(system: AgentSystem) -> None:
    agent = system.spawn("a")

    async def main() -> None:
        async for _ in agent.stream_async("hello", sampling=ENDLESS):
            break

    asyncio.run(main())

    assert system.wait_idle(WAIT)
    assert agent.transcript().turns[-1].finish == "cancelled"


# -- systems -------------------------------------------------------------------------------


def test_a_loop_begins_and_ends_a_system(tmp_path: Path) -> None:
    async def main() -> tuple[int, ...]:
        async with AgentSystem(FaultyModel(), tmp_path / "store") as system:
            reply = await system.spawn("a").ask("hello", sampling=SHORT)
        with pytest.raises(SystemStopped):
            system.spawn("b")
        assert reply.cached.get()
        return reply.token_ids

    ids = asyncio.run(main())

    with AgentSystem(FaultyModel(), tmp_path / "store") as again:
        assert again.spawn("a").transcript().token_ids[-len(ids) :] == ids


def test_the_loop_goes_on_while_a_system_ends(tmp_path: Path) -> None:
    model = FaultyModel()

    async def main() -> str:
        async with AgentSystem(model, tmp_path / "store") as system:
            gate = model.hold()
            future = system.spawn("a").ask("hello", sampling=SHORT)
            # Only a loop that goes on can open it.
            asyncio.get_running_loop().call_later(0.01, gate.set)
        return str(future.get().finish_reason)

    assert asyncio.run(main()) == "length"


def test_the_loop_goes_on_while_the_page_s_program_forks_on_a_thread(
    open_system: OpenSystem,
) -> None:
    page = (ROOT / "actors/README.md").read_text(encoding="utf-8")
    shown = re.search(r"```python\n(.*asyncio\.to_thread.*\n)```", page)
    assert shown is not None
    program = compile(shown[1], "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    model = FaultyModel()
    names: dict[str, Any] = {"asyncio": asyncio, "system": open_system(model, store=False)}

    async def main() -> None:
        gate = model.hold()
        names["system"].spawn("alice").tell("hello", sampling=SHORT)
        # Only a loop that goes on can open it.
        asyncio.get_running_loop().call_later(0.01, gate.set)
        await eval(program, names)

    asyncio.run(main())

    assert len(names["twin"].transcript().turns) == 2


def test_a_cancelled_task_cancels_the_turns_of_its_system(tmp_path: Path) -> None:
    turns = []

    async def use() -> None:
        async with AgentSystem(endless_grid, tmp_path / "store") as system:
            stream = system.spawn("a").stream_async("hello", sampling=ENDLESS)
            await anext(stream)
            turns.append(stream)
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(use())
        while not turns:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert turns[0].reply.finish_reason == "cancelled"


def test_a_deterministic_system_is_not_for_a_loop() -> None:
    async def main() -> None:
        async with AgentSystem(FaultyModel(), store=False, deterministic=True):
            pass

    with pytest.raises(InvalidConfig, match="use `with`"):
        asyncio.run(main())
