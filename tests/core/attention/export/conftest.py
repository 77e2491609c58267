"""Tests of the op for exporters. Torch is in an environment of their own: `.ci/run export`."""

import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

import mlx.core as mx
import pytest

# Elsewhere nothing is collected here; the header of a run says so.
HERE = find_spec("torch") is not None and find_spec("executorch") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]
if HERE:
    # What they warn of while they are imported is their own matter.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module("executorch.exir")
        import_module("executorch.runtime")


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    """Both frameworks compute on one device."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)
