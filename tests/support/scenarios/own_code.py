"""Behaviours of scenarios that tests play."""

import asyncio
import threading
from random import Random
from typing import Any

from kvactors.actors.behaviours.behaviour import AgentBehaviour
from kvactors.actors.scenarios.running.roles import Cue

__all__ = [
    "Broken",
    "Chooser",
    "Dealer",
    "Echo",
    "Left",
    "Locked",
    "Needs",
    "Own",
    "Shaky",
    "Silent",
    "Unwise",
    "Wise",
]


class Dealer(AgentBehaviour):
    """Asks its own agent, then bob; says what bob said, and how often it was there."""

    def __init__(self) -> None:
        self.times = 0

    async def on_start(self) -> None:
        await self.observe("I deal.")

    async def on_message(self, message: Cue, sender: Any) -> Any:
        self.times += 1
        own = await self.think(message.text)
        other = await self.ask("bob", f"What of {own.text}?")
        await self.send("bob", "Thank you.")
        heard = " ".join(said.speaker for said in message.heard)
        return f"{self.times}: {other.text} ({heard})"


class Chooser(AgentBehaviour):
    """Chooses as its agent does."""

    async def on_message(self, message: Cue, sender: Any) -> Any:
        reply = await self.think("Which?", choices=message.choices)
        return reply.text


class Echo(AgentBehaviour):
    """Says what its agent says."""

    def on_message(self, message: Cue, sender: Any) -> Any:
        return self.think(message.text)


class Wise(AgentBehaviour):
    """Says yes, whatever its agent thinks."""

    said = "Yes."

    async def on_message(self, message: Cue, sender: Any) -> Any:
        await self.think(message.text)
        return self.said


class Unwise(Wise):
    """Says no instead."""

    said = "No."


class Locked(Echo):
    """Has what cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Silent(AgentBehaviour):
    """Says nothing."""

    def on_message(self, message: Cue, sender: Any) -> Any:
        return None


class Broken(AgentBehaviour):
    """Raises each second time."""

    def __init__(self) -> None:
        self.times = 0

    async def on_message(self, message: Cue, sender: Any) -> Any:
        self.times += 1
        await self.think("I try.")
        if self.times % 2 == 0:
            raise LookupError(f"the {self.times}. time")
        return f"{self.times}"


class Left(AgentBehaviour):
    """Awaits nothing."""

    async def on_message(self, message: Cue, sender: Any) -> Any:
        self.think("one")
        self.ask("bob", "two")
        return "done"


class Needs(AgentBehaviour):
    """Cannot be made."""

    def __init__(self, something: object) -> None:
        self.something = something


class Own(AgentBehaviour):
    """Does what it is told, which it may not."""

    async def on_message(self, message: Cue, sender: Any) -> Any:
        return await getattr(self, message.text)()

    async def stranger(self) -> Any:
        return await self.ask("emma", "Who are you?")

    async def number(self) -> Any:
        return await self.ask("bob", 7)

    async def blocks(self) -> Any:
        return self.think("What?").get()

    async def publishes(self) -> Any:
        return self.publish("news", "now")

    async def sleeps(self) -> Any:
        await asyncio.sleep(0)

    async def leaves(self) -> Any:
        raise SystemExit(3)

    async def half(self) -> Any:
        return chr(0xD800)

    async def wrong(self) -> Any:
        return 5


class Shaky(AgentBehaviour):
    """Raises at random, if its number is odd."""

    async def on_message(self, message: Cue, sender: Any) -> Any:
        reply = await self.think(message.text)
        me, draw = message.agent, Random(f"{message.agent.name} {message.round}")
        if me.number % 2 and draw.random() < 0.5:
            raise draw.choice([LookupError, SystemExit, KeyError])(f"{me.name} in {message.round}")
        return reply.text


NOTHING = 5
