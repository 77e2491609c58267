"""Behaviours of agents of a cluster, as nodes import them."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from kvactors import AgentBehaviour
from kvactors.core.schedule.sampling import Sampling

__all__ = ["Blocked", "Diary", "Echo", "Gate", "Late", "Picky", "Scribe", "Talker", "Ticking"]

SHORT = Sampling(max_tokens=3)


class Diary(AgentBehaviour):
    """Keeps what it is told, in order; asked, it gives that back with who said it."""

    def on_start(self) -> None:
        self.told: list[Any] = []

    def on_message(self, message: Any, sender: Any) -> Any:
        if message == "what?":
            return self.told
        self.told.append([message, sender and sender.agent_id])
        return len(self.told)


class Echo(AgentBehaviour):
    """Thinks about what it is told, and says it to the sender."""

    async def on_message(self, message: Any, sender: Any) -> Any:
        reply = await self.think(f"My cat is called {message}.", sampling=SHORT)
        if sender is not None:
            await self.send(sender, ["thought of", message])
        return reply.text


class Talker(AgentBehaviour):
    """Does what it is told, and answers how that went."""

    def on_start(self) -> None:
        self.thoughts: list[Any] = []

    async def on_message(self, message: Any, sender: Any) -> Any:
        kind, *rest = message
        if kind == "thought of":
            self.thoughts += [*rest, sender.agent_id]
            return None
        return await getattr(self, kind)(*rest)

    async def heard(self) -> list[Any]:
        return self.thoughts

    async def tell(self, to: str, *messages: Any) -> int:
        for message in messages:
            await self.send(to, message)
        return len(messages)

    async def pour(self, to: str, first: int, count: int) -> int:
        """At once, without waiting in between."""
        for future in [self.send(to, number) for number in range(first, first + count)]:
            await future
        return count

    async def fling(self, to: str, first: int, count: int) -> int:
        """Without waiting at all."""
        for number in range(first, first + count):
            self.send(to, number)
        return count

    async def wonder(self, to: str, first: int, count: int) -> int:
        """The same of questions."""
        for number in range(first, first + count):
            self.ask(to, number)
        return count

    async def note(self, count: int) -> int:
        """The same of what it is to remember."""
        for number in range(count):
            self.observe(f"Fact {number}.")
        return count

    async def question(self, to: str, message: Any, timeout: float | None = None) -> Any:
        try:
            return await self.ask(to, message, timeout=timeout)
        except Exception as error:
            return [type(error).__name__, str(error)]

    async def through(self, *to: str) -> Any:
        """Asked by the first of these, which asks the next, and so on; the last is asked last."""
        first, *rest = to
        return await self.ask(first, ["through", *rest] if rest else "what?")

    async def everybody(self, to: list[str], message: Any) -> None:
        await self.broadcast(message, to)

    async def odd(self, what: str) -> list[str]:
        """What a behaviour of one system may do."""
        tries: dict[str, Callable[[], object]] = {
            "object": lambda: self.send("nobody", object()),
            "all": lambda: self.broadcast("hello"),
            "topic": lambda: self.subscribe("news"),
            "published": lambda: self.publish("news", "hello"),
            "watched": lambda: self.watch("nobody"),
            "stopped": lambda: self.stop("nobody"),
        }
        try:
            tries[what]()
        except Exception as error:
            return [type(error).__name__, str(error)]
        return []

    async def turned(self, to: str, text: str) -> Any:
        reply = await self.ask(to, text)
        return [reply.text, await reply.durable]

    async def family(self, child: str) -> Any:
        await self.spawn(child, behaviour="talking:Diary")
        return await self.ask(child, "hello")


class Gate(AgentBehaviour):
    """Handles a message for as long as a test wants: in the process of that."""

    opened: ClassVar[threading.Event] = threading.Event()
    entered: ClassVar[threading.Event] = threading.Event()
    left: ClassVar[threading.Event] = threading.Event()

    async def on_message(self, message: Any, sender: Any) -> Any:
        Gate.entered.set()
        try:
            await self.run_blocking(Gate.opened.wait, 60)
        finally:
            Gate.left.set()
        reply = await self.think(f"My cat is called {message}.", sampling=SHORT)
        return reply.finish_reason


class Late(AgentBehaviour):
    """Takes nothing before the Gate is open; then it keeps all, in order."""

    def on_start(self) -> None:
        self.told: list[Any] = []

    async def on_message(self, message: Any, sender: Any) -> Any:
        if not Gate.opened.is_set():
            await self.run_blocking(Gate.opened.wait, 60)
        self.told.append(message)
        return self.told


class Scribe(AgentBehaviour):
    """Thinks of what it is told, and answers when that is durable."""

    async def on_message(self, message: Any, sender: Any) -> Any:
        reply = await self.think(f"Number {message}.", sampling=SHORT)
        await reply.durable
        return message


class Ticking(AgentBehaviour):
    """Tells itself something again and again."""

    def on_start(self) -> None:
        self.ticks = 0
        self.every(0.01, "tick")

    def on_message(self, message: Any, sender: Any) -> Any:
        self.ticks += message == "tick"
        return self.ticks


class Picky(AgentBehaviour):
    """Raises what it is told."""

    def on_message(self, message: Any, sender: Any) -> Any:
        if message == "object":
            return object()
        raise {"key": KeyError, "loop": asyncio.TimeoutError}.get(message, ValueError)(message)


class Blocked(AgentBehaviour):
    """Of a kind that has a thread of its own."""

    blocking = True
