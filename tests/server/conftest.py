"""A server over the shipped model, and the packages that clients use."""

from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server, serve


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def system(store: Path) -> Iterator[AgentSystem]:
    with AgentSystem(store=store) as system:
        yield system


@pytest.fixture(scope="module")
def server(system: AgentSystem, store: Path) -> Iterator[Server]:
    with serve(system, index=store / "clients.db", port=0) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client
