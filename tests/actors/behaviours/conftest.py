"""Fixtures of the tests of behaviours."""

from collections.abc import Callable

import pytest

from kvactors.actors import AgentSystem
from kvactors.core.testing.models import Faulty, PlainTokenizer, tiny_model


@pytest.fixture
def system(open_system: Callable[..., AgentSystem]) -> AgentSystem:
    """It keeps nothing."""
    return open_system(store=False)


@pytest.fixture
def held(open_system: Callable[..., AgentSystem]) -> tuple[AgentSystem, Faulty]:
    """A system, and its model, whose steps can be held."""
    model = Faulty(tiny_model(seed=3))
    return open_system(lambda: (model, PlainTokenizer()), store=False), model
