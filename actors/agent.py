"""The agent actor: one turn at a time, the transcript, and what becomes durable.

It runs on pool threads and never waits: while its turn is on the GPU its prompt lane is
shut and its thread serves other agents.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pykka import ActorDeadError

from kvactors.actors.context import Planner, Running
from kvactors.actors.dispatcher import SystemActor
from kvactors.actors.messages import (
    Ask,
    CacheAhead,
    Cancel,
    CancelTurn,
    Fork,
    ForkCache,
    NewTokens,
    Prefetch,
    Rewind,
    Saved,
    Step,
    TurnAborted,
    TurnFinished,
    WithStore,
)
from kvactors.actors.model_messages import Adopt, Pause
from kvactors.actors.reply import Rewound, make_reply
from kvactors.actors.turns import (
    log_answer,
    log_prompt,
    make_answer,
    most_tokens,
    retokenized_tokens,
)
from kvactors.actors.wiring import Wiring
from kvactors.core.errors import KvactorsError, SystemStopped, TurnFailed
from kvactors.core.events import Finished
from kvactors.core.overflow import ContextPolicy
from kvactors.core.request import Request
from kvactors.core.rewind import cut_at_token, cut_turns
from kvactors.core.transcript import Transcript
from kvactors.core.turn import Turn
from kvactors.persistence.store import Store

__all__ = ["AgentActor"]

logger = logging.getLogger(__name__)

WARN_AT = 0.8


# What handles a message, by its type: one look instead of ten.
_HANDLERS: dict[type, str] = {
    NewTokens: "_on_tokens",
    Ask: "_begin",
    Rewind: "_rewind",
    Fork: "_fork",
    CacheAhead: "_cache_ahead",
    TurnFinished: "_finish",
    TurnAborted: "_aborted",
    CancelTurn: "_cancel",
    Pause: "_pause",
    Adopt: "_adopt",
}


class AgentActor(SystemActor):
    """Owns one agent's transcript. Every prompt ends in exactly one reply or error."""

    def __init__(
        self,
        agent_id: str,
        transcript: Transcript,
        wiring: Wiring,
        context_policy: ContextPolicy = "refuse",
    ) -> None:
        super().__init__()
        self.context_policy = context_policy
        self.dispatcher = wiring.pool
        self.agent_id = agent_id
        self.transcript = transcript
        self.wiring = wiring
        self._running: Running | None = None
        self._warned = False
        # The first turn to begin is cancelled if it was asked before this.
        self._cancel_before = 0
        self._paused: Pause | None = None

    @property
    def idle(self) -> bool:
        """Whether it runs no turn. Any thread."""
        return self._running is None

    def on_receive(self, message: Any) -> None:
        """Handle one message; its type decides."""
        handle = _HANDLERS.get(type(message))
        if handle is None:
            super().on_receive(message)
        else:
            getattr(self, handle)(message)

    def on_stop(self) -> None:
        """Fail the turn that runs: its agent is gone."""
        if self._running is not None:
            error = SystemStopped(f"agent {self.agent_id!r} was stopped during its turn")
            self.wiring.tell_gpu(Cancel(self.agent_id, self._running.serial, error))
            self._fail(error)
        if self._paused is not None:
            self._paused.reject()

    def on_failure(self, *_info: Any) -> None:
        """A defect in this actor: whoever waits for its turn is told."""
        self.on_stop()

    # -- one turn ----------------------------------------------------------------------

    def _begin(self, ask: Ask) -> None:
        cancelled, self._cancel_before = ask.ticket.serial < self._cancel_before, 0
        if ask.ticket.reply.done:
            return
        self._run(ask, lambda: self._planner().first(ask))
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
        self._warn(request)
        log_prompt(request, running.draft, with_text=self.wiring.log_text)
        self._running = running
        self.actor_inbox.open_to_prompts = False
        ask.ticket.chat = self.transcript.chat
        self.wiring.tell_gpu(Step(request, self.actor_ref))

    def _planner(self) -> Planner:
        """Plans turns under the model that is loaded. Raises TemplateError."""
        self._follow_model()
        wiring = self.wiring
        return Planner(
            self.agent_id, self.transcript, wiring.model.spec, self.context_policy, wiring.isolated
        )

    def _after_summary(self, running: Running, ended: Finished | Exception) -> None:
        """The summary that a turn waited for has ended: now the turn itself."""
        if running.cancelled is None:
            self._run(running.ask, lambda: self._planner().after_summary(running, ended))
            return
        late = f"the turn of {self.agent_id!r} was cancelled while its past was summarized"
        self._fail(running.cancelled.error or TurnFailed(late))

    def _warn(self, request: Request) -> None:
        most, context = most_tokens(request), self.wiring.model.spec.context
        refuses = self.context_policy == "refuse"
        if refuses and most >= WARN_AT * context and not self._warned:
            self._warned = True
            logger.warning(
                "agent %r uses %d of %d tokens of context (%d %%): further turns will be refused "
                "at the end",
                self.agent_id,
                most,
                context,
                100 * most // context,
            )

    def _on_tokens(self, message: NewTokens) -> None:
        if self._running is not None and self._is_running(message.serial):
            self._running.ask.ticket.push(message.token_ids)

    def _aborted(self, message: TurnAborted) -> None:
        running = self._running
        if running is None or not self._is_running(message.serial):
            return
        if running.gap is not None and not running.ask.ticket.reply.done:
            self._after_summary(running, message.error)
        else:
            self._fail(message.error)

    def _cache_ahead(self, _message: CacheAhead) -> None:
        if self.actor_inbox.open_to_prompts and self.transcript.turns:
            tokens = tuple(self.transcript.token_ids)
            self.wiring.tell_gpu(Prefetch(self.agent_id, tokens))

    def _finish(self, message: TurnFinished) -> None:
        finished = message.finished
        running = self._running
        if running is None or not self._is_running(finished.request.serial):
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
        record = self.transcript.extend([*draft.turns, *answer], draft.keep, draft.system_prompt)
        self.wiring.save(self.agent_id, record, ask.ticket, finished.exported)
        self._end()
        text = answer[0].text if answer else ""
        log_answer(finished, text, with_text=self.wiring.log_text)
        ask.ticket.resolve(make_reply(finished, text, draft.match, ask.ticket, retokenized))

    def _rewind(self, message: Rewind) -> None:
        ticket = message.ticket
        if ticket.reply.done:
            return
        transcript, remains = self.transcript, tuple[Turn, ...]()
        try:
            if message.to_token is None:
                keep = cut_turns(transcript.turns, message.turns or 1)
            else:
                keep, remains = cut_at_token(transcript, message.to_token)
        except KvactorsError as error:
            ticket.reject(error)
            return
        self._warned = False
        self.wiring.save(self.agent_id, transcript.extend(remains, keep), ticket, ())
        left = sum(len(turn.token_ids) for turn in transcript.turns)
        ticket.resolve(Rewound(len(transcript.turns), left, ticket.durable))

    def _fork(self, message: Fork) -> None:
        """Both other actors are told at once: whatever comes later of this agent is not the
        child's."""
        if message.ticket.reply.done:
            return
        stored, parent, child, wiring = None, self.agent_id, message.child, self.wiring

        def fork(store: Store) -> None:
            store.fork(parent, child)
            # The parent's KV may not have been saved, or there was no room for the child's.
            extent = store.kv_extent(child, wiring.model.fingerprint)
            wiring.tell_gpu(Saved(child, 0, limit=extent))

        wiring.tell_gpu(ForkCache(parent, child))
        if wiring.persistence is not None and self.transcript.turns:
            try:
                stored = wiring.persistence.ask(WithStore(fork, parent), block=False)
            except ActorDeadError:
                gone = SystemStopped("the persistence actor is dead: nothing can be forked")
                message.ticket.reject(gone)
                return
        message.ticket.durable.resolve(stored is not None)
        message.ticket.cached.resolve(stored is not None)
        message.ticket.resolve((self.transcript.copy(), stored))

    def _cancel(self, message: CancelTurn) -> None:
        """End the running turn at its next step; one that has not begun never will."""
        running = self._running
        if running is None and message.ticket is None:
            self._cancel_before = message.serial
        elif running is not None and message.ticket in (None, running.ask.ticket):
            running.cancelled = message
            self.wiring.tell_gpu(Cancel(self.agent_id, running.serial, message.error))
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

    def _pause(self, message: Pause) -> None:
        self._paused = message
        self.actor_inbox.open_to_prompts = False
        if self._running is None:
            message.done.resolve(True)

    def _adopt(self, message: Adopt) -> None:
        self.wiring = replace(self.wiring, model=message.model)
        self._warned = False
        try:
            self._follow_model()
        except Exception as error:
            # Its turns fail with this until another model is loaded.
            logger.warning("agent %r cannot go on under this model: %s", self.agent_id, error)
        self._paused = None
        self.actor_inbox.open_to_prompts = self._running is None
        message.done.resolve(True)

    def _follow_model(self) -> None:
        """Have the transcript under the model that is loaded. Raises TemplateError."""
        model = self.wiring.model
        if self.transcript.chat is not model.chat:
            self.transcript = self.transcript.under(model.chat, model.tokenizer_id)

    def _is_running(self, serial: int) -> bool:
        return self._running is not None and self._running.serial == serial
