"""While a model is loaded its port is taken, and who calls is told when to come back."""

import signal
import socket
from functools import partial
from typing import Any

import httpx
import pytest
from chats import WAIT, asked, post
from children import run_child
from seeded import bug, seeded

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

TOLD_WHILE_IT_LOADS = """
import os
import sys
from kvactors.actors import AgentSystem
from kvactors.actors.cli import main

number = int(sys.argv.pop())
AgentSystem.start = lambda self: os.kill(os.getpid(), number)
main()
"""

INTERRUPTED_AS_IT_BEGINS = """
import os
import signal
from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web import serve as module

def listen(settings, *, true=module.listen):
    os.kill(os.getpid(), signal.SIGINT)
    return true(settings)

module.listen = listen
with AgentSystem(store=False) as system, module.serve(system, port=0):
    print("it serves")
"""

MORE = """
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from kvactors.actors.frontends.server.web.listening import more_connections

setrlimit(RLIMIT_NOFILE, (64, 100))
print(getrlimit(RLIMIT_NOFILE)[0])
for _ in range(2):
    more_connections()
    print(getrlimit(RLIMIT_NOFILE)[0])
"""


@bug(socket, "create_server")
def ports_are_given_twice(true: Any) -> Any:
    return partial(true, reuse_port=True)


@bug(socket, "getaddrinfo")
def names_have_both_families(true: Any) -> Any:
    def addresses(host: str, port: int, family: int = 0, kind: int = 0, *more: int) -> Any:
        return [
            address
            for one, name in ((socket.AF_INET6, "::1"), (socket.AF_INET, host))
            if family in (0, one)
            for address in true(name, port, one, kind, *more)
        ]

    return addresses


def test_a_port_that_somebody_listens_on_is_taken_where_a_system_gives_it_twice() -> None:
    with (
        seeded(ports_are_given_twice),
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="choose another --port"),
        listen(Settings(port=taken.getsockname()[1])),
    ):
        pass


def test_pieces_of_an_answer_do_not_wait_for_each_other() -> None:
    with (
        listen(Settings(port=0)) as listening,
        socket.create_connection(listening.getsockname(), WAIT),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_server_takes_more_connections_than_a_shell_lets_it_have_at_first() -> None:
    child = run_child(MORE)

    few, many, again = map(int, child.stdout.split())
    assert few == 64
    assert many == again == 100


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


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_command_ends_in_order_while_it_loads(
    tmp_path: object, number: int, status: int
) -> None:
    arguments = ("serve", "--store", f"{tmp_path}/store", "--port", "0")

    ended = run_child(TOLD_WHILE_IT_LOADS, *arguments, str(int(number)))

    assert (ended.returncode, ended.stderr) == (status, "")


def test_a_program_that_is_interrupted_while_its_server_begins_ends() -> None:
    ended = run_child(INTERRUPTED_AS_IT_BEGINS)

    assert ended.returncode == -signal.SIGINT
    assert "it serves" not in ended.stdout


def test_who_listens_on_another_family_of_addresses_has_not_taken_the_port() -> None:
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as other,
        seeded(names_have_both_families),
        listen(Settings(port=other.getsockname()[1], host="localhost")) as listening,
    ):
        assert listening.family == socket.AF_INET
