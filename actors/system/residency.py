"""Which agents are in memory: read ahead of a turn, or let go and not deleted. Any thread."""

from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.agents.host import AgentHost
from kvactors.actors.behaviours.supervisor import BehaviourSupervisor
from kvactors.actors.runtime.blocking import check_outside_of_actors
from kvactors.actors.runtime.dispatcher import send
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.system.registry import AgentRegistry
from kvactors.actors.turns.checks import check_id, check_turn
from kvactors.actors.turns.messages_agent import Adopt, Leave, Pause, Prefetch
from kvactors.actors.turns.messages_store import WithStore
from kvactors.core.errors import InvalidConfig, KvactorsError, SystemStopped

__all__ = ["Residency"]


class Residency:
    """Brings `agents` of one system into memory and out of it; `lifecycle` has the actors, `host`
    the lanes, `behaviours` says who has one."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        host: AgentHost,
        agents: AgentRegistry,
        behaviours: BehaviourSupervisor,
    ) -> None:
        self._lifecycle = lifecycle
        self._host = host
        self._agents = agents
        self._behaviours = behaviours

    def prefetch(self, agent_id: str) -> None:
        """Read an agent's KV ahead of its next turn, if there is room. Raises AgentNotStored."""
        check_id(agent_id)
        send(self._agents.existing(agent_id, "to prefetch").actor.actor_ref, Prefetch())

    def deactivate(self, agent_id: str, *, timeout: float | None = None) -> None:
        """Let an agent leave memory without deleting it: its actor, its transcript, its KV.

        Its turns so far end first, and are on disk on return; `spawn` brings it back, warm, with
        the policy and lane that `spawn` is given then. A handle of before raises SystemStopped. One
        that is not in memory already stays as it is. Raises, and leaves it in memory: TurnTimeout
        if its turns take longer than `timeout` seconds, SaveFailed if the disk refuses some,
        InvalidInput if it has a behaviour, InvalidConfig without a store; MailboxFull,
        SaveQueueFull, EngineDied as a prompt; SystemStopped, BlockingCall inside an actor.
        """
        check_id(agent_id)
        seconds, _ = check_turn(None, timeout)
        check_outside_of_actors()
        self._lifecycle.require_running()
        if self._lifecycle.persistence is None:
            raise InvalidConfig(
                "with store=False an agent is nowhere but in memory: forget it, or give the "
                "system a store"
            )
        actor = self._agents.actor(agent_id)
        if actor is None:
            return
        self._behaviours.check_none(agent_id)
        pause = Pause(ReplyFuture())
        ticket = self._host.send(actor, lambda t: Leave(t, pause), seconds, streamed=False)
        try:
            ticket.reply.get()
        except SystemStopped:
            # Somebody else let it go in the meantime.
            if not actor.deactivated:
                raise
            return
        except KvactorsError:
            raise
        except BaseException as error:  # Ctrl-C: it is not to leave any more.
            if not ticket.reject(error):
                self._go_on(actor, pause)
            raise
        try:
            # All of its turns are written first.
            message = WithStore(lambda _: None, agent_id)
            self._lifecycle.ask(self._lifecycle.persistence, message)
            # First: whoever gives it a behaviour just now sees that it leaves.
            actor.deactivated = True
            self._behaviours.check_none(agent_id)
        except BaseException:
            actor.deactivated = False
            self._go_on(actor, pause)
            raise
        self._agents.take_out(actor)

    def _go_on(self, actor: AgentActor, pause: Pause) -> None:
        """It was to leave, and takes turns again, unless a swap has paused it since."""
        send(actor.actor_ref, Adopt(self._host.info, ReplyFuture(), pause))
