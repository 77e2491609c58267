"""Host: what an agent's handle asks of the system that it lives in."""

from typing import Any, Protocol

from kvactors.actors.agent import AgentActor
from kvactors.actors.futures import ReplyFuture
from kvactors.actors.messages import MakePrompt
from kvactors.actors.reply import Ticket
from kvactors.core.info import ModelInfo

__all__ = ["Host"]


class Host(Protocol):
    """Takes prompts and messages for its agents. Any thread."""

    @property
    def info(self) -> ModelInfo:
        """The loaded model. Raises SystemStopped before there is one."""

    def send(
        self, actor: AgentActor, make: MakePrompt, timeout: float | None, *, streamed: bool
    ) -> Ticket:
        """Put the prompt that `make` makes of a new ticket into an agent's lane; it fails with
        TurnTimeout after `timeout` seconds. Raises MailboxFull, SystemStopped, EngineDied."""

    def post(self, agent_id: str, message: Any) -> ReplyFuture[None]:
        """Send a message to an agent's behaviour. Raises SystemStopped."""

    def request(self, agent_id: str, message: Any, timeout: float | None) -> ReplyFuture[Any]:
        """Send a message and get its answer, within `timeout` seconds. Raises InvalidInput,
        SystemStopped."""
