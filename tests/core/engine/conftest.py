"""Fixtures of the tests of the engine."""

from collections.abc import Iterator

import pytest
from budgets import bytes_on_a_cpu
from seeded import bug, seeded

from kvactors.core.model import workspace


@pytest.fixture
def work_of_a_cpu() -> Iterator[None]:
    """Forwards count as much as a CPU's, so that a budget lets in the same turns on every device:
    a system has no way to be told what its model takes."""
    with seeded(bug(workspace, "forward_bytes")(lambda _: bytes_on_a_cpu)):
        yield
