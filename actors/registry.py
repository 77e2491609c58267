"""The agents of one system: spawned, restored, forked, forgotten."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

from kvactors.actors.agent import AgentActor
from kvactors.actors.behaviour import AgentBehaviour
from kvactors.actors.crew import Crew
from kvactors.actors.dispatcher import send
from kvactors.actors.errors import AgentExists, AgentNotStored, LedgerUnreadable, public
from kvactors.actors.futures import ReplyFuture
from kvactors.actors.handle import Agent
from kvactors.actors.launch import ModelInfo
from kvactors.actors.mailbox import LanePolicy, MailboxFull
from kvactors.actors.messages import (
    CacheAhead,
    CancelTurn,
    Forget,
    ForgetStored,
    Fork,
    MakePrompt,
    ReadLedger,
)
from kvactors.actors.model_messages import Pause
from kvactors.actors.parameters import check_id, check_system_prompt, check_turn
from kvactors.actors.reply import Ticket
from kvactors.actors.stage import Stage
from kvactors.actors.supervision import Supervision
from kvactors.actors.wiring import Wiring
from kvactors.core.errors import InvalidConfig, InvalidInput, SystemStopped, TurnTimeout
from kvactors.core.overflow import ContextPolicy, check_policy
from kvactors.core.transcript import Transcript

__all__ = ["Registry"]


class Registry:
    """The part of AgentSystem that makes and ends agents. `isolated`: nothing is shared."""

    def __init__(self, *, isolated: bool, prompt_lane: LanePolicy) -> None:
        self._crew = Crew()
        self._stage = Stage(self, self._crew.outstanding)
        self._prompt_lane = prompt_lane
        self._lock = threading.RLock()
        self._agents: dict[str, Agent] = {}
        # Ids of children whose parents have turns to finish first.
        self._forking: set[str] = set()
        self._isolated = isolated
        self._state = "new"
        self._swapping = False
        self._info: ModelInfo | None = None

    @property
    def info(self) -> ModelInfo:
        """The loaded model: name, cache spec, fingerprint, device, memory budget."""
        if self._info is None:
            raise SystemStopped("the system has not been started: use `with` or start()")
        return self._info

    def _abandon(self) -> None:
        """In a forked child: none of the threads is there; the system stays the parent's."""
        self._lock, self._state = threading.RLock(), "left to the process that it was forked from"
        self._crew.outstanding.abandon(SystemStopped(f"the system is {self._state}"))

    def _require_running(self) -> None:
        if self._state != "running":
            raise SystemStopped(f"the system is {self._state}: use it inside `with`")

    def spawn(
        self,
        agent_id: str,
        system_prompt: str | None = None,
        *,
        from_: str | Agent | None = None,
        context_policy: ContextPolicy = "refuse",
        prompt_lane: LanePolicy | None = None,
        behaviour: AgentBehaviour | Callable[[], AgentBehaviour] | None = None,
        supervision: Supervision | None = None,
        parent: str | None = None,
    ) -> Agent:
        """The agent of this id, restored if the store knows it. Writes nothing, reads no KV.

        `system_prompt` None means as stored. `from_` another agent: a new one that remembers
        all that the other has when its turns so far are done, without a copy of its KV in
        memory or on disk. `context_policy`: what happens at the end of the context, "refuse",
        DropOldest() or Summarize(). `prompt_lane`: how many prompts and messages may wait for
        it, and what then happens; by default the system's. `behaviour`: what it does with
        messages, or what makes one anew after every restart; `supervision`: how that goes on
        after an error, and `parent` whom it may escalate to. Raises InvalidAgentId,
        InvalidConfig, SystemPromptMismatch, AgentExists, AgentNotStored, LedgerUnreadable (for
        that agent alone), SaveFailed (a fork, while the disk refuses what its parent was told),
        SystemStopped.
        """
        check_id(agent_id)
        check_system_prompt(system_prompt)
        check_policy(context_policy)
        if from_ is not None:
            if system_prompt is not None:
                raise InvalidConfig("a fork has its parent's system prompt: leave it unset")
            agent = self._fork(agent_id, from_, context_policy)
        else:
            agent = self._spawn(agent_id, system_prompt, context_policy)
        if prompt_lane is not None:
            agent._actor.actor_inbox.lane = prompt_lane
        if behaviour is not None:
            lane = agent._actor.actor_inbox.lane
            self._stage.begin(agent, behaviour, supervision or Supervision(), lane, parent)
        return agent

    def find(self, agent_id: str) -> Agent | None:
        """The agent of this id, if it was spawned in this system."""
        return self._agents.get(agent_id)

    def post(self, agent_id: str, message: Any) -> ReplyFuture[None]:
        """Send a message from outside of the agents. For `Agent`."""
        self._require_running()
        return self._stage.post(agent_id, message, None)

    def request(self, agent_id: str, message: Any, timeout: float | None) -> ReplyFuture[Any]:
        """Send a message and wait for its answer. For `Agent`."""
        self._require_running()
        check_turn(None, timeout)
        return self._stage.ask(agent_id, message, None, timeout)

    def agents(self) -> list[Agent]:
        """The agents spawned in this system, in the order of their ids."""
        with self._lock:
            return [self._agents[agent_id] for agent_id in sorted(self._agents)]

    def prefetch(self, agent_id: str) -> None:
        """Read an agent's KV from disk ahead of its next turn, if there is room for it."""
        agent = self.spawn(agent_id)
        send(agent._actor.actor_ref, CacheAhead())

    def forget(self, agent_id: str) -> None:
        """Delete an agent from memory and disk; its running turn fails."""
        check_id(agent_id)
        with self._lock:
            self._require_running()
            agent = self._agents.pop(agent_id, None)
            self._stage.stop(agent_id)
            if agent is not None:
                agent._actor.actor_ref.stop()
            self._crew.ask(self._crew.gpu, Forget(agent_id))
            if self._crew.persistence is not None:
                self._crew.ask(self._crew.persistence, ForgetStored(agent_id))

    def send(
        self,
        actor: AgentActor,
        make: MakePrompt,
        timeout: float | None,
        *,
        streamed: bool,
    ) -> Ticket:
        """Put a prompt into the lane of an agent of this system. For `Agent`."""
        ticket = Ticket.begin(actor.agent_id, streamed=streamed)
        self._crew.outstanding.begin_turn(ticket)
        try:
            accepted = send(actor.actor_ref, make(ticket))
        except MailboxFull as error:
            ticket.reject(error)
            raise
        if not accepted:
            gone = SystemStopped(f"agent {actor.agent_id!r} was forgotten or stopped")
            ticket.reject(gone)
            raise gone
        if timeout is not None:
            # Weakly: a reply that arrived long ago is not kept for its deadline.
            late = weakref.ref(ticket)
            self._crew.timer.after(timeout, lambda: _expire(actor, late(), timeout))
        return ticket

    def _spawn(self, agent_id: str, system_prompt: str | None, policy: ContextPolicy) -> Agent:
        with self._lock:
            self._require_running()
            known = self._agents.get(agent_id)
            if known is None:
                transcript = self._restored(agent_id, system_prompt)
                return self._begin(agent_id, transcript, policy)
            known._actor.transcript.require_system_prompt(system_prompt)
            known._actor.context_policy = policy
            return known

    def _fork(self, child: str, parent: str | Agent, policy: ContextPolicy) -> Agent:
        source = parent if isinstance(parent, Agent) else self._parent(parent)
        if source._system is not self:
            raise InvalidInput(f"agent {source.agent_id!r} belongs to another system")
        with self._lock:
            self._require_running()
            if child in self._agents or child in self._forking:
                raise AgentExists(child)
            self._forking.add(child)
        try:
            ticket = self.send(source._actor, lambda t: Fork(t, child), None, streamed=False)
            copied, stored = ticket.reply.get()
            if stored is not None:
                stored.get()
            elif self._records(child):
                # A parent without turns has nothing to be forked in the store, which would tell.
                raise AgentExists(child, "is stored")
            with self._lock:
                return self._begin(child, copied, policy)
        except BaseException as error:
            self._crew.ask(self._crew.gpu, Forget(child))
            if isinstance(error, OSError):
                raise public(error) from error
            raise
        finally:
            self._forking.discard(child)

    def _parent(self, agent_id: str) -> Agent:
        check_id(agent_id)
        with self._lock:
            self._require_running()
            if agent_id not in self._agents and not self._records(agent_id):
                raise AgentNotStored(agent_id)
            return self.spawn(agent_id)

    def _records(self, agent_id: str) -> Any:
        """An agent's ledger, or None."""
        if self._crew.persistence is None:
            return None
        return self._crew.ask(self._crew.persistence, ReadLedger(agent_id))

    def _restored(self, agent_id: str, system_prompt: str | None) -> Transcript:
        if agent_id in self._forking:
            raise AgentExists(agent_id, "is just being forked")
        records = self._records(agent_id)
        info = self.info
        try:
            transcript = Transcript.restore(info.chat, info.tokenizer_id, records or ())
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerUnreadable(
                f"of {agent_id!r}", f"it holds records of another form: {error}"
            ) from error
        if records:
            transcript.require_system_prompt(system_prompt)
        else:
            transcript.system_prompt = system_prompt
        return transcript

    def _begin(self, agent_id: str, transcript: Transcript, policy: ContextPolicy) -> Agent:
        crew = self._crew
        wiring = Wiring(
            crew.gpu,
            crew.persistence,
            crew.outstanding,
            self.info,
            crew.pool,
            self._isolated,
            crew.log_text,
        )
        actor = AgentActor(agent_id, transcript, wiring, policy)
        actor.actor_inbox.lane = self._prompt_lane
        actor.begin()
        if self._swapping:
            send(actor.actor_ref, Pause(ReplyFuture()))
        self._agents[agent_id] = Agent(self, actor)
        return self._agents[agent_id]


def _expire(actor: AgentActor, ticket: Ticket | None, seconds: float) -> None:
    if ticket is not None and not ticket.reply.done:
        late = TurnTimeout(f"the turn of {actor.agent_id!r} took longer than {seconds:g} s")
        send(actor.actor_ref, CancelTurn(ticket, late))
