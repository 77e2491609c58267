"""Fixtures of the tests of attention together."""

from dataclasses import replace

import pytest
from cascade import Noting
from makers import load_as_meant

from kvactors.core.model.load import LoadedModel
from kvactors.core.model.options import ModelOptions
from kvactors.core.testing.models import PlainTokenizer, snap_to_grid, tiny_model


@pytest.fixture(scope="session")
def loaded() -> LoadedModel:
    """A grid model whose attention is pinned to floats, so that it can run in float64."""
    model = snap_to_grid(tiny_model())
    options = ModelOptions(attention="dequantize")
    found = load_as_meant("llama", lambda: (model, PlainTokenizer()), options)
    return replace(found, policy=Noting("dequantize", launch_tokens=64, precision="float64"))


@pytest.fixture
def calls() -> list[tuple[int, int]]:
    """(rows, shared tokens) of each time that rows were attended together."""
    Noting.calls.clear()
    return Noting.calls
