"""Behaviours for tests: they keep what they get, or run what they are sent."""

from typing import Any

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    Supervision,
)

__all__ = [
    "Does",
    "DoesAtOnce",
    "DoesBlocking",
    "DoesMuch",
    "Echo",
    "Recorder",
    "asks",
    "run",
    "seven",
    "spawn",
]

WAIT = 60
GOES_ON = Supervision("restart", backoff=0)


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


class DoesBlocking(AgentBehaviour):
    """Runs what it is sent, on a thread of its own."""

    blocking = True

    def on_message(self, message: Any, sender: Agent | None) -> Any:
        return message(self)


def spawn(system: AgentSystem, **behaviours: AgentBehaviour) -> list[Agent]:
    return [
        system.spawn(name, behaviour=behaviour, supervision=GOES_ON)
        for name, behaviour in behaviours.items()
    ]


async def seven(_: AgentBehaviour) -> int:
    return 7


def asks(names: str, last: Any = seven, timeout: float | None = None) -> Any:
    """What makes an agent ask the first of these to ask the next, and so on."""
    if not names:
        return last

    async def ask(me: AgentBehaviour) -> Any:
        return await me.ask(names[0], asks(names[1:], last), timeout=timeout)

    return ask
