"""The agents of one system: spawned, restored, forked, forgotten."""

import threading
from collections.abc import Callable
from typing import Any

from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.agents.handle import Agent
from kvactors.actors.agents.host import AgentHost, gone
from kvactors.actors.behaviours.behaviour import AgentBehaviour
from kvactors.actors.behaviours.supervisor import BehaviourSupervisor
from kvactors.actors.errors import AgentExists, AgentNotStored, public
from kvactors.actors.runtime.blocking import check_may_block
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.runtime.keyed_lock import KeyedLock
from kvactors.actors.runtime.mailbox import LanePolicy
from kvactors.actors.runtime.supervision import Supervision
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.system.parameters import check_spawn
from kvactors.actors.system.spawned import AgentMaker, Spawned, restored, tell_each
from kvactors.actors.turns.checks import check_flag, check_id, check_system_prompt, naming_nearest
from kvactors.actors.turns.messages_agent import Adopt, Fork, Pause
from kvactors.actors.turns.messages_gpu import Forget
from kvactors.actors.turns.messages_store import ForgetStored
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.conversation.context_policy import ContextPolicy, check_policy
from kvactors.core.errors import InvalidConfig, InvalidInput
from kvactors.core.model.info import ModelInfo

__all__ = ["AgentRegistry"]


class AgentRegistry:
    """The agents of one system. Any thread.

    `lifecycle` has the actors that they need, `host` their model, `behaviours` begins theirs.
    `isolated`: agents share no KV; `log_text`: what they say may stand in the log. Agents are
    given `lane` if they are given none.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        host: AgentHost,
        behaviours: BehaviourSupervisor,
        *,
        isolated: bool,
        lane: LanePolicy,
        log_text: bool,
    ) -> None:
        self.maker = AgentMaker(lifecycle, host, isolated=isolated, lane=lane, log_text=log_text)
        self._lifecycle = lifecycle
        self._host = host
        self._behaviours = behaviours
        # Held for moments: who runs actors may spawn. Who waits for an actor has the agent's key.
        self._lock = threading.RLock()
        self._keys = KeyedLock()
        self._spawned: dict[str, Spawned] = {}
        # Ids of agents that are just being forked or imported: nobody else's until they are there.
        self._coming: set[str] = set()

    def __len__(self) -> int:
        return len(self._spawned)

    # -- all of them -------------------------------------------------------------------

    def close(self) -> list[Any]:
        """No agent is spawned any more; the references of all that were."""
        with self._lock:
            self._lifecycle.state = "stopped"
            return [spawned.actor.actor_ref for spawned in self._spawned.values()]

    def abandon(self) -> None:
        """In a forked child: whoever held the locks is gone."""
        self._lock, self._keys = threading.RLock(), KeyedLock()

    def actors(self) -> list[AgentActor]:
        """The actors of all agents. Without the lock: callbacks look at them, too."""
        return [spawned.actor for spawned in self._spawned.copy().values()]

    def actor(self, agent_id: str) -> AgentActor | None:
        """The actor of an agent, if it was spawned."""
        return spawned.actor if (spawned := self._spawned.get(agent_id)) else None

    def pause(self) -> list[ReplyFuture[bool]]:
        """Let no agent begin a turn; futures are settled when none of theirs runs, or is left."""
        with self._lock:
            self._lifecycle.require_running()
            self.maker.paused = True
            return tell_each(self.actors(), Pause)

    def resume(self, model: ModelInfo) -> list[ReplyFuture[bool]]:
        """Let every agent remember under this model and take turns again."""
        with self._lock:
            self._host.model, self.maker.paused = model, False
            return tell_each(self.actors(), lambda done: Adopt(model, done))

    @naming_nearest
    def spawn(
        self,
        agent_id: str,
        system_prompt: str | None = None,
        *,
        from_: str | Agent | None = None,
        wait: bool = True,
        context_policy: ContextPolicy | None = None,
        prompt_lane: LanePolicy | None = None,
        behaviour: AgentBehaviour | Callable[[], AgentBehaviour] | None = None,
        supervision: Supervision | None = None,
        parent: str | None = None,
    ) -> Agent:
        """The agent `agent_id`, restored if the store knows it. Writes nothing, reads no KV.

        `system_prompt` None means as stored. `from_` another agent: a new one that remembers all
        that the other has when its turns so far are done, or without `wait` all but what a turn
        says that still runs; its KV is not copied in memory or on disk. `context_policy`: what
        happens at the end of the context, "refuse", DropOldest() or Summarize(); None leaves it as
        it is; it is not stored. `prompt_lane`: how many prompts and messages may wait for it, and
        what then happens; by default the system's. `behaviour`: what it does with messages, or what
        makes one anew after every restart; `supervision`: how that goes on after an error, `parent`
        whom it may escalate to. Raises InvalidAgentId, InvalidConfig, SystemPromptMismatch,
        AgentExists, AgentNotStored, LedgerUnreadable (for that agent alone), SaveFailed,
        SystemStopped; a fork, of its parent, MailboxFull, SaveQueueFull, EngineDied.
        """
        check_id(agent_id)
        check_system_prompt(system_prompt)
        check_policy("refuse" if context_policy is None else context_policy)
        check_spawn(prompt_lane, behaviour, supervision, parent)
        check_flag("wait", wait)
        if parent is not None and parent not in self._spawned:
            raise InvalidConfig(f"parent {parent!r} is no agent of this system: spawn it first")
        if from_ is not None:
            if system_prompt is not None:
                raise InvalidConfig("a fork has its parent's system prompt: leave it unset")
            agent = self._fork(agent_id, from_, context_policy, wait=wait)
        else:
            agent = self._spawn(agent_id, system_prompt, context_policy)
        lane = prompt_lane or agent.actor.actor_inbox.lane
        if behaviour is not None:
            policy = supervision or Supervision()
            try:
                self._behaviours.begin(agent.handle, behaviour, policy, lane, parent)
            except BaseException:
                if from_ is not None:
                    self.forget(agent_id)
                raise
            if agent.actor.deactivated:  # Meanwhile.
                self._behaviours.stop(agent_id)
                raise gone(agent_id, deactivated=True)
        agent.actor.actor_inbox.lane = lane
        self._behaviours.set_lane(agent_id, lane)
        return agent.handle

    def find(self, agent_id: str) -> Agent | None:
        """The agent of this id, if it was spawned in this system. Raises InvalidAgentId."""
        check_id(agent_id)
        return spawned.handle if (spawned := self._spawned.get(agent_id)) else None

    def add(self, agent_id: str, store: Callable[[], None]) -> Agent:
        """The agent that `store` puts into the store. Raises AgentExists, and what that raises."""
        self._claim(agent_id)
        try:
            store()
            with self._keys.of(agent_id):
                self._coming.remove(agent_id)
                return self._restored(agent_id).handle
        finally:
            self._coming.discard(agent_id)

    def agents(self) -> list[Agent]:
        """The agents spawned in this system, in the order of their ids."""
        return [spawned.handle for _, spawned in sorted(self._spawned.copy().items())]

    def forget(self, agent_id: str) -> None:
        """Delete an agent from memory and disk, whatever it does by then. Raises AgentNotStored."""
        check_id(agent_id)
        check_may_block()
        with self._keys.of(agent_id):
            with self._lock:
                self._lifecycle.require_running()
                if agent_id in self._coming:
                    raise AgentNotStored(agent_id, "to forget")
                spawned = self._spawned.pop(agent_id, None)
            self._behaviours.end(agent_id)
            if spawned is not None:
                spawned.actor.actor_ref.stop()
            self._lifecycle.ask(self._lifecycle.gpu, Forget(agent_id))
            store, known = self._lifecycle.persistence, spawned is not None
            if store is not None:
                known |= self._lifecycle.ask(store, ForgetStored(agent_id))
            if not known:
                raise AgentNotStored(agent_id, "to forget")

    def take_out(self, actor: AgentActor) -> None:
        """An agent leaves memory: what its actor is to do is done. Idempotent."""
        with self._keys.of(actor.agent_id):
            with self._lock:
                known = self._spawned.get(actor.agent_id)
                if known is None or known.actor is not actor:
                    return
                actor.deactivated = True
                del self._spawned[actor.agent_id]
            actor.actor_ref.stop()
            self._lifecycle.ask(self._lifecycle.gpu, Forget(actor.agent_id))

    def existing(self, agent_id: str, purpose: str) -> Spawned:
        """The agent, spawned before or stored; `purpose`: what for. Raises AgentNotStored."""
        return self._spawn(agent_id, purpose=purpose)

    def _spawn(
        self,
        agent_id: str,
        system_prompt: str | None = None,
        policy: ContextPolicy | None = None,
        purpose: str = "",
    ) -> Spawned:
        self._lifecycle.require_running()
        if (known := self._spawned.get(agent_id)) is None:
            with self._keys.of(agent_id):
                if (known := self._spawned.get(agent_id)) is None:
                    if agent_id in self._coming:
                        raise AgentExists(agent_id, "is just being made")
                    return self._restored(agent_id, system_prompt, policy, purpose)
        known.actor.transcript.require_system_prompt(system_prompt)
        if policy is not None:
            known.actor.context_policy = policy
        return known

    def _fork(
        self, child: str, parent: str | Agent, policy: ContextPolicy | None, *, wait: bool
    ) -> Spawned:
        check_may_block()
        source = self._source(parent)
        self._claim(child)
        stored: ReplyFuture[Any] | None = None
        ticket: Ticket | None = None
        try:
            ticket = self._host.send(source, lambda t: Fork(t, child, wait), None, streamed=False)
            copied, stored = ticket.reply.get()
            if stored is not None:
                stored.get()
            elif self.maker.records(child):
                # A parent without turns has nothing to be forked in the store, which would tell.
                raise AgentExists(child, "is stored")
            with self._lock:
                self._spawned[child] = self.maker.begin(child, copied, policy)
                self._coming.discard(child)
                return self._spawned[child]
        except BaseException as error:
            # Ctrl-C: one that has not begun never will.
            if ticket is not None and not ticket.reject(error) and ticket.reply.error is None:
                _, stored = ticket.reply.get()
            undone = source.services.undo_fork(child, stored)
            undone.on_done(lambda _: self._coming.discard(child))
            if isinstance(error, Exception):
                undone.get()
            if isinstance(error, OSError):
                raise public(error) from error
            raise

    def _source(self, parent: str | Agent) -> AgentActor:
        """The actor of the agent that is forked."""
        if isinstance(parent, Agent):
            if parent.host is not self._host:
                raise InvalidInput(f"agent {parent.agent_id!r} belongs to another system")
            spawned = self._spawned.get(parent.agent_id)
            if spawned is None or spawned.handle is not parent:
                raise gone(parent.agent_id)
            return spawned.actor
        check_id(parent)
        return self.existing(parent, "to fork").actor

    def _claim(self, agent_id: str) -> None:
        """Nobody else's from now on, until it is there or given up. Raises AgentExists."""
        with self._keys.of(agent_id), self._lock:
            self._lifecycle.require_running()
            if agent_id in self._spawned or agent_id in self._coming:
                raise AgentExists(agent_id)
            self._coming.add(agent_id)

    def _restored(
        self,
        agent_id: str,
        system_prompt: str | None = None,
        policy: ContextPolicy | None = None,
        purpose: str = "",
    ) -> Spawned:
        """The agent as the store has it, or a new one but for a `purpose`. Its key is held."""
        records = self.maker.records(agent_id)
        if purpose and not records:
            raise AgentNotStored(agent_id, purpose)
        with self._lock:
            self._lifecycle.require_running()
            if agent_id in self._spawned:
                # Where one thread does all, others may have spawned it meanwhile.
                return self._spawn(agent_id, system_prompt, policy)
            # Under the model of this moment: a later one is told to who is there.
            transcript = restored(self._host.info, agent_id, records, system_prompt)
            self._spawned[agent_id] = self.maker.begin(agent_id, transcript, policy)
            return self._spawned[agent_id]
