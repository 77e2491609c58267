"""Real clusters of Ray on this host. A process is in one at a time: that of a module ends with it,
before the one of all others begins."""

import os
import secrets
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nodes import Nodes

if find_spec("ray") is None:
    # Said in the header of a run: `.ci/run cluster` has it.
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever shares the cluster of all others comes last."""
    items.sort(key=lambda item: "three" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session", autouse=True)
def token() -> Iterator[str]:
    """What the nodes and this process share."""
    made = secrets.token_hex(16)
    os.environ["RAY_AUTH_TOKEN"] = made
    yield made
    del os.environ["RAY_AUTH_TOKEN"]


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Nodes]":
    """A head and two more nodes, encrypted; what is durable is on two of them."""
    from nodes import Nodes

    found = Nodes(tmp_path_factory.mktemp("three"), "one", "two", "three", key=b"k" * 32)
    yield found
    found.end()


@pytest.fixture(scope="module")
def carefree(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Nodes]":
    """A head and another node; what is durable is on one of them."""
    from nodes import Nodes

    found = Nodes(tmp_path_factory.mktemp("carefree"), "one", "two", durable="one")
    yield found
    found.end()
