"""Whole clusters without faults, and somebody who asks them."""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any

from kvactors.actors.cluster.protocol.client import Client
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.cluster.testing.machines.host import texts
from kvactors.actors.cluster.testing.world import World

__all__ = ["SETTINGS", "Cluster"]

SETTINGS = Settings(lease=2.0, call=0.5, served=2)


class Cluster:
    """A world and somebody who asks."""

    def __init__(self, nodes: int, settings: Settings = SETTINGS) -> None:
        self.world = World(1, nodes, settings)
        self.client: Client = self.world.client("client")

    def close(self) -> None:
        self.world.close()

    def does(self, work: Awaitable[Any]) -> Any:
        async def waits() -> Any:
            return await work

        return self.world.loop.run_until_complete(waits())

    def spawns(self, *agents: str) -> None:
        for agent in agents:
            self.does(self.client.spawn(agent, {}, None, 30))

    def says(self, agent: str, text: str, **more: object) -> dict[str, Any]:
        request = {"id": f"r-{text}", "text": text, **more}
        return dict(self.does(self.client.turn(agent, request, 30)))

    def asks(self, method: str, **record: object) -> dict[str, Any]:
        return dict(self.does(self.client.ask(method, record, 30)))

    def passes(self, seconds: float) -> None:
        self.does(asyncio.sleep(seconds))

    def owners(self) -> Counter[str]:
        return Counter(place["node"] for place in self.asks("agents", after="", count=99).values())

    def shows(self, agent: str) -> list[str]:
        """Its ledger, as its owner shows it."""
        return texts(self.does(self.client.read(agent, 0, 30))["records"])

    def moves(self, agent: str, target: str) -> None:
        self.asks("move", agent=agent, target=target)
        while not self.asks("moved", agent=agent)["over"]:
            pass
        assert self.asks("find", agent=agent)["node"] == target
