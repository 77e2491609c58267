"""A server of a small random model that keeps nothing, for requests that nobody should send."""

from collections.abc import Iterator

import pytest

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.testing import FaultyModel


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with (
        AgentSystem(FaultyModel(), store=False, context=4096) as system,
        serve(system, port=0, any_model=True, grace=1) as server,
    ):
        yield server
