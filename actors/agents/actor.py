"""The agent actor: one turn at a time, the transcript, and what becomes durable.

It runs on pool threads and never waits: while its turn is on the GPU its prompt lane is
shut and its thread serves other agents.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvactors.actors.agents.answers import log_answer, make_answer, prompt_of, said_now
from kvactors.actors.agents.planner import Planner, Running, warn_if_nearly_full
from kvactors.actors.agents.recorded import answer_again, withdraw
from kvactors.actors.agents.request_builder import log_prompt, retokenized_tokens
from kvactors.actors.agents.rewinding import rewind
from kvactors.actors.agents.services import AgentServices
from kvactors.actors.runtime.dispatcher import SystemActor, handles
from kvactors.actors.turns.messages_agent import (
    Adopt,
    Ask,
    CancelTurn,
    Fork,
    Leave,
    Pause,
    Prefetch,
    Rewind,
    TurnFinished,
)
from kvactors.actors.turns.messages_gpu import Cancel, PrefetchKV, Step
from kvactors.actors.turns.reply import make_reply
from kvactors.core.conversation.context_policy import ContextPolicy
from kvactors.core.conversation.transcript import Transcript, as_told
from kvactors.core.errors import KvactorsError, SystemStopped, TurnFailed
from kvactors.core.schedule.events import Aborted, Begun, Finished, Tokens
from kvactors.core.schedule.request import Request

__all__ = ["AgentActor"]

logger = logging.getLogger(__name__)


class AgentActor(SystemActor):
    """Owns one agent's transcript. Every prompt ends in exactly one reply or error.

    `agent_id` and `transcript`: who it is and what it remembers. `services`: what it shares with
    the other agents. `context_policy`: what it does at the end of the context.
    """

    def __init__(
        self,
        agent_id: str,
        transcript: Transcript,
        services: AgentServices,
        context_policy: ContextPolicy = "refuse",
    ) -> None:
        super().__init__()
        self.context_policy = context_policy
        self.dispatcher = services.pool
        self.agent_id = agent_id
        self.transcript = transcript
        self.services = services
        self.deactivated = False
        self._running: Running | None = None
        self._warned = False
        # The first turn to begin is cancelled if it was asked before this.
        self._cancel_before = 0
        self._paused: Pause | None = None

    @property
    def idle(self) -> bool:
        """Whether it runs no turn. Any thread."""
        return self._running is None

    def on_stop(self, *_info: Any, **_named: Any) -> None:
        """Fail the turn that runs: its agent is gone, or this actor has a defect."""
        if self._running is not None:
            error = SystemStopped(f"agent {self.agent_id!r} was stopped during its turn")
            self.services.tell_gpu(Cancel(self.agent_id, self._running.serial, error))
            self._fail(error)
        if self._paused is not None:
            self._paused.reject()

    on_failure = on_stop

    # -- one turn ----------------------------------------------------------------------

    @handles(Ask)
    def _begin(self, ask: Ask) -> None:
        if ask.ticket.reply.done:
            return
        cancelled, self._cancel_before = ask.ticket.serial < self._cancel_before, 0
        answer = self.transcript.answered.get(ask.turn.request_id)
        if answer is not None:
            answer_again(ask, answer, self.transcript, self.services)
            return
        if not ask.turn.taken:
            withdraw(ask, self.transcript, self.services)
            return
        self._run(ask, lambda: self._planner(ask).first(ask))
        if cancelled:
            self._cancel(CancelTurn(ask.ticket))

    def _run(self, ask: Ask, plan: Callable[[], tuple[Running, Request]]) -> None:
        """Let the engine do what is planned for a prompt, or fail it."""
        try:
            running, request = plan()
        except KvactorsError as error:
            self._end()
            ask.ticket.reject(error)
            return
        except Exception as error:
            failure = TurnFailed(f"the prompt of {self.agent_id!r} cannot be rendered: {error}")
            failure.__cause__ = error
            self._end()
            ask.ticket.reject(failure)
            return
        log_prompt(request, running.draft, with_text=self.services.log_text)
        self._running = running
        self.actor_inbox.open_to_prompts = False
        ask.ticket.chat = self.transcript.chat
        ask.ticket.behind = running.draft.begun.token_ids
        self.services.tell_gpu(Step(request, self.actor_ref))

    def _planner(self, ask: Ask) -> Planner:
        """Plans the turn of `ask` under the model that is loaded. Raises TemplateError."""
        model, isolated = self.services.model, self.services.isolated
        self.transcript = self.transcript.under(model.chat, model.tokenizer_id)
        transcript = as_told(self.transcript, ask.turn.template_kwargs)
        return Planner(
            self.agent_id, transcript, model.spec, self.context_policy, isolated=isolated
        )

    def _after_summary(self, running: Running, ended: Finished | Exception) -> None:
        """The summary that a turn waited for has ended: now the turn itself."""
        if running.cancelled is None:
            self._run(running.ask, lambda: self._planner(running.ask).after_summary(running, ended))
            return
        late = f"the turn of {self.agent_id!r} was cancelled while its past was summarized"
        self._fail(running.cancelled.error or TurnFailed(late))

    @handles(Begun)
    def _on_begun(self, message: Begun) -> None:
        running = self._running
        if running is not None and running.serial == message.serial and running.gap is None:
            running.ask.ticket.begin_prefill(message)

    @handles(Tokens)
    def _on_tokens(self, message: Tokens) -> None:
        running = self._running
        if running is not None and running.serial == message.serial:
            running.ask.ticket.push(message)

    @handles(Aborted)
    def _aborted(self, message: Aborted) -> None:
        running = self._running
        if running is None or running.serial != message.serial:
            return
        if running.gap is not None and not running.ask.ticket.reply.done:
            self._after_summary(running, message.error)
        else:
            self._fail(message.error)

    @handles(Prefetch)
    def _prefetch(self, _message: Prefetch) -> None:
        if self.actor_inbox.open_to_prompts and self.transcript.turns:
            tokens = tuple(self.transcript.token_ids)
            self.services.tell_gpu(PrefetchKV(self.agent_id, tokens))

    @handles(TurnFinished)
    def _finish(self, message: TurnFinished) -> None:
        finished = message.finished
        running = self._running
        if running is None or running.serial != finished.request.serial:
            return
        ask, draft = running.ask, running.draft
        if ask.ticket.reply.done:
            message.reject()
            self._end()
            return
        if running.gap is not None:
            self._after_summary(running, finished)
            return
        try:
            answer = make_answer(self.transcript, draft, ask, finished)
        except Exception as error:
            failure = TurnFailed(f"the answer of {self.agent_id!r} cannot be decoded: {error}")
            failure.__cause__ = error
            message.reject()
            self._fail(failure)
            return
        retokenized = retokenized_tokens(self.transcript, draft)
        if ask.turn.remembered:
            turns = [*draft.turns, *answer]
            named = ask.turn.request_id
            record = self.transcript.extend(turns, draft.keep, draft.system_prompt, named)
            self.services.save(self.agent_id, record, ask.ticket, finished.exported)
            if self.context_policy == "refuse" and not self._warned:
                context = self.services.model.spec.context
                self._warned = warn_if_nearly_full(self.agent_id, self.transcript, context)
        else:
            ask.ticket.keep_nothing()
        self._end()
        text = words = ""
        if answer:
            chat, asked = self.transcript.chat, prompt_of(self.transcript, draft)
            text, words = said_now(chat, ask.turn.sampling, answer[0], asked)
        log_answer(finished, text, with_text=self.services.log_text)
        made = make_reply(finished, text, words, draft.match, ask.ticket, retokenized)
        ask.ticket.resolve(made)

    @handles(Rewind)
    def _rewind(self, message: Rewind) -> None:
        if not message.ticket.reply.done:
            rewind(message, self.transcript, self.services)
            self._warned = False

    @handles(Fork)
    def _fork(self, message: Fork) -> None:
        ticket, transcript = message.ticket, self.transcript
        if ticket.reply.done:
            return
        known = bool(transcript.turns or transcript.answered)
        try:
            stored = self.services.fork(self.agent_id, message.child, stored=known)
        except SystemStopped as error:
            ticket.reject(error)
            return
        ticket.durable.resolve(stored is not None)
        ticket.cached.resolve(stored is not None)
        if not ticket.resolve((transcript.copy(), stored)):
            # Who asked was interrupted just then, and has freed the id.
            self.services.undo_fork(message.child, stored)

    @handles(CancelTurn)
    def _cancel(self, message: CancelTurn) -> None:
        """End the running turn at its next step; one that has not begun never will."""
        running = self._running
        if running is None and message.ticket is None:
            self._cancel_before = message.serial
        elif running is not None and message.ticket in (None, running.ask.ticket):
            running.cancelled = message
            self.services.tell_gpu(Cancel(self.agent_id, running.serial, message.error))
            if message.error is not None:
                # Whoever waits is told now: the GPU may be in the middle of a long step.
                running.ask.ticket.reject(message.error)
        elif message.ticket is not None and not message.ticket.reply.done:
            late = SystemStopped(f"the turn of {self.agent_id!r} was cancelled before it began")
            message.ticket.reject(message.error or late)

    def _fail(self, error: BaseException) -> None:
        assert self._running is not None
        ticket = self._running.ask.ticket
        self._end()
        ticket.reject(error)

    def _end(self) -> None:
        self._running = None
        if self._paused is None:
            self.actor_inbox.open_to_prompts = True
        else:
            self._paused.done.resolve(True)

    # -- another model -----------------------------------------------------------------

    @handles(Pause)
    def _pause(self, message: Pause) -> None:
        self._paused = message
        self.actor_inbox.open_to_prompts = False
        if self._running is None:
            message.done.resolve(True)

    @handles(Leave)
    def _leave(self, message: Leave) -> None:
        message.ticket.keep_nothing()
        # Not if who asked was interrupted, were it just then: nobody would take the pause back.
        if message.ticket.resolve(None):
            self._pause(message.pause)

    @handles(Adopt)
    def _adopt(self, message: Adopt) -> None:
        if message.behind not in (None, self._paused):
            return
        self.services = replace(self.services, model=message.model)
        self._warned = False
        try:
            model = message.model
            self.transcript = self.transcript.under(model.chat, model.tokenizer_id)
        except Exception as error:
            # Its turns fail with this until another model is loaded.
            logger.warning("agent %r cannot go on under this model: %s", self.agent_id, error)
        self._paused = None
        self.actor_inbox.open_to_prompts = self._running is None
        message.done.resolve(True)
