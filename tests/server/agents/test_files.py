"""Agents as files: out and in, whatever becomes of the connection."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.guard import Gate, Limits
from kvactors.actors.frontends.server.web.serve import serve
from kvactors.actors.frontends.server.wire.errors import Failure
from kvactors.actors.testing import FaultyModel

WAIT = 60
BODY = 2000


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Of a server of one agent, whose file is longer than a body may be."""
    with (
        AgentSystem(FaultyModel(), store=tmp_path_factory.mktemp("store")) as system,
        serve(system, port=0, limits=Limits(body=BODY, imported=100 * BODY)) as server,
        httpx.Client(base_url=server.url, timeout=WAIT) as http,
    ):
        assert http.post("/agents", json={"id": "ann"}).status_code == 201
        told = {"prompt": "My cat is called Tom. " * 20, "max_tokens": 5}
        assert http.post("/agents/ann/turns", json=told).status_code == 200
        yield http


def left() -> set[Path]:
    """Files of agents that went out."""
    return set(Path(tempfile.gettempdir()).glob("kvactors-*/agent.kvagent"))


@pytest.mark.parametrize(
    "wanted", ["bytes=0-9", "bytes=9-0", "bytes=99999999-", "teapots=1", "bytes=0-1,3-4"]
)
def test_nothing_is_left_of_a_part_that_is_asked_for(http: httpx.Client, wanted: str) -> None:
    whole, before = http.get("/agents/ann/export").content, left()

    answer = http.get("/agents/ann/export", headers={"range": wanted})

    assert answer.status_code == 200
    assert len(answer.content) == len(whole) == int(answer.headers["content-length"])
    assert left() <= before


def test_an_agent_may_be_longer_than_another_body(http: httpx.Client) -> None:
    file = http.get("/agents/ann/export").content
    assert BODY < len(file) < 100 * BODY

    back = http.post("/agents/again/import", content=file)

    assert back.status_code == 201, back.text


def test_each_bound_is_named_where_it_counts() -> None:
    gate = Gate(limits=Limits(body=10, imported=20))
    for path, most in (("/agents/ann/import", 20), ("/agents/ann/turns", 10), ("/import", 10)):
        gate.admit([(b"content-length", str(most).encode())], path)
        with pytest.raises(Failure, match=f"more than {most} bytes"):
            gate.admit([(b"content-length", str(most + 1).encode())], path)


@pytest.mark.parametrize("path", ["/agents", "/agents/ann/turns", "/agents/ann/observe"])
def test_a_body_whose_length_is_not_said_is_refused_by_the_same_bound(
    http: httpx.Client, path: str
) -> None:
    pieces = (b" " * 100 for _ in range(BODY // 100 + 1))

    answer = http.post(path, content=pieces, headers={"content-type": "application/json"})

    assert answer.status_code == 413
    assert str(BODY) in answer.json()["error"]["message"]
