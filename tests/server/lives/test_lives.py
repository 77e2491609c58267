"""Clients that go, come again, and come together: nothing is computed for nobody, or twice."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from chats import WAIT, asked, post, until
from inside import system_of

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.answering.service import Service
from kvactors.actors.frontends.server.exchange.events import Ended
from kvactors.actors.frontends.server.exchange.inquiry import Inquiry, Message
from kvactors.actors.frontends.server.identity.index import Index
from kvactors.actors.frontends.server.identity.rules import shipped_rules
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.testing import FaultyModel
from kvactors.core.schedule.sampling import Sampling


def agents(server: Server) -> list[Any]:
    return list(system_of(server).agents())


def test_a_request_that_is_resent_attaches_to_the_one_in_flight(
    server: Server, model: FaultyModel
) -> None:
    async def both() -> list[httpx.Response]:
        gate = model.hold()
        async with httpx.AsyncClient(timeout=WAIT) as client:
            url = f"{server.url}/v1/chat/completions"
            first = asyncio.create_task(client.post(url, json=asked("hello")))
            await asyncio.to_thread(model.reached.wait, WAIT)
            again = asyncio.create_task(client.post(url, json=asked("hello")))
            while "kvactors_attached_total 1.0" not in (await client.get(metrics)).text:
                await asyncio.sleep(0.01)
            gate.set()
            return [await first, await again]

    metrics = f"{server.url}/metrics"
    one, other = asyncio.run(both())

    assert one.json()["choices"] == other.json()["choices"]
    assert one.json()["id"] == other.json()["id"]
    assert len(agents(server)) == 1


def test_another_request_while_one_runs_is_an_agent_of_its_own(
    server: Server, model: FaultyModel
) -> None:
    async def both() -> list[httpx.Response]:
        gate = model.hold()
        async with httpx.AsyncClient(timeout=WAIT) as client:
            url = f"{server.url}/v1/chat/completions"
            first = asyncio.create_task(client.post(url, json=asked("hello")))
            await asyncio.to_thread(model.reached.wait, WAIT)
            other = asyncio.create_task(client.post(url, json=asked("hello", seed=5)))
            await until(server, 2)
            gate.set()
            return [await first, await other]

    names = {answer.headers["x-kvactors-agent"] for answer in asyncio.run(both())}

    assert len(names) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_turn(
    server: Server, model: FaultyModel, *, stream: bool
) -> None:
    async def leave() -> None:
        gate = model.hold()
        async with httpx.AsyncClient(timeout=WAIT) as client:
            body = asked("hello", max_tokens=3000, stream=stream)
            task = asyncio.create_task(client.post(f"{server.url}/v1/chat/completions", json=body))
            await asyncio.to_thread(model.reached.wait, WAIT)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        gate.set()
        await asyncio.wait_for(until(server, 0), WAIT)

    asyncio.run(leave())

    (agent,) = agents(server)
    turns = agent.transcript().turns
    assert not turns or turns[-1].finish == "cancelled"
    assert sum(len(turn.token_ids) for turn in turns) < 1000


def test_who_comes_back_while_its_turn_is_still_ended_gets_a_whole_answer(
    server: Server, model: FaultyModel
) -> None:
    async def leave_and_come_back() -> str:
        gate = model.hold()
        url = f"{server.url}/v1/chat/completions"
        async with httpx.AsyncClient(timeout=WAIT) as client:
            body = asked("hello", stream=True)
            async with client.stream("POST", url, json=body):
                await asyncio.to_thread(model.reached.wait, WAIT)
            again = asyncio.create_task(client.post(url, json=body))
            # Its request is at the server before this one.
            await until(server, 1)
            gate.set()
            return (await again).text

    assert asyncio.run(leave_and_come_back()).rstrip().endswith("[DONE]")


def test_an_answer_whose_reader_left_before_its_last_byte_waits_for_who_asks_again(
    model: FaultyModel,
) -> None:
    inquiry = Inquiry((Message("user", "hello"),), sampling=Sampling(max_tokens=4))

    async def answers(system: AgentSystem, index: Index) -> list[str]:
        service = Service(system, index, shipped_rules())
        ids = list[str]()
        for whole in (False, True, True):
            answer = await service.open(inquiry, key="same")
            ids.append(answer.opened.answer_id)
            events = aiter(answer)
            async for event in events:
                if isinstance(event, Ended) and not whole:
                    assert isinstance(events, AsyncGenerator)
                    await events.aclose()
        await service.close(0)
        return ids

    with AgentSystem(model, store=False) as system, closing(Index(None)) as index:
        left, again, anew = asyncio.run(answers(system, index))

    assert left == again
    assert again != anew


def test_what_was_prefilled_for_a_client_that_went_is_there_when_it_comes_back(
    server: Server, model: FaultyModel
) -> None:
    text = "again and again " * 150

    async def leave() -> None:
        gate = model.hold()
        async with httpx.AsyncClient(timeout=WAIT) as client:
            body = asked(text, max_tokens=1000, stream=True)
            async with client.stream(
                "POST", f"{server.url}/v1/chat/completions", json=body
            ) as answer:
                gate.set()
                async for line in answer.aiter_lines():
                    if "content" in line and '"content": ""' not in line:
                        break
        await asyncio.wait_for(until(server, 0), WAIT)

    asyncio.run(leave())
    usage = post(server, asked(text, max_tokens=1)).json()["usage"]

    assert usage["prompt_tokens"] > 2000
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0.95 * usage["prompt_tokens"]


def test_too_many_open_turns_are_told_to_come_later(model: FaultyModel) -> None:
    async def ask(url: str, gate: threading.Event) -> httpx.Response:
        async with httpx.AsyncClient(timeout=WAIT) as client:
            first = asyncio.create_task(client.post(url, json=asked("one")))
            await asyncio.to_thread(model.reached.wait, WAIT)
            refused = await client.post(url, json=asked("two"))
            gate.set()
            assert (await first).status_code == 200
            return refused

    with (
        AgentSystem(model, store=False) as system,
        serve(system, port=0, any_model=True, most=1) as server,
    ):
        refused = asyncio.run(ask(f"{server.url}/v1/chat/completions", model.hold()))

    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_metrics_say_which_failures_they_count(server: Server) -> None:
    assert post(server, asked("hello", max_tokens=-1)).status_code == 400
    assert post(server, asked("hello"), host="evil.example").status_code == 403

    told = httpx.get(f"{server.url}/metrics").text

    assert "# HELP kvactors_failures_total" in told
    assert "not those that were refused at the door" in told
    assert 'kvactors_failures_total{status="400"} 1.0' in told
    assert 'status="403"' not in told


def test_agents_share_nothing_across_api_keys(tmp_path: Path) -> None:
    keys = {"a" * 20, "b" * 20}
    with (
        AgentSystem(FaultyModel(), store=tmp_path) as system,
        serve(system, index=tmp_path / "clients.db", port=0, any_model=True, keys=lambda: keys)
        as server,
    ):  # fmt: skip
        nobody = post(server, asked("hello"))
        one = post(server, asked("hello"), authorization=f"Bearer {'a' * 20}")
        other = post(server, asked("hello"), authorization=f"Bearer {'b' * 20}")
        again = post(server, asked("hello"), authorization=f"Bearer {'a' * 20}")

    assert nobody.status_code == 401
    assert "new" in other.headers["x-kvactors-reused"]
    assert other.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert one.headers["x-kvactors-agent"] != other.headers["x-kvactors-agent"]
    assert "again" in again.headers["x-kvactors-reused"]


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"origin": "https://evil.example"}, {"origin": "null"}],
)
def test_pages_of_other_sites_are_refused(server: Server, headers: dict[str, str]) -> None:
    answer = post(server, asked("hello"), **headers)

    assert answer.status_code == 403
    assert agents(server) == []


def test_what_is_too_large_is_refused_by_its_length(server: Server) -> None:
    deep = httpx.post(
        f"{server.url}/v1/chat/completions",
        content="[" * 100_000,
        headers={"content-type": "application/json"},
    )
    many = httpx.get(f"{server.url}/health", headers={"x-many": "x" * 70_000})

    assert deep.status_code == 400
    assert many.status_code in (400, 431)
