"""One machine for each test."""

from collections.abc import Iterator

import pytest
from machine import Machine


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    machine.process.kill()
    machine.loop.run_until_complete(_nothing())
    machine.loop.close()


async def _nothing() -> None:
    pass
