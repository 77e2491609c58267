"""Clusters of several nodes in one process."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from together import Together


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
