"""While a model is loaded its port is taken, and who calls is told when to come back."""

import socket

import httpx
from chats import WAIT, asked, post
from children import run_child

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.listening import listen, loading
from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.frontends.server.web.settings import Settings

CALLED_WHILE_IT_LOADS = """
import sys
import httpx
from kvactors.actors import AgentSystem
from kvactors.actors.cli import main

def start(self):
    sys.exit(httpx.get(f"http://127.0.0.1:{sys.argv[-1]}/health").text)

AgentSystem.start = start
main()
"""


def test_who_comes_while_a_model_loads_is_told_when_to_come_back(system: AgentSystem) -> None:
    settings = Settings(port=0)
    with listen(settings) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with loading(listening, settings.gate()):
            shapes = {
                path: httpx.post(f"{url}{path}", json=asked("hello"), timeout=WAIT)
                for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/health")
            }
            stranger = httpx.get(f"{url}/health", headers={"Host": "elsewhere"}, timeout=WAIT)
        with Server(system, None, settings, listening) as server:
            assert server.url == url
            there = post(server, asked("hello"))

    assert {answer.status_code for answer in shapes.values()} == {503}
    assert {answer.headers["retry-after"] for answer in shapes.values()} == {"5"}
    assert shapes["/v1/messages"].json()["error"]["type"] == "overloaded_error"
    assert shapes["/v1/chat/completions"].json()["error"]["code"] == "unavailable"
    assert stranger.status_code == 403
    assert there.status_code == 200


def test_the_command_listens_before_it_loads(tmp_path: object) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    arguments = ("serve", "--store", f"{tmp_path}/store", "--port", str(port))
    ended = run_child(CALLED_WHILE_IT_LOADS, *arguments)

    assert "the model is being loaded" in ended.stderr
