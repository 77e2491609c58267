"""Calls as chat completions had them before they had ids."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from puppets import puppet_server, with_tools

from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.testing import PuppetModel

heard = list[str]()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    def script(said: str) -> str:
        heard.append(said)
        return "So."

    with puppet_server(PuppetModel(script, tokenizer=with_tools)) as server:
        yield server


def asked(server: Server, call: Any) -> httpx.Response:
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "read", "content": "42"},
    ]
    return httpx.post(f"{server.url}/v1/chat/completions", json={"messages": messages})


def test_a_function_call_is_a_call(server: Server) -> None:
    assert asked(server, {"name": "read", "arguments": '{"path": "a.py"}'}).status_code == 200
    assert '"name": "read", "arguments": {"path": "a.py"}' in heard[-1]


def test_one_that_is_none_is_refused_with_its_field(server: Server) -> None:
    refused = asked(server, {"name": "read"})

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages.1.function_call"
