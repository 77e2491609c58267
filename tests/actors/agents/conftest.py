"""Fixtures of the tests of one agent."""

from collections.abc import Callable

import pytest
from conversations import chat_model

from kvactors.actors import AgentSystem


@pytest.fixture
def chatting(open_system: Callable[..., AgentSystem]) -> Callable[..., AgentSystem]:
    """Systems over a random model with a byte-level tokenizer and a chat template."""
    return lambda **options: open_system(chat_model, attention="packed", **options)
