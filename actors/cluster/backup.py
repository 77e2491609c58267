"""A backup of a running cluster: each agent from the store of its owner, in one snapshot of all.
On the thread of one loop; objects are listed and written on others."""

import asyncio
import time
from collections import defaultdict
from typing import Any

from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.protocol.errors import ClusterError, HostFailed, UnknownAgent
from kvactors.actors.cluster.protocol.records import ADOPTED, FORK, Place
from kvactors.persistence.backup.backup import Backup, BackupReport
from kvactors.persistence.backup.objects import open_objects
from kvactors.persistence.backup.snapshot import AgentEntry
from kvactors.persistence.errors import BackupFailed
from kvactors.persistence.files.naming import encode_agent_id
from kvactors.persistence.files.packing import pack

__all__ = ["back_up_cluster"]

PATIENCE = 4
"""Leases behind the first look at all, for which agents that move, or whose nodes are lost, are
looked for."""


async def back_up_cluster(link: Link, places: dict[str, Place], url: str) -> BackupReport:
    """Copy what the object store at `url` lacks of all agents that have `places` in the cluster of
    `link` there, and name it. An agent that has moved since is asked for where it is by then. Of
    one that cannot be read, moves on and on, or whose nodes are away, the snapshot has what the one
    before had. Raises BackupFailed."""
    backup = await asyncio.to_thread(lambda: Backup(open_objects(url)))
    copying = _Copying(link, url, dict(places))
    await copying.run()
    for agent, item in sorted(copying.taken.items()):
        if item["problem"] is not None:
            backup.skip(encode_agent_id(agent), f"{agent}: {item['problem']}")
        elif item["entry"] is not None:
            entry = AgentEntry.from_plain(item["entry"])
            backup.take(entry, nbytes=item["nbytes"], added=item["added"])
    for agent, reason in sorted(copying.lost.items()):
        backup.skip(encode_agent_id(agent), f"{agent}: {reason}")
    known = {a: place for a, place in copying.places.items() if ADOPTED not in place.options}
    notes = pack({agent: _spawned(place) for agent, place in known.items()})
    return await asyncio.to_thread(backup.finish, notes)


class _Copying:
    """Of agents with `places` in the cluster of `link`, to the object store at `url`. `taken` are
    what nodes gave, `lost` why nobody gave some."""

    def __init__(self, link: Link, url: str, places: dict[str, Place]) -> None:
        self._link, self._url, self.places = link, url, places
        self.taken: dict[str, dict[str, Any]] = {}
        self.lost: dict[str, str] = {}

    async def run(self) -> None:
        """Until all are taken, or it was tried for so long."""
        agents, lease = list(self.places), self._link.settings.lease
        until: float | None = None
        while agents:
            nodes = defaultdict(list)
            for agent in agents:
                nodes[self.places[agent].node].append(agent)
            self.lost.clear()
            await asyncio.gather(*(self._copy(node, there) for node, there in nodes.items()))
            missing = [agent for agent in agents if not self._has(agent)]
            again = await asyncio.gather(*map(self._again, missing))
            agents = [agent for agent, so in zip(missing, again, strict=True) if so]
            now = time.monotonic()
            until = until or now + PATIENCE * lease
            if now > until:
                self.lost = dict.fromkeys(agents, "it moved, or began, meanwhile") | self.lost
                return
            if agents:
                await asyncio.sleep(lease / 4)

    def _has(self, agent: str) -> bool:
        item = self.taken.get(agent)
        return item is not None and (item["entry"] or item["problem"]) is not None

    async def _copy(self, node: str, agents: list[str]) -> None:
        try:
            record = {"agents": agents, "url": self._url}
            async for item in self._link.client.transport.stream(node, "backup", record):
                self.taken[item["agent"]] = dict(item)
        except HostFailed as error:
            if error.fields["kind"] == BackupFailed.__name__:
                raise
            self.lost |= dict.fromkeys((a for a in agents if a not in self.taken), str(error))
        except ClusterError as error:
            self.lost |= dict.fromkeys((a for a in agents if a not in self.taken), str(error))

    async def _again(self, agent: str) -> bool:
        """Whether an agent of which nothing came is to be asked for again: not if it is no more, or
        nothing was ever stored of it."""
        before, seconds = self.places[agent], self._link.settings.call
        try:
            record = await self._link.client.ask("find", {"agent": agent}, seconds)
            self.places[agent] = place = Place.from_record(record)
            told = agent in self.taken
            if told and place.node == before.node and FORK in place.options:
                # It may be a beginning that its owner has yet to fetch.
                await self._link.client.serve(agent, seconds)
                return True
            return not told or place.node != before.node
        except UnknownAgent:
            self.lost.pop(agent, None)
            self.taken.pop(agent, None)
            del self.places[agent]
            return False
        except ClusterError as error:
            self.lost[agent] = str(error)
            return True


def _spawned(place: Place) -> dict[str, Any]:
    """How it is spawned where it is restored: a fork is whole there."""
    options = {name: value for name, value in place.options.items() if name != FORK}
    return {"group": place.group, "options": options}
