"""Fixtures of the tests of hosts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem

from kvactors.actors.cluster.host.host import SystemHost


@pytest.fixture
def open_host(open_system: OpenSystem, tmp_path: Path) -> Callable[..., SystemHost]:
    """A node by its name: a system with a store of its own, whose runs repeat bit for bit. A piece
    is one segment."""

    def start(name: str, model: Any = None, piece_bytes: int = 1, **options: Any) -> SystemHost:
        options.setdefault("reproducible", True)
        system = open_system(model, store=tmp_path / name, **options)
        return SystemHost(system, piece_bytes=piece_bytes)

    return start
