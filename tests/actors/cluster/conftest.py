"""Clusters of one process: of one node, and of several."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from together import Together

from kvactors import Cluster


@pytest.fixture
def open_cluster(tmp_path: Path) -> Iterator[Callable[[], Cluster]]:
    """Clusters over one store, one after the other."""
    opened: list[Cluster] = []

    def start() -> Cluster:
        opened.append(Cluster.local(store=tmp_path / "store"))
        return opened[-1]

    yield start
    for cluster in opened:
        cluster.close()


@pytest.fixture
def open_nodes(tmp_path: Path) -> Iterator[Callable[..., Together]]:
    """Nodes by their names; further options are those of Together."""
    opened: list[Together] = []

    def start(*names: str, key: bytes | None = None, served: int = 10_000) -> Together:
        opened.append(Together(tmp_path, *names, key=key, served=served))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
