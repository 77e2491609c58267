"""What the server needs of whatever has the agents: an AgentSystem, or a cluster's front."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kvactors.actors.turns.options import TurnOptions
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.turn import Turn
from kvactors.core.model.info import ModelInfo

__all__ = ["Home", "Speaker", "of_nobody"]

# Of a health, of a system or of a cluster.
_NOBODYS = ("state", "step_seconds", "rebuilds", "storage", "alive", "away")


class Remembered(Protocol):
    """A transcript."""

    @property
    def turns(self) -> Sequence[Turn]: ...


class Speaker(Protocol):
    """An agent, as `kvactors.actors.agents.handle.Agent` says."""

    @property
    def agent_id(self) -> str: ...

    @property
    def system_prompt(self) -> str | None: ...

    def transcript(self) -> Remembered: ...

    def open_turn(self, turn: TurnOptions) -> Ticket: ...

    def end_turn(self, ticket: Ticket) -> None: ...


class Home(Protocol):
    """Where agents live, as `kvactors.actors.system.system.AgentSystem` says. Any thread."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def chat(self) -> ChatFormat: ...

    def spawn(self, agent_id: str, *, from_: str | None = None, wait: bool = True) -> Speaker:
        """The agent `agent_id`, as it is by now; `from_`: a new one with the memory of that one,
        once the turn that it takes has ended, unless not to `wait`. Raises KvactorsError, for a
        fork AgentExists, and AgentNotStored where there is no parent."""
        ...

    def find(self, agent_id: str) -> Any:
        """The agent of this id if it is in memory, None otherwise. Makes nothing."""
        ...

    def forget(self, agent_id: str) -> None: ...

    def health(self) -> Any:
        """A record with a `state` ("ok" and "stalled" take turns)."""
        ...


def of_nobody(health: Mapping[str, Any]) -> dict[str, Any]:
    """What any key may be told of a `health`: no error, for it may say what an agent was told or
    where the store is, no agents, and no sum over those of all keys."""
    return {name: health[name] for name in _NOBODYS if name in health}
