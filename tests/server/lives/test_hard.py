"""What happens at bad moments: who meets before anybody answers, and who leaves then."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from chats import WAIT, asked, post, url
from inside import system_of
from seeded import bug, seeded

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.identity.index import Index
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.testing import FaultyModel


class Planning:
    """Holds the planning of turns until `go_on` is set; `reached` once one is held."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.held = bug(Index, "places")(self._hold)

    def _hold(self, places: Any) -> Any:
        def held(*args: Any) -> Any:
            self.reached.set()
            assert self.go_on.wait(WAIT)
            return places(*args)

        return held


@pytest.fixture
def planning() -> Iterator[Planning]:
    held = Planning()
    with seeded(held.held):
        yield held


async def counted(server: Server, line: str) -> None:
    """Return when the server counts so."""
    async with httpx.AsyncClient(timeout=WAIT) as client, asyncio.timeout(WAIT):
        while f"{line}\n" not in (await client.get(f"{server.url}/metrics")).text:
            await asyncio.sleep(0.01)


def answered(server: Server) -> int:
    """How many tokens all agents remember."""
    agents = system_of(server).agents()
    return sum(len(agent.transcript().token_ids) for agent in agents)


def test_a_request_that_is_resent_before_anybody_answers_says_who_does(
    server: Server, planning: Planning
) -> None:
    async def both() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=WAIT) as client:
            asking = asyncio.create_task(client.post(url(server), json=asked("hello")))
            await asyncio.to_thread(planning.reached.wait, WAIT)
            again = asyncio.create_task(client.post(url(server), json=asked("hello")))
            await counted(server, "kvactors_attached_total 1.0")
            planning.go_on.set()
            return [await asking, await again]

    one, other = asyncio.run(both())

    assert other.headers["x-kvactors-agent"] == one.headers["x-kvactors-agent"]
    assert other.json()["id"] == one.json()["id"] != "chatcmpl-"


def test_of_two_that_ask_the_same_one_leaves_before_anybody_answers(
    server: Server, planning: Planning
) -> None:
    async def one_leaves() -> httpx.Response:
        async with httpx.AsyncClient(timeout=WAIT) as client:
            asking = asyncio.create_task(client.post(url(server), json=asked("hello")))
            await asyncio.to_thread(planning.reached.wait, WAIT)
            leaving = asyncio.create_task(client.post(url(server), json=asked("hello")))
            await counted(server, "kvactors_attached_total 1.0")
            leaving.cancel()
            with suppress(asyncio.CancelledError):
                await leaving
            planning.go_on.set()
            return await asking

    answer = asyncio.run(one_leaves())

    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_before_anybody_answers_leaves_no_turn_behind(
    server: Server, planning: Planning, *, stream: bool, count: int
) -> None:
    body = asked("hello", max_tokens=3000, stream=stream, n=count)

    async def leave() -> None:
        async with httpx.AsyncClient(timeout=WAIT) as client:
            asking = asyncio.create_task(client.post(url(server), json=body))
            await asyncio.to_thread(planning.reached.wait, WAIT)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
        planning.go_on.set()
        await counted(server, "kvactors_open_turns 0.0")

    asyncio.run(leave())

    assert answered(server) < 1000
    assert post(server, asked("hello")).status_code == 200


def test_who_leaves_a_stream_of_two_answers_leaves_no_turn_behind(server: Server) -> None:
    async def leave() -> None:
        async with httpx.AsyncClient(timeout=WAIT) as client:
            body = asked("hello", max_tokens=3000, stream=True, n=2)
            async with client.stream("POST", url(server), json=body) as answer:
                async for line in answer.aiter_lines():
                    if '"content"' in line:
                        break
        await counted(server, "kvactors_open_turns 0.0")

    asyncio.run(leave())

    assert answered(server) < 2000


def test_forks_of_an_agent_that_answers_hold_up_nobody_else(
    server: Server, model: FaultyModel
) -> None:
    first = post(server, asked("hello")).json()["choices"][0]["message"]
    begun = [*asked("hello")["messages"], first]

    def follow(text: str) -> dict[str, Any]:
        return asked("") | {"messages": [*begun, {"role": "user", "content": text}]}

    async def all_of_them() -> httpx.Response:
        gate = model.hold()
        async with httpx.AsyncClient(timeout=WAIT) as client:
            texts = ["go on", *map(str, range(40))]
            some = [client.post(url(server), json=follow(text)) for text in texts]
            running = list(map(asyncio.create_task, some))
            await asyncio.to_thread(model.reached.wait, WAIT)
            await counted(server, f"kvactors_open_turns {len(texts)}.0")
            body = asked("somebody else", stream=True)
            async with client.stream("POST", url(server), json=body) as other:
                gate.set()
                await other.aread()
            assert {(await one).status_code for one in running} == {200}
            return other

    other = asyncio.run(asyncio.wait_for(all_of_them(), WAIT))

    assert other.status_code == 200


def test_who_come_back_together_while_their_turn_is_ended_get_one_answer(
    server: Server, model: FaultyModel
) -> None:
    body = asked("hello", stream=True)

    async def leave_and_come_back() -> list[str]:
        gate = model.hold()
        async with httpx.AsyncClient(timeout=WAIT) as client:
            async with client.stream("POST", url(server), json=body):
                await asyncio.to_thread(model.reached.wait, WAIT)
            await counted(server, "kvactors_open_turns 1.0")
            again = [asyncio.create_task(client.post(url(server), json=body)) for _ in range(4)]
            # Theirs are at the server before this one.
            await counted(server, "kvactors_open_turns 1.0")
            gate.set()
            return [(await one).text for one in again]

    assert len(set(asyncio.run(leave_and_come_back()))) == 1


def test_what_fails_at_once_is_a_status_of_a_stream_and_leaves_no_agent(server: Server) -> None:
    answer = post(server, asked("word " * 5000, stream=True))

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert system_of(server).agents() == []


@pytest.mark.parametrize(
    ("header", "path"),
    [
        ("x-claude-code-agent-id", "chat/completions"),
        ("x-codex-parent-thread-id", "chat/completions"),
        ("x-parent-session-id", "completions"),
    ],
)
def test_sub_agents_give_way_to_who_somebody_waits_for(
    model: FaultyModel, header: str, path: str
) -> None:
    async def asked_meanwhile(server: Server) -> tuple[bool, bool]:
        async def until(state: str, turns: int) -> None:
            async with asyncio.timeout(WAIT):
                while (await asyncio.to_thread(system_of(server).stats))[state] < turns:
                    await asyncio.sleep(0.01)

        async with httpx.AsyncClient(timeout=WAIT) as client:
            long = asked("talk", max_tokens=3000)
            talking = asyncio.create_task(client.post(url(server), json=long))
            await until("decoding", 1)
            helper = {header: "helper"}
            # Long enough to run on while the other answer is read.
            help_ = asked("help", max_tokens=500) | {"prompt": "help"}
            ask = client.post(f"{server.url}/v1/{path}", json=help_, headers=helper)
            helping = asyncio.create_task(ask)
            await until("waiting", 1)
            main = asyncio.create_task(client.post(url(server), json=asked("hello")))
            await until("waiting", 2)
            talking.cancel()
            answer = await main
            first = not helping.done()
            return answer.status_code == 200 and first, (await helping).status_code == 200

    with (
        AgentSystem(model, store=False, context=4096, max_batch=1) as system,
        serve(system, port=0, any_model=True, grace=1) as server,
    ):
        assert asyncio.run(asked_meanwhile(server)) == (True, True)
