"""What a host needs of whoever runs the behaviours of its agents. On its loop."""

from collections.abc import Callable
from typing import Protocol

from kvactors.actors.cluster.protocol.interfaces import Letter
from kvactors.actors.runtime.supervision import Supervision
from kvactors.core.errors import InvalidConfig

__all__ = ["Behaves", "NobodyBehaves"]


class Behaves(Protocol):
    """The behaviours of one node."""

    async def begin(self, agent: str, name: str | None, supervision: Supervision | None) -> None:
        """`agent` is in memory: begin its behaviour of this `name`, if it has one, under this
        `supervision`. Idempotent. Raises InvalidConfig for one that this node cannot make."""
        ...

    async def end(self, agent: str) -> None:
        """It leaves memory: its behaviour ends, in the middle of what it does. Idempotent."""
        ...

    def busy(self, agent: str, *, timers: bool) -> bool:
        """Whether that of `agent` has messages; or `timers`, if those count."""
        ...

    def deliver(self, agent: str, letter: Letter, answered: Callable[[bytes], object]) -> None:
        """See Host: hand `letter` to `agent`, and have it `answered`."""
        ...


class NobodyBehaves:
    """No agent has a behaviour."""

    async def begin(self, agent: str, name: str | None, supervision: Supervision | None) -> None:
        """Raise InvalidConfig for `agent` if its spawn record has a `name`; whatever the
        `supervision`."""
        if name is not None:
            raise InvalidConfig(f"{agent!r} behaves as {name}, and this node runs no behaviours")

    async def end(self, agent: str) -> None:
        """There is none."""

    def busy(self, agent: str, *, timers: bool) -> bool:
        """Never."""
        return False

    def deliver(self, agent: str, letter: Letter, answered: Callable[[bytes], object]) -> None:
        """Raise InvalidConfig: no `letter` to `agent` is `answered`."""
        raise InvalidConfig(f"{agent!r} lives on a node that takes no messages")
