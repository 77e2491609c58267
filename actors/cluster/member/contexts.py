"""What behaviours of a cluster act through: messages are plain, and what only one system can do is
refused. Called on their actors' threads."""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from kvactors.actors.agents.handle import Agent
from kvactors.actors.behaviours.context import Context, Scheduled
from kvactors.actors.behaviours.router import MessageRouter
from kvactors.actors.behaviours.supervisor import BehaviourSupervisor
from kvactors.actors.cluster.agents.asking import Asking
from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.cluster.agents.messages import pack_message
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.protocol.errors import NotAcrossNodes
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.reply import Reply, Rewound

__all__ = ["NodeContext", "NodeSupervisor", "OwnAgent"]

Owes = Callable[[ReplyFuture[Any]], object]

TOPIC = ("a topic", "name who shall get it: broadcast(message, to=[...])")


class OwnAgent(ClusterAgent):
    """The agent `agent_id`, as its own behaviour has it: asked through `link`, on the node where
    that runs, which is told what it `owes`. `ended`: whether the behaviour has, by itself, and
    `ended_by` what."""

    ended = False
    ended_by: BaseException | None = None

    def __init__(self, agent_id: str, link: Link, owes: Owes) -> None:
        super().__init__(agent_id, link)
        self._asking = _OwnAsking(agent_id, link, owes)


class _OwnAsking(Asking):
    """That of `agent_id` through `link`: what nobody awaits is owed, too."""

    def __init__(self, agent_id: str, link: Link, owes: Owes) -> None:
        super().__init__(agent_id, link)
        self._owes = owes

    def turn(self, request: dict[str, Any]) -> ReplyFuture[Reply]:
        reply = super().turn(request)
        self._owes(reply)
        return reply

    def rewind(self, request: dict[str, Any]) -> ReplyFuture[Rewound]:
        rewound = super().rewind(request)
        self._owes(rewound)
        return rewound


class NodeContext(Context):
    """What a behaviour of a cluster acts through."""

    @property
    def timed(self) -> bool:
        """Whether messages of `later` or `every` are not due."""
        return bool(self._scheduled)

    def send(self, to: str | Agent, message: Any) -> ReplyFuture[None]:
        """See Context: a plain `message` `to` an agent of any node. Raises InvalidInput."""
        return super().send(to, pack_message(message))

    def ask(self, to: str | Agent, message: Any, timeout: float | None) -> ReplyFuture[Any]:
        """See Context: so is this `message` `to` one, answered within `timeout`."""
        return super().ask(to, pack_message(message), timeout)

    def broadcast(self, message: Any, to: Iterable[str | Agent] | None) -> ReplyFuture[None]:
        """See Context. Raises NotAcrossNodes without names."""
        if to is None:
            _refuse("a broadcast to every behaviour", "name them: broadcast(message, to=[...])")
        return super().broadcast(pack_message(message), to)

    def later(self, seconds: float, message: Any) -> Scheduled:
        """See Context."""
        return super().later(seconds, pack_message(message))

    def every(self, seconds: float, message: Any) -> Scheduled:
        """See Context."""
        return super().every(seconds, pack_message(message))

    def subscribe(self, topic: str) -> None:
        """Raises NotAcrossNodes."""
        _refuse(*TOPIC)

    def unsubscribe(self, topic: str) -> None:
        """Raises NotAcrossNodes."""
        _refuse(*TOPIC)

    def publish(self, topic: str, message: Any) -> ReplyFuture[None]:
        """Raises NotAcrossNodes: no `message` has a `topic`."""
        _refuse(*TOPIC)

    def watch(self, agent: str | Agent) -> None:
        """Raises NotAcrossNodes."""
        _refuse("to watch another behaviour", "ask it, with a timeout")

    def stop(self, agent: str | Agent | None) -> None:
        """See Context. Raises NotAcrossNodes for another one than its own."""
        if agent is not None and getattr(agent, "agent_id", agent) != self.agent.agent_id:
            _refuse("to stop another behaviour", "send it a message that says so")
        super().stop(agent)


class NodeSupervisor(BehaviourSupervisor):
    """One whose behaviours send by `outgoing`, a router without receivers."""

    outgoing: MessageRouter
    contexts: WeakValueDictionary[str, NodeContext]

    def context(self, agent: Agent) -> Context:
        """What a behaviour of `agent` acts through."""
        context = NodeContext(agent, self.outgoing, self)
        self.contexts[agent.agent_id] = context
        return context


def _refuse(what: str, instead: str) -> NoReturn:
    raise NotAcrossNodes(what=what, instead=instead)
