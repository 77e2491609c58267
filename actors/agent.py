"""The agent actor: one turn at a time, the transcript, and what becomes durable.

It runs on pool threads and never waits: while its turn is on the GPU its prompt lane is
shut and its thread serves other agents.
"""

import logging
from dataclasses import dataclass
from typing import Any

from kvactors.actors.dispatcher import Dispatcher, PooledActor, send
from kvactors.actors.errors import SaveFailed
from kvactors.actors.messages import (
    Cancel,
    CancelTurn,
    NewTokens,
    Prompt,
    Saved,
    SaveTurn,
    Step,
    TurnAborted,
    TurnFinished,
)
from kvactors.actors.outstanding import Outstanding
from kvactors.actors.reply import Ticket, make_reply
from kvactors.core.errors import (
    ContextExceeded,
    EmptyPrompt,
    KvactorsError,
    SystemStopped,
    TurnFailed,
)
from kvactors.core.request import Request, StopMatcher
from kvactors.core.template import ChatFormat
from kvactors.core.transcript import Transcript, Turn
from kvactors.persistence.segment import Segment
from kvactors.persistence.store import Save

__all__ = ["AgentActor", "Wiring"]

logger = logging.getLogger("kvactors")

WARN_AT = 0.8


@dataclass(frozen=True, slots=True)
class Wiring:
    """What every agent of a system shares: the other actors and the model's limits."""

    gpu: Any
    """ActorRef of the GPU actor."""
    persistence: Any
    """ActorRef of the persistence actor, or None when nothing is kept."""
    outstanding: Outstanding
    """Who waits, to be told if the engine dies."""
    chat: ChatFormat
    """Tokenizer and template."""
    fingerprint: str
    """Identity of the model's KV."""
    context: int
    """Tokens that a transcript may have."""
    pool: Dispatcher
    """The threads that agents share."""


class AgentActor(PooledActor):
    """Owns one agent's transcript. Every prompt ends in exactly one reply or error."""

    registered = False

    def __init__(self, agent_id: str, transcript: Transcript, wiring: Wiring) -> None:
        super().__init__()
        self.dispatcher = wiring.pool
        self.agent_id = agent_id
        self.transcript = transcript
        self.wiring = wiring
        self._running: Prompt | None = None
        self._appended: tuple[int, ...] = ()
        self._warned = False
        self._cancel_next = False

    def on_receive(self, message: Any) -> None:
        """Handle one message; which one decides."""
        if isinstance(message, NewTokens):
            self._on_tokens(message)
        elif isinstance(message, Prompt):
            self._begin(message)
        elif isinstance(message, TurnFinished):
            self._finish(message)
        elif isinstance(message, TurnAborted):
            if self._is_running(message.serial):
                self._fail(message.error)
        elif isinstance(message, CancelTurn):
            self._cancel(message)
        else:
            super().on_receive(message)

    def on_stop(self) -> None:
        """Fail the turn that runs: its agent is gone."""
        if self._running is not None:
            error = SystemStopped(f"agent {self.agent_id!r} was stopped during its turn")
            self._tell_gpu(Cancel(self.agent_id, self._running.ticket.serial, error))
            self._fail(error)

    def on_failure(self, *_info: Any) -> None:
        """A defect in this actor: whoever waits for its turn is told."""
        self.on_stop()

    # -- one turn ----------------------------------------------------------------------

    def _begin(self, prompt: Prompt) -> None:
        cancelled, self._cancel_next = self._cancel_next, False
        if prompt.ticket.reply.done:
            return
        try:
            request = self._request(prompt)
        except KvactorsError as error:
            prompt.ticket.reject(error)
            return
        except Exception as error:
            failure = TurnFailed(f"the prompt of {self.agent_id!r} cannot be rendered: {error}")
            failure.__cause__ = error
            prompt.ticket.reject(failure)
            return
        self._running = prompt
        self.actor_inbox.open_to_prompts = False
        self._tell_gpu(Step(request, self.actor_ref))
        if cancelled:
            self._tell_gpu(Cancel(self.agent_id, request.serial))

    def _request(self, prompt: Prompt) -> Request:
        new = self._render(prompt)
        if not new:
            raise EmptyPrompt("the prompt has no tokens")
        known, sampling = self.transcript.token_ids, prompt.sampling
        most = len(known) + len(new) + (sampling.max_tokens if prompt.answer else 0)
        if most > self.wiring.context:
            raise ContextExceeded(
                f"{len(known)} tokens remembered + {len(new)} new + max_tokens "
                f"{most - len(known) - len(new)} = {most} exceed the context of "
                f"{self.wiring.context} tokens"
            )
        self._warn(most)
        self._appended = tuple(new)
        chat = self.wiring.chat
        return Request(
            agent_id=self.agent_id,
            turn=len(self.transcript.turns),
            tokens=[*known, *new],
            prompt=len(known) + len(new),
            sampling=sampling,
            generate=prompt.answer,
            stop_tokens=chat.eos,
            matcher=StopMatcher(sampling.stop, chat.decode),
            fresh=len(new),
            serial=prompt.ticket.serial,
            stream=prompt.ticket.tokens is not None,
            submitted_at=prompt.ticket.submitted_at,
            priority=0 if prompt.answer else -1,
        )

    def _render(self, prompt: Prompt) -> list[int]:
        if prompt.token_ids is not None:
            return list(prompt.token_ids)
        assert prompt.text is not None
        return self.transcript.render(prompt.role, prompt.text, answer=prompt.answer)

    def _warn(self, most: int) -> None:
        if most >= WARN_AT * self.wiring.context and not self._warned:
            self._warned = True
            logger.warning(
                "agent %r uses %d of %d tokens of context (%d %%): further turns will be refused "
                "at the end",
                self.agent_id,
                most,
                self.wiring.context,
                100 * most // self.wiring.context,
            )

    def _on_tokens(self, message: NewTokens) -> None:
        if self._running is not None and self._is_running(message.serial):
            self._running.ticket.push(message.token_ids)

    def _finish(self, message: TurnFinished) -> None:
        finished = message.finished
        if self._running is None or not self._is_running(finished.request.serial):
            return
        prompt = self._running
        if prompt.ticket.reply.done:
            self._end()
            return
        try:
            text, turns = self._turns(prompt, message)
        except Exception as error:
            failure = TurnFailed(f"the answer of {self.agent_id!r} cannot be decoded: {error}")
            failure.__cause__ = error
            self._take_back(message)
            self._fail(failure)
            return
        record = self.transcript.extend(turns)
        self._save(record, message, prompt.ticket)
        self._end()
        prompt.ticket.resolve(make_reply(finished, text, prompt.ticket))

    def _turns(self, prompt: Prompt, message: TurnFinished) -> tuple[str, list[Turn]]:
        finished, chat = message.finished, self.wiring.chat
        raw = prompt.token_ids is not None
        said = prompt.text if prompt.text is not None else chat.decode(self._appended)
        turns = [Turn(prompt.role, said, self._appended, raw)]
        if not prompt.answer:
            return "", turns
        generated = tuple(finished.request.generated)
        text = chat.reply_text(generated, prompt.sampling.stop)
        turns.append(Turn("assistant", text, generated, raw, finished.reason))
        return text, turns

    def _save(self, record: dict[str, Any], message: TurnFinished, ticket: Ticket) -> None:
        if self.wiring.persistence is None:
            ticket.durable.resolve(False)
            ticket.cached.resolve(False)
            return
        segments = tuple(
            Segment(part.start, part.end, part.tokens_hash, part.layout, part.tensors)
            for part in message.finished.exported
        )
        nbytes = sum(part.nbytes for part in message.finished.exported)
        save = Save(self.agent_id, (record,), self.wiring.fingerprint, segments)
        self.wiring.outstanding.begin_save(ticket)
        if not send(self.wiring.persistence, SaveTurn(save, ticket, nbytes)):
            error = SaveFailed("the persistence actor is dead: nothing is saved any more")
            ticket.durable.reject(error)
            ticket.cached.reject(error)
            self.wiring.outstanding.end_save(ticket)
            self._take_back(message)

    def _take_back(self, message: TurnFinished) -> None:
        """Tell the GPU actor that the KV it exported will never be on disk."""
        nbytes = sum(part.nbytes for part in message.finished.exported)
        self._tell_gpu(Saved(self.agent_id, 0, nbytes, False))

    def _cancel(self, message: CancelTurn) -> None:
        """End the running turn at its next step; one that has not begun never will."""
        running = None if self._running is None else self._running.ticket
        if running is None and message.ticket is None:
            self._cancel_next = self.actor_inbox.prompts > 0
        elif running is not None and message.ticket in (None, running):
            self._tell_gpu(Cancel(self.agent_id, running.serial, message.error))
        elif message.ticket is not None and not message.ticket.reply.done:
            late = SystemStopped(f"the turn of {self.agent_id!r} was cancelled before it began")
            message.ticket.reject(message.error or late)

    def _fail(self, error: BaseException) -> None:
        assert self._running is not None
        ticket = self._running.ticket
        self._end()
        ticket.reject(error)

    def _end(self) -> None:
        self._running = None
        self._appended = ()
        self.actor_inbox.open_to_prompts = True

    def _is_running(self, serial: int) -> bool:
        return self._running is not None and self._running.ticket.serial == serial

    def _tell_gpu(self, message: Any) -> None:
        # A dead GPU actor has already failed every ticket; there is nobody left to tell.
        send(self.wiring.gpu, message)
