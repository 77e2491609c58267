"""A server over a model that can be held back, one for each test."""

from collections.abc import Iterator

import pytest

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.testing import FaultyModel


@pytest.fixture
def model() -> FaultyModel:
    return FaultyModel()


@pytest.fixture
def server(model: FaultyModel) -> Iterator[Server]:
    with (
        AgentSystem(model, store=False, context=4096) as system,
        serve(system, port=0, any_model=True, grace=1) as server,
    ):
        yield server
