"""ClusterFront: the agents of a cluster as front ends see those of a system. Any thread."""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Literal

from kvactors.actors.cluster.agents.front import FrontAgent
from kvactors.actors.cluster.agents.spawning import spawn
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.protocol.client import forget
from kvactors.actors.cluster.protocol.errors import AgentExists, ClusterError, UnknownAgent
from kvactors.core.cache.spec import ModelCacheSpec
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.errors import InvalidConfig
from kvactors.core.model.info import ModelInfo
from kvactors.persistence import errors as persistence

__all__ = ["ClusterFront", "ClusterHealth"]

SOON = 2.0
"""Seconds for which the directory is asked how it is."""
KNOWN = 256
"""Agents whose memories are kept here, to be gone on with."""


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """`state`: "dead" where the directory does not answer, or no node lives. How many nodes are
    `alive`, and how many `away`."""

    state: Literal["ok", "dead"]
    alive: int
    away: int


class ClusterFront:
    """The agents of the cluster behind `link`. `info` and `chat` are of its nodes' model, whose
    tokenizer is read here. Raises ModelNotFound where this machine does not have that,
    InvalidConfig where it has another one, Unanswered."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.info = _model_of(link)
        self.chat = self.info.chat
        self._agents: OrderedDict[str, FrontAgent] = OrderedDict()
        self._lock = Lock()

    def spawn(self, agent_id: str, *, from_: str | None = None, wait: bool = True) -> FrontAgent:
        """The agent `agent_id`, new or as it is; `from_`: a new one, with the memory of that one. A
        fork always waits for the turn of its parent that runs (`wait`). Raises as
        `Cluster.spawn`, but as a system does that there is nobody to fork, or one of that name."""
        agent = None if from_ is not None else self._agents.get(agent_id)
        if agent is None:
            try:
                spawn(self._link, agent_id, from_=from_)
            except UnknownAgent as error:
                raise persistence.AgentNotStored(from_ or agent_id) from error
            except AgentExists as error:
                raise persistence.AgentExists(agent_id) from error
            agent = FrontAgent(agent_id, self._link, self.info)
        try:
            agent.look()
        except UnknownAgent:
            # Another program has forgotten it.
            spawn(self._link, agent_id)
            agent.look()
        with self._lock:
            self._agents[agent_id] = agent
            self._agents.move_to_end(agent_id)
            while len(self._agents) > KNOWN:
                self._agents.popitem(last=False)
        return agent

    def find(self, agent_id: str) -> FrontAgent | None:
        """The agent of this id if it was asked for here."""
        return self._agents.get(agent_id)

    def forget(self, agent_id: str) -> None:
        """Delete an agent on all nodes."""
        with self._lock:
            self._agents.pop(agent_id, None)
        self._link.run(forget(self._link.client, agent_id, self._link.seconds))

    def health(self) -> ClusterHealth:
        """How it is: asks the directory."""
        try:
            stats = self._link.run(self._link.client.ask("stats", {}, SOON))
        except ClusterError:
            return ClusterHealth("dead", 0, 0)
        alive = sum(node["alive"] for node in stats["nodes"].values())
        return ClusterHealth("ok" if alive else "dead", alive, len(stats["nodes"]) - alive)


def _model_of(link: Link) -> ModelInfo:
    """As any node describes it."""
    found = link.run(link.client.model(link.seconds))
    from kvactors.core.model.fingerprint import tokenizer_identity
    from kvactors.core.model.opening import open_tokenizer

    tokenizer = open_tokenizer(link.settings.model)
    if tokenizer_identity(tokenizer) != found["tokenizer"]:
        raise InvalidConfig(
            f"the tokenizer of {link.settings.model!r} here is not that of the cluster's nodes: "
            "bring the same model to this machine"
        )
    spec = ModelCacheSpec((), found["vocabulary"], found["context"])
    chat, of = ChatFormat(tokenizer), found["tokenizer"]
    return ModelInfo(found["name"], chat, spec, "", "", of, "a cluster", 0)
