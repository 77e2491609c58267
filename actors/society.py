"""What AgentSystem offers about messages: topics, watching, dead letters."""

from typing import Any

from kvactors.actors.checks import check_system
from kvactors.actors.futures import ReplyFuture
from kvactors.actors.handle import Agent
from kvactors.actors.health import Health
from kvactors.actors.supervision import DeadLetter, Terminated
from kvactors.actors.swap import Swap

__all__ = ["Society"]


class Society(Swap):
    """The part of AgentSystem that sees agents as receivers of messages."""

    def publish(self, topic: str, message: Any) -> ReplyFuture[None]:
        """Send to every behaviour that subscribed to a topic. Any thread."""
        self._require_running()
        return self._stage.publish(topic, message, None)

    def watch(self, agent: str | Agent) -> ReplyFuture[Terminated]:
        """A future that resolves when an agent's behaviour ends; at once if it has none."""
        agent_id = agent if isinstance(agent, str) else agent.agent_id
        future: ReplyFuture[Terminated] = ReplyFuture()
        self._stage.on_end(agent_id, future.resolve)
        return future

    def check(self) -> None:
        """Prove that nothing is leaked: blocks, rows, futures, threads. AssertionError is a bug
        of kvactors, and says what is left. Proves most when the system is idle."""
        self._require_running()
        check_system(self._crew, self._stage, self.agents())

    def health(self) -> Health:
        """How the engine and the store are, without waiting for either. Any thread."""
        self._require_running()
        vitals, seconds = self._crew.vitals, self._crew.vitals.step_seconds
        stalled = vitals.state == "ok" and seconds > self._crew.watchdog
        return Health(
            "stalled" if stalled else vitals.state,
            seconds,
            vitals.rebuilds,
            vitals.error,
            "failing" if self._crew.outstanding.unsaved.disk_fails else "ok",
            self._crew.outstanding.unsaved.total,
        )

    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The latest messages that nobody handled, 1,000 at most.

        Behaviours get them as they come under the topic "dead letters".
        """
        return tuple(self._stage.letters)
