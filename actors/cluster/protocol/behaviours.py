"""What a node needs of whoever runs the behaviours of its agents. On its loop."""

from collections.abc import Callable
from typing import Any, Protocol

from kvactors.actors.cluster.protocol.interfaces import Letter
from kvactors.core.errors import InvalidConfig

__all__ = ["Behaviours", "NoBehaviours"]


class Behaviours(Protocol):
    """Of the agents of one host."""

    async def begin(self, agent: str, name: str | None, supervision: Any) -> None:
        """`agent` is in memory: begin its behaviour of this `name`, if it has one, under this
        `supervision`. Idempotent. Raises InvalidConfig for one that this node cannot make."""
        ...

    async def end(self, agent: str) -> None:
        """It leaves memory: its behaviour ends, in the middle of what it does. Idempotent."""
        ...

    def busy(self, agent: str, *, timers: bool = False) -> bool:
        """Whether that of `agent` handles messages, or has some that wait, or sent some that do; or
        has `timers`, if those count."""
        ...

    def deliver(self, agent: str, letter: Letter, answered: Callable[[bytes], object]) -> None:
        """Hand a message to `agent`, which is in memory: at once. `answered` is called on the loop
        with the answer to a `letter` that asks. Raises what its mailbox does: nobody has it."""
        ...

    def waits(self, ticket: str) -> list[tuple[str, str]]:
        """For whose answers, without a limit, the answer to the letter of this `ticket` waits, one
        after the other: agents, and the tickets of what they were asked. None that end."""
        ...


class NoBehaviours:
    """No agent has one."""

    async def begin(self, agent: str, name: str | None, supervision: Any) -> None:
        """Raise InvalidConfig for `agent` if it has a `name`, whatever the `supervision`."""
        if name is not None:
            raise InvalidConfig(f"{agent!r} behaves as {name}, and this node runs no behaviours")

    async def end(self, agent: str) -> None:
        """There is none."""

    def busy(self, agent: str, *, timers: bool = False) -> bool:
        """Never, with `timers` or without, is `agent`."""
        return False

    def deliver(self, agent: str, letter: Letter, answered: Callable[[bytes], object]) -> None:
        """Raise InvalidConfig: no `letter` to `agent` is `answered`."""
        raise InvalidConfig(f"{agent!r} lives on a node that takes no messages")

    def waits(self, ticket: str) -> list[tuple[str, str]]:
        """Nobody does: no letter has a `ticket`."""
        return []
