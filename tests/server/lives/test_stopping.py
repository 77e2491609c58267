"""A server that stops takes no more turns, and says when to come back; what a client leaves in the
middle stops, and is there when it asks again."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from chats import WAIT, asked, post, until, url
from seeded import bug, seeded

from kvactors.actors.frontends.server.answering.service import Service
from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.testing import FaultyModel

SAID = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
TURNS: dict[str, Any] = {
    "v1/chat/completions": SAID,
    "v1/messages": SAID,
    "v1/responses": {"input": "hello", "max_output_tokens": 2},
    "v1/completions": {"prompt": "hello", "max_tokens": 2},
    "agents/ann/turns": {"prompt": "hello", "max_tokens": 2},
}


def asked_behind(
    server: Server, model: FaultyModel, text: str, *bodies: dict[str, Any]
) -> list[dict[str, Any]]:
    """The answers to `bodies` of a client that has just left its turn for a `text`, in the middle
    of it."""
    left = threading.Event()

    def noted(abandon: Callable[..., None]) -> Callable[..., None]:
        def abandoned(*args: Any) -> None:
            abandon(*args)
            left.set()

        return abandoned

    async def ask() -> list[dict[str, Any]]:
        gate = model.hold()
        async with httpx.AsyncClient(timeout=WAIT) as client:
            async with client.stream("POST", url(server), json=asked(text, stream=True)):
                await asyncio.to_thread(model.reached.wait, WAIT)
            await asyncio.to_thread(left.wait, WAIT)
            asking = [asyncio.create_task(client.post(url(server), json=body)) for body in bodies]
            # Their requests are at the server before this one.
            await client.get(f"{server.url}/metrics")
            gate.set()
            return [(await one).json() for one in asking]

    with seeded(bug(Service, "_abandon")(noted)):
        return asyncio.run(ask())


@pytest.mark.parametrize("stream", [False, True])
def test_who_comes_while_it_stops_is_told_to_come_back(server: Server, *, stream: bool) -> None:
    with httpx.Client(base_url=server.url, timeout=WAIT) as http:
        assert http.post("/agents", json={"id": "ann"}).is_success
        taken = [http.post(path, json=body | {"stream": stream}) for path, body in TURNS.items()]
        server.service.claims.closing = True
        told = {
            path: http.post(path, json=body | {"stream": stream, "seed": 5})
            for path, body in TURNS.items()
        }

    assert [answer.status_code for answer in taken] == [200] * len(TURNS)
    assert {path: answer.status_code for path, answer in told.items()} == dict.fromkeys(TURNS, 503)
    assert {answer.headers.get("retry-after") for answer in told.values()} == {"5"}
    assert all("the server is stopping" in answer.text for answer in told.values())


def test_a_turn_that_connections_were_waited_for_is_not_waited_for_again(
    server: Server, model: FaultyModel
) -> None:
    waits, gate = list[float](), model.hold()

    def noted(close: Callable[..., Any]) -> Callable[..., Any]:
        async def closing(service: Service, seconds: float) -> None:
            waits.append(seconds)
            gate.set()
            await close(service, seconds)

        return closing

    def talk() -> None:
        with suppress(httpx.HTTPError):
            post(server, asked("hello"))

    with seeded(bug(Service, "close")(noted)):
        talking = threading.Thread(target=talk)
        talking.start()
        asyncio.run(until(server, 1))
        server.stop()
        talking.join(WAIT)

    assert waits == [0], "all of its grace went to what was open"


def test_who_interrupts_itself_goes_on_with_what_was_prefilled(
    server: Server, model: FaultyModel
) -> None:
    text = "again and again " * 150
    body = asked(text, max_tokens=1)
    body["messages"].append({"role": "user", "content": "No, stop."})

    (instead,) = asked_behind(server, model, text, body)

    assert instead["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_two_that_wait_for_a_turn_that_was_left_and_ask_the_same_get_one_answer(
    server: Server, model: FaultyModel
) -> None:
    first, second = asked_behind(server, model, "hello", asked("hello"), asked("hello"))

    assert first["id"] == second["id"]
