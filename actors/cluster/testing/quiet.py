"""The end of a story: everything comes to rest, and the oracle looks at what disks hold."""

import asyncio

from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.testing.machines.host import fits
from kvactors.actors.cluster.testing.world import DIRECTORY, World

__all__ = ["journal_of", "quiet"]

QUIET = 60.0
"""Seconds that it may take."""


async def quiet(world: World, drained: set[str], forgotten: list[str]) -> None:
    """Wait until nothing is left to do in `world`, then ask its oracle. Nodes are `drained`, and
    agents `forgotten`."""
    until = world.loop.time() + QUIET
    while (odd := _unsettled(world, drained, forgotten)) and world.loop.time() < until:
        await asyncio.sleep(0.5)
    broken = world.oracle.broken
    if odd:
        broken.append(f"never quiet: {odd}")
    for agent in world.agents:
        world.oracle.ends(agent, world.ledgers(agent), world.aside(), _home(world, agent))
        if nodes := _misfits(world, agent):
            broken.append(f"{agent}: KV of other turns on {', '.join(nodes)}")
    world.letters.ends()


def journal_of(world: World) -> list[Record]:
    """Of its directory."""
    files = world.machines[DIRECTORY].disk.files
    journal: list[Record] = files.setdefault("journal", [])
    return journal


def _misfits(world: World, agent: str) -> list[str]:
    """Nodes that have KV of it which is not of their ledger."""
    files = {name: world.machines[name].disk.files for name in world.nodes}
    return [
        name
        for name, held in files.items()
        for piece in held["pieces"].get(agent, ())
        if not fits(piece, held["ledgers"].get(agent, []))
    ]


def _home(world: World, agent: str) -> set[str]:
    place = world.machines[DIRECTORY].server.registry.places[agent]
    return {node for node in (place.node, place.replica) if node is not None}


def _unsettled(world: World, drained: set[str], forgotten: list[str]) -> str:
    registry = world.machines[DIRECTORY].server.registry
    if registry.moves:
        return f"moves {list(registry.moves)}"
    if waiting := world.letters.waiting():
        return f"{len(waiting)} messages have not ended"
    for agent in world.agents:
        place, home = registry.places[agent], _home(world, agent)
        used = bool(world.ledgers(agent))
        wanted = 2 if world.settings.durable == "two" else 1
        if used and (len(home) < wanted or not all(map(registry.alive, home))):
            return f"{place} has no replica"
        if home & drained:
            return f"{place} is on a drained node"
        if used and set(world.ledgers(agent)) - home:
            return f"{agent} has orphans on {sorted(set(world.ledgers(agent)) - home)}"
    for agent in forgotten:
        # A call that came late may have made another one of the name.
        if agent not in registry.places and world.ledgers(agent):
            return f"{agent} is forgotten, and stored on {sorted(world.ledgers(agent))}"
    return ""
