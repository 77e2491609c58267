"""A server over the shipped model, and the packages that clients use."""

import os
from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server, serve

# Each client would read this machine's certificates, for 20 ms: none talks to another machine.
os.environ |= {"SSL_CERT_FILE": "", "SSL_CERT_DIR": os.devnull}


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exact")


@pytest.fixture(scope="module")
def exact(folder: Path) -> Iterator[Server]:
    """With KV in float, so that mlx-lm's own sums are the same but for their last bits."""
    with (
        AgentSystem(store=folder, kv_bits=None) as system,
        serve(system, index=folder / "clients.db", port=0) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def texts(exact: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{exact.url}/v1", api_key="none", max_retries=0) as client:
        yield client
