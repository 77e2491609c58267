"""Fixtures of the tests of threads and mailboxes."""

from collections.abc import Iterator

import pytest

from kvactors.actors.runtime.dispatcher import Dispatcher

WAIT = 30


@pytest.fixture
def pool() -> Iterator[Dispatcher]:
    """Two threads."""
    dispatcher = Dispatcher("test", 2)
    yield dispatcher
    dispatcher.close(WAIT)
