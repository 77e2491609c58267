"""A server that stops takes no more turns, and says when to come back."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from chats import WAIT, asked, post, until
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
