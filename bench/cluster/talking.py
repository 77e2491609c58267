"""Two behaviours that nodes import: one sends, one counts."""

from typing import Any

from kvactors.actors import AgentBehaviour

__all__ = ["Counter", "Sender"]

AT_ONCE = 5000


class Counter(AgentBehaviour):
    """Counts numbers; asked with a word, it gives the count."""

    def on_start(self) -> None:
        """None yet."""
        self.count = 0

    def on_message(self, message: Any, sender: Any) -> int:
        """One more, or how many there were."""
        self.count += isinstance(message, int)
        return self.count


class Sender(AgentBehaviour):
    """Sends so many numbers to the Counter called "counter"."""

    async def on_message(self, message: Any, sender: Any) -> int:
        """How many it has counted once all are sent; of how many, and whether each waits for the
        last."""
        count, single = message
        step = 1 if single else AT_ONCE
        for first in range(0, count, step):
            for sent in [self.send("counter", n) for n in range(first, min(first + step, count))]:
                await sent
        found: int = await self.ask("counter", "how many?")
        return found
