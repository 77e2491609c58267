"""More agents are known than a node has in memory: small; `bench/cluster/known.py` does it with a
million."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from seeded import bug, seeded

from kvactors.actors.cluster.protocol.node.serving import Serving
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.bench.cluster.known import QUICK, wake

SIZES = replace(QUICK, agents=5_000, served=50, woken=300)


def test_few_of_those_that_are_known_are_in_memory_and_no_lease_ends(tmp_path: Path) -> None:
    settings = Settings()

    found = asyncio.run(wake(SIZES, tmp_path, settings))

    assert found.wrong(SIZES, settings.lease) == []


@bug(Serving, "_end_idle")
def nobody_leaves_memory(true: Any) -> Any:
    async def end_idle(self: Serving) -> None:
        return None

    return end_idle


def test_and_it_would_be_seen_if_they_stayed(tmp_path: Path) -> None:
    settings = Settings()

    with seeded(nobody_leaves_memory):
        found = asyncio.run(wake(SIZES, tmp_path, settings))

    assert len(found.wrong(SIZES, settings.lease)) == 2
