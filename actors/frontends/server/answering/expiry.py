"""Agents that clients made leave when nobody came back: memory soon, the disk by age, and by what
they take there.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kvactors.actors.frontends.server.answering.service import Service
from kvactors.core.errors import KvactorsError
from kvactors.persistence.files.naming import encode_agent_id

__all__ = ["Deactivate", "expire", "files_of", "keep_expiring", "rest"]

logger = logging.getLogger(__name__)

EVERY = 600.0
# Seconds without a turn before an agent leaves memory.
RESTS = 3600.0

Deactivate = Callable[[str], None]
"""Lets an agent leave memory, as `AgentSystem.deactivate` does."""


async def keep_expiring(
    service: Service,
    root: Path | None,
    seconds: float | None,
    most: int | None,
    deactivate: Deactivate | None,
) -> None:
    """Look every ten minutes, until cancelled; `service`, `root`, `seconds` and `most` as for
    `expire`, `deactivate` as for `rest`, where there is one."""
    while True:
        try:
            await expire(service, root, seconds, most)
            if deactivate is not None:
                await rest(service, deactivate)
        except Exception:
            # The disk, or the index: the next time it may do.
            logger.exception("agents that nobody came back to were not all forgotten")
        await asyncio.sleep(EVERY)


async def rest(service: Service, deactivate: Deactivate) -> None:
    """Have agents of a `service` without a name leave memory, through `deactivate`, that nobody
    asked for an hour: their conversations are on the disk, and come back with their clients."""
    before = time.time() - RESTS
    for agent in await service.claims.idle_agents(before):
        with suppress(KvactorsError):
            await service.claims.while_free(agent, deactivate, unused_since=before)


async def expire(
    service: Service, root: Path | None, seconds: float | None, most: int | None
) -> list[str]:
    """Forget agents of a `service` without a name that were not used for so many `seconds`, and,
    while all of them take more than `most` bytes in the store at `root`, the longest unused ones.
    Returns who left."""
    gone = list[str]()
    if seconds is not None:
        before = time.time() - seconds
        for agent in await service.claims.idle_agents(before):
            gone += await _forget(service, agent, before)
    if most is None or root is None:
        return gone
    now = time.time()
    left = await service.claims.idle_agents(now)
    files = await asyncio.to_thread(lambda: [files_of(root, agent) for agent in left])
    sizes = {file: size for own in files for file, size in own.items()}
    holders, taken = Counter(file for some in files for file in some), sum(sizes.values())
    for agent, own in zip(left, files, strict=True):
        if taken <= most:
            break
        gone += await _forget(service, agent, now)
        # What others share stays.
        holders.subtract(own.keys())
        taken -= sum(sizes[file] for file in own if not holders[file])
    return gone


def files_of(root: Path, agent: str) -> dict[int, int]:
    """What an agent has in the store at `root`: the size of each file, by what names it even where
    agents share it. Files come and go meanwhile."""
    sizes, folder = dict[int, int](), encode_agent_id(agent)
    for place in (root / "agents" / folder, *(root / "kv").glob(f"*/{folder}")):
        for file in place.glob("*"):
            with suppress(FileNotFoundError):
                state = file.stat()
                sizes[state.st_ino] = state.st_size
    return sizes


async def _forget(service: Service, agent_id: str, before: float) -> list[str]:
    """Whom it forgets: not who has been asked since they were listed, `before` a time."""
    try:
        return [agent_id] if await service.claims.forget(agent_id, unused_since=before) else []
    except KvactorsError as error:
        logger.warning("%r is not forgotten: %s", agent_id, error)
        return []
