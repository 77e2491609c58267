"""Clusters of one process: of one node, and of several."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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

    def start(*names: str, **options: Any) -> Together:
        opened.append(Together(tmp_path, *names, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
