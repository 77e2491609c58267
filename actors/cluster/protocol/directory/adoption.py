"""Agents that came with a store: one that was restored, or that was a system's before."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import islice

from kvactors.actors.cluster.protocol.directory.members import Members
from kvactors.actors.cluster.protocol.directory.registry import Registry
from kvactors.actors.cluster.protocol.errors import AgentUnsure
from kvactors.actors.cluster.protocol.interfaces import Clock, Record
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.records import ADOPTED, Place, Settings

__all__ = ["Adoption"]

# Agents that one write gives places to.
AT_ONCE = 256


@dataclass(frozen=True, slots=True, order=True)
class _Found:
    """What a node stores of an agent. In this order the greatest has what others lack: after a
    later epoch than theirs, or more."""

    epoch: int
    """The highest that it was promised in there; 0 where no cluster had that store."""
    records: int
    node: str
    spawned: Record | None = field(compare=False)
    """How, with its "group" and "options", if that is known."""


class Adoption:
    """Gives places in the `registry` to agents that have none and never had: those of `members`
    which say so. An agent that was forgotten is known, and does not come back. `locks` are the
    agents'; `changed` is called when some may need replicas.

    All who joined have to have said what they have before an agent is adopted, or a new one is
    begun: the one may be longer elsewhere, the other there already. Who is drained is not waited
    for. What is found stands in memory: its node says it again until it is in the journal. What a
    node was promised by another directory, whose journal is lost, is adopted when the leases of
    that one are over by any `clock`, as `settings` say.
    """

    def __init__(
        self,
        registry: Registry,
        members: Members,
        locks: Locks,
        changed: Callable[[], None],
        clock: Clock,
        *,
        settings: Settings,
    ) -> None:
        self._registry, self._members = registry, members
        self._clock = clock
        self._others_end = clock.now() + settings.lease * (1 + settings.skew)
        self._locks, self._changed = locks, changed
        self._found: dict[str, dict[str, _Found]] = {}
        # Those that have said all.
        self._heard: set[str] = set()

    async def found(self, record: Record) -> Record:
        """A node has these `agents`, and their places are not known to it; with "all" these were
        the last. Of each the "epoch" that was promised, the number of "records", and how it
        was "spawned", if that is known."""
        node = record["node"]
        self._members.last(node, record["incarnation"])
        for agent, has in record["agents"].items():
            if self._is_unknown(agent):
                found = _Found(has["epoch"], has["records"], node, has["spawned"])
                self._found.setdefault(agent, {})[node] = found
        if record["all"]:
            self._heard.add(node)
            await self._adopt_all()
        return {}

    async def told(self, record: Record) -> Record:
        """All that the node has had places."""
        node = record["node"]
        self._members.last(node, record["incarnation"])
        if node in self._registry.untold:
            await self._registry.note(told=[node])
            await self._adopt_all()
        return {}

    def refuse_unsure(self, agent: str) -> None:
        """Raises AgentUnsure for one without a place that some node has, or may have."""
        nodes = self._waits() or list(self._found.get(agent, ()))
        if nodes:
            raise AgentUnsure(agent=agent, nodes=", ".join(nodes))

    def _waits(self) -> list[str]:
        members = self._registry.members
        unheard = sorted(self._registry.untold - self._heard)
        return [node for node in unheard if not members[node].draining]

    def _is_unknown(self, agent: str) -> bool:
        return agent not in self._registry.places and agent not in self._registry.gone

    async def _adopt_all(self) -> None:
        due = [""]
        while due:
            async with self._registry.coming:
                if due := list(islice(self._due(), AT_ONCE)):
                    await self._adopt(due)

    def _due(self) -> Iterator[str]:
        if not self._waits():
            over = self._clock.now() > self._others_end
            for agent, found in self._found.items():
                if over or max(found.values()).epoch == 0:
                    yield agent

    async def _adopt(self, agents: list[str]) -> None:
        async with AsyncExitStack() as stack:
            for agent in agents:
                await stack.enter_async_context(self._locks.of(agent))
            # Who waited for the locks may have come second.
            left = {agent: self._found[agent] for agent in agents if agent in self._found}
            new = [agent for agent in left if self._is_unknown(agent)]
            await self._registry.note(places=[_place(a, left[a].values()) for a in new])
            for agent in left:
                del self._found[agent]
        self._changed()


def _place(agent: str, found: Iterable[_Found]) -> Place:
    """Where there is most of it. In an epoch above all that were promised, and above that of a new
    agent, which has nothing that a replica could lack; born before them, so that its records are
    its own."""
    best = max(found)
    epoch = 1 + max(1, best.epoch)
    spawned = best.spawned or {"group": None, "options": {ADOPTED: True}}
    group, options = spawned["group"], dict(spawned["options"])
    return Place(agent, best.node, 0, epoch, None, group, 1, options)
