"""Agents that clients made leave when nobody came back: by age, and by what they take on disk."""

import asyncio
import logging
import time
from pathlib import Path

from kvactors.actors.frontends.server.answering.service import Service
from kvactors.core.errors import KvactorsError
from kvactors.persistence.files.naming import encode_agent_id

__all__ = ["disk_bytes", "expire", "keep_expiring"]

logger = logging.getLogger(__name__)

EVERY = 600.0


async def keep_expiring(
    service: Service, root: Path | None, seconds: float | None, most: int | None
) -> None:
    """Look every ten minutes, until cancelled; `service`, `root`, `seconds` and `most` as for
    `expire`."""
    while seconds is not None or most is not None:
        await expire(service, root, seconds, most)
        await asyncio.sleep(EVERY)


async def expire(
    service: Service, root: Path | None, seconds: float | None, most: int | None
) -> list[str]:
    """Forget agents of a `service` without a name that were not used for so many `seconds`, and,
    while all of them take more than `most` bytes in the store at `root`, the longest unused ones.
    Returns who left."""
    gone = list[str]()
    if seconds is not None:
        for agent in await service.claims.idle_agents(time.time() - seconds):
            gone += await _forget(service, agent)
    if most is None or root is None:
        return gone
    left = await service.claims.idle_agents(time.time())
    while left and await asyncio.to_thread(disk_bytes, root, left) > most:
        gone += await _forget(service, left.pop(0))
    return gone


def disk_bytes(root: Path, agents: list[str]) -> int:
    """What these agents take in the store at `root`; what some of them share counts once."""
    sizes = dict[int, int]()
    for agent in agents:
        folder = encode_agent_id(agent)
        for place in (root / "agents" / folder, *(root / "kv").glob(f"*/{folder}")):
            for file in place.glob("*"):
                state = file.stat()
                sizes[state.st_ino] = state.st_size
    return sum(sizes.values())


async def _forget(service: Service, agent_id: str) -> list[str]:
    try:
        return [agent_id] if await service.claims.forget(agent_id) else []
    except KvactorsError as error:
        logger.warning("%r is not forgotten: %s", agent_id, error)
        return []
