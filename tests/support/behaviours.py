"""Behaviours for tests: they keep what they get, or run what they are sent."""

from typing import Any

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
)

__all__ = ["Does", "DoesAtOnce", "DoesMuch", "Echo", "Recorder", "run"]

WAIT = 60


class Recorder(AgentBehaviour):
    """Keeps what it gets, and from whom; answers with how much that is."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, str | None]] = []

    def on_message(self, message: Any, sender: Agent | None) -> int:
        self.seen.append((message, sender.agent_id if sender else None))
        return len(self.seen)


class Does(AgentBehaviour):
    """Runs whatever function it is sent, with itself."""

    async def on_message(self, message: Any, sender: Agent | None) -> Any:
        return await message(self)


class DoesAtOnce(AgentBehaviour):
    def on_message(self, message: Any, sender: Agent | None) -> Any:
        return message(self)


def run(system: AgentSystem, function: Any, name: str = "does") -> Any:
    """Run a function inside a behaviour; its result."""
    agent = system.find(name) or system.spawn(name, behaviour=Does())
    return agent.request(function).get(timeout=WAIT)


class DoesMuch(Does):
    reentrant = True


class Echo(AgentBehaviour):
    def on_message(self, message: Any, sender: Agent | None) -> Any:
        if isinstance(message, BaseException):
            raise message
        return message
