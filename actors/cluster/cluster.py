"""Cluster: agents on several machines, through one object. Any thread."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

from kvactors.actors.behaviours.behaviour import AgentBehaviour
from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.cluster.agents.spawning import find, id_of, spawn
from kvactors.actors.cluster.backup import back_up_cluster
from kvactors.actors.cluster.front import ClusterFront
from kvactors.actors.cluster.machine.link import PATIENCE, Link
from kvactors.actors.cluster.protocol.client import forget
from kvactors.actors.cluster.protocol.errors import (
    AgentUnavailable,
    NodeUnavailable,
    NoRoom,
    UnknownNode,
)
from kvactors.actors.cluster.protocol.records import Place
from kvactors.actors.runtime.supervision import Supervision
from kvactors.actors.system.parameters import check_seconds
from kvactors.actors.turns.checks import stays_here
from kvactors.core.errors import InvalidConfig, InvalidInput
from kvactors.persistence.backup.backup import BackupReport
from kvactors.persistence.files.encryption import EncryptionKey

__all__ = ["HERE", "Cluster", "ClusterAgent", "check_durable"]

HERE = "127.0.0.1:6379"
"""Where a head listens unless it was told otherwise."""
PAGE = 1000
AGAIN = 0.05


class Cluster:
    """Agents that live where there is room, and move with their memory. Made by `connect`, or by
    `local`; a context manager. `model` is what its nodes run, as the head was told. Any thread."""

    def __init__(self, link: Link, leave: Callable[[], None]) -> None:
        self.model = link.settings.model
        self._link = link
        self._leave = leave

    @classmethod
    def connect(
        cls,
        address: str | None = None,
        *,
        durable: Literal["one", "two"] | None = None,
        patience: float = PATIENCE,
        encryption_key: EncryptionKey | None = None,
    ) -> Self:
        """The cluster whose head was started at `address`, "host:port"; None: $RAY_ADDRESS, or this
        machine. Needs kvactors[ray], and a node of the cluster on this machine.

        `durable`: on how many nodes a turn must be before `reply.durable` says so: refused where
        the head was started with another number. `patience`: seconds for which a lost owner is
        waited for. `encryption_key`: that of the nodes' stores, where they have one: what is said
        to agents and by them crosses sealed, and without it only nodes and places are seen. Raises
        InvalidInput, InvalidConfig, ClusterUnreachable, WrongToken.
        """
        seconds = check_seconds("patience", patience)
        check_durable(durable)
        try:
            from kvactors.actors.cluster.ray.session import open_link
        except ImportError as error:
            raise InvalidConfig(f"{error.name} is missing: pip install 'kvactors[ray]'") from error
        where = address or os.environ.get("RAY_ADDRESS") or HERE
        link, leave = open_link(where, seconds, encryption_key)
        if durable not in (None, link.settings.durable):
            leave()
            raise InvalidConfig(
                f"the head was started with --durable {link.settings.durable}, not {durable!r}"
            )
        return cls(link, leave)

    @classmethod
    def local(
        cls,
        model: str = "default",
        store: str | Path | None = None,
        *,
        encryption_key: EncryptionKey | None = None,
        **engine: Any,
    ) -> Self:
        """A cluster of this process alone, over a `model` and a `store`: no Ray, no second copy.
        `encryption_key`: that of the store; `engine`: further parameters of AgentSystem. Raises
        what AgentSystem raises."""
        from kvactors.actors.cluster.local import open_local

        link, leave = open_local(model, store, engine, PATIENCE, encryption_key)
        return cls(link, leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        stays_here(self, "connect there")

    def close(self) -> None:
        """Leave it: its agents stay, and go on with what they were asked. Idempotent."""
        self._leave()

    def spawn(
        self,
        agent_id: str,
        system_prompt: str | None = None,
        *,
        from_: str | ClusterAgent | None = None,
        group: str | None = None,
        behaviour: str | type[AgentBehaviour] | None = None,
        supervision: Supervision | None = None,
    ) -> ClusterAgent:
        """The agent `agent_id`, new or as it was spawned. Nothing is computed yet.

        `from_` another agent: a new one, in its group and, where its node is not much fuller than
        others, beside it, that remembers all that the other does when its turns so far are done;
        its KV is not copied then. `group`: agents that are
        brought to one node where it is not much fuller than others; by default those with the same
        `system_prompt`. `behaviour`: the AgentBehaviour that whoever owns the agent begins,
        "module:Class" or that class, which is importable there, too; `supervision`: how it goes on
        after an error. Raises InvalidAgentId, InvalidConfig (there is no such behaviour, here or on
        its node), NoRoom, AgentExists (one with another prompt, group or behaviour, or any,
        for a fork), UnknownAgent (nobody to fork), Unanswered.
        """
        return spawn(
            self._link,
            agent_id,
            system_prompt,
            from_=from_,
            group=group,
            behaviour=behaviour,
            supervision=supervision,
        )

    def find(self, agent_id: str) -> ClusterAgent | None:
        """One of its agents, or None."""
        return find(self._link, agent_id)

    def agents(self) -> list[ClusterAgent]:
        """All of its agents, in the order of their ids."""
        return [ClusterAgent(agent_id, self._link) for agent_id in self.places()]

    def places(self) -> dict[str, Place]:
        """Where every agent lives, in the order of their ids."""
        found: dict[str, Place] = {}
        last: str | None = ""
        while last is not None:
            page = self._ask("agents", after=last, count=PAGE)
            found |= {agent_id: Place.from_record(place) for agent_id, place in page.items()}
            last = next(reversed(page)) if len(page) == PAGE else None
        return found

    def place(self, agent: str | ClusterAgent) -> Place:
        """Where one lives: its node, its replica, its epoch. Raises UnknownAgent."""
        return Place.from_record(self._ask("find", agent=id_of(agent)))

    def forget(self, agent: str | ClusterAgent) -> None:
        """Delete an agent on all nodes, behind its turn that runs; once more is nothing. Raises
        UnknownAgent for one that never was."""
        self._link.run(forget(self._link.client, id_of(agent), self._link.seconds))

    def migrate(self, agent: str | ClusterAgent, to: str | None = None) -> Place:
        """Bring an agent with its memory to the node `to`, or to the least loaded other one; its
        place there, where it stays until that is drained or lost. It answers while it is copied; a
        turn that runs at the end of that ends first. Raises InvalidInput, UnknownAgent,
        UnknownNode, NodeUnavailable (it is away, or drained), NoRoom."""
        agent_id = id_of(agent)
        here = self.place(agent_id).node
        target = self._least(agent_id, but=here) if to is None else _node_named(to)
        self._ask("move", agent=agent_id, target=target)
        while not (found := self._ask("moved", agent=agent_id))["over"]:
            pass
        place = Place.from_record(found["place"])
        if place.node != target:
            if _of(target, self.stats())["alive"]:
                raise NoRoom(agent=agent_id, nodes=place.node)
            raise NodeUnavailable(node=target)
        return place

    def drain(self, node: str, *, undo: bool = False) -> None:
        """Bring all agents of a node to others, and none there; returns when it has none. `undo`:
        let agents come again. Raises InvalidInput, UnknownNode, and NoRoom where there is no other
        or the last one goes: then the rest follows when another is there. Raises AgentUnavailable
        where the node is away and nobody else has what is left on it: that is brought when it is
        back, or can be forgotten."""
        _node_named(node)
        if not undo:
            self._least(node, but=node)
        self._ask("drain", node=node, on=not undo)
        while not undo and (there := _of(node, self.stats()))["agents"]:
            self._least(node, but=node)
            if not there["alive"]:
                _refuse_lost(node, self.places().values(), self.stats()["nodes"])
            self._link.pause(AGAIN)

    def backup(self, url: str) -> BackupReport:
        """Copy what the object store at `url` (s3://bucket/folder) lacks of all agents there, each
        from its owner, and name it: one snapshot of all. Agents go on meanwhile: each is copied as
        it was at some moment since, with all that was durable before. All nodes and this program
        reach the object store by this URL, with what their own environments say. `skipped` of the
        report names agents that could not be read. `kvactors store restore` makes stores of it, and
        nodes that begin over these have the agents. Raises BackupFailed, Unanswered."""
        return self._link.run(back_up_cluster(self._link, self.places(), url))

    def stats(self) -> dict[str, Any]:
        """How many agents and moves there are; of each node whether it is alive and drained, its
        agents, replicas, bytes of KV and turns that wait."""
        return self._ask("stats")

    def front(self) -> ClusterFront:
        """Its agents as front ends ask them: `serve(cluster.front())`. This machine needs the
        nodes' model, too, for the tokenizer. Raises ModelNotFound, InvalidConfig, Unanswered."""
        return ClusterFront(self._link)

    def _ask(self, method: str, **record: Any) -> dict[str, Any]:
        link = self._link
        return link.run(link.client.ask(method, record, link.seconds))

    def _least(self, agent_id: str, *, but: str) -> str:
        nodes = {
            name: node
            for name, node in self.stats()["nodes"].items()
            if node["alive"] and not node["draining"] and name != but
        }
        if not nodes:
            raise NoRoom(agent=agent_id, nodes=but)
        least: str = min(nodes, key=lambda n: (nodes[n]["bytes"], nodes[n]["waiting"], n))
        return least


def _node_named(node: object) -> str:
    """The name of one. Raises InvalidInput."""
    if not isinstance(node, str):
        raise InvalidInput(f"a node is named by a string, not {type(node).__name__}")
    return node


def _of(node: str, stats: dict[str, Any]) -> dict[str, Any]:
    """What `Cluster.stats` says of a node. Raises UnknownNode."""
    found: dict[str, dict[str, Any]] = stats["nodes"]
    if node not in found:
        raise UnknownNode(node=node)
    return found[node]


def check_durable(durable: object) -> None:
    """Raise InvalidInput unless it is "one", "two" or None."""
    if durable not in (None, "one", "two"):
        raise InvalidInput(f'durable is "one" or "two", not {durable!r}')


def _refuse_lost(node: str, places: Iterable[Place], nodes: Mapping[str, Any]) -> None:
    """Raise AgentUnavailable if nobody else has what is left on a `node`, as all `places` and
    `nodes` say."""
    left = [place for place in places if place.node == node]
    if left and not any(p.fresh or nodes.get(p.replica or "", {}).get("alive") for p in left):
        raise AgentUnavailable(agent=left[0].agent, nodes=node)
