"""Fixtures of the tests of the engine."""

import pytest
from budgets import bytes_on_a_cpu

from kvactors.core.model import workspace


@pytest.fixture
def work_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards count as much as a CPU's, so that a budget lets in the same turns on every device.
    Patched: a system has no way to be told what its model takes."""
    monkeypatch.setattr(workspace, "forward_bytes", bytes_on_a_cpu)
