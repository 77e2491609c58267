"""Fixtures of the tests of files that agents go to and come from."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from exchange_agents import system_with_alice

from kvactors.actors import AgentSystem


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentSystem]:
    """A running system with alice in it."""
    with system_with_alice(tmp_path_factory.mktemp("exchange") / "store") as running:
        yield running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a file may be written."""
    return tmp_path / "agent.safetensors"
