"""One machine, or the clusters, of a test."""

from collections.abc import Callable, Iterator

import pytest
from lives import Cluster
from machine import Machine


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    machine.process.kill()
    # What is cancelled is told, and what waits for that is.
    for _ in range(3):
        machine.loop.run_until_complete(_nothing())
    machine.loop.close()


@pytest.fixture
def cluster() -> Iterator[Callable[[int], Cluster]]:
    made: list[Cluster] = []

    def make(nodes: int) -> Cluster:
        made.append(Cluster(nodes))
        return made[-1]

    yield make
    for one in made:
        one.world.close()


async def _nothing() -> None:
    pass
