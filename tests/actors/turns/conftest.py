"""Fixtures of the tests of turns."""

from collections.abc import Iterator

import pytest

from kvactors.actors import AgentSystem
from kvactors.core.testing.models import tiny_llama


@pytest.fixture(scope="module")
def shared() -> Iterator[AgentSystem]:
    """A system for tests that leave it as it was."""
    with AgentSystem(tiny_llama(), store=False, context=512) as system:
        yield system
