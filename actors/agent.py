"""The agent actor: one turn at a time, the transcript, and what becomes durable.

It runs on pool threads and never waits: while its turn is on the GPU its prompt lane is
shut and its thread serves other agents.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pykka import ActorDeadError

from kvactors.actors.dispatcher import Dispatcher, SystemActor, send
from kvactors.actors.errors import SaveFailed
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
    SaveTurn,
    Step,
    TurnAborted,
    TurnFinished,
    WithStore,
)
from kvactors.actors.outstanding import Outstanding
from kvactors.actors.reply import Rewound, Ticket, make_reply
from kvactors.actors.turns import (
    make_answer,
    make_draft,
    make_request,
    most_tokens,
    without_oldest,
)
from kvactors.core.errors import KvactorsError, SystemStopped, TurnFailed
from kvactors.core.events import ExportedKV
from kvactors.core.overflow import ContextPolicy, DropOldest
from kvactors.core.prefix import Draft
from kvactors.core.request import Request
from kvactors.core.rewind import cut_at_token, cut_turns
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
    vocab_size: int
    """Rows of the embedding."""
    pool: Dispatcher
    """The threads that agents share."""
    isolated: bool
    """Whether agents with the same system prompt hold its KV each for itself."""


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
        self._running: Ask | None = None
        self._draft: Draft | None = None
        self._warned = False
        # The first turn to begin is cancelled if it was asked before this.
        self._cancel_before = 0

    @property
    def idle(self) -> bool:
        """Whether it runs no turn. Any thread."""
        return self._running is None

    def on_receive(self, message: Any) -> None:
        """Handle one message; which one decides."""
        if isinstance(message, NewTokens):
            self._on_tokens(message)
        elif isinstance(message, Ask):
            self._begin(message)
        elif isinstance(message, Rewind):
            self._rewind(message)
        elif isinstance(message, Fork):
            self._fork(message)
        elif isinstance(message, CacheAhead):
            if self._running is None and self.transcript.turns:
                tokens = tuple(self.transcript.token_ids)
                self._tell_gpu(Prefetch(self.agent_id, tokens))
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

    def _begin(self, ask: Ask) -> None:
        cancelled, self._cancel_before = ask.ticket.serial < self._cancel_before, 0
        if ask.ticket.reply.done:
            return
        try:
            draft, request = self._request(ask)
        except KvactorsError as error:
            ask.ticket.reject(error)
            return
        except Exception as error:
            failure = TurnFailed(f"the prompt of {self.agent_id!r} cannot be rendered: {error}")
            failure.__cause__ = error
            ask.ticket.reject(failure)
            return
        self._warn(request)
        self._running, self._draft = ask, draft
        self.actor_inbox.open_to_prompts = False
        self._tell_gpu(Step(request, self.actor_ref))
        if cancelled:
            self._tell_gpu(Cancel(self.agent_id, request.serial))

    def _request(self, ask: Ask) -> tuple[Draft, Request]:
        draft = make_draft(self.transcript, ask)
        if isinstance(self.context_policy, DropOldest):
            draft = without_oldest(
                self.transcript, draft, ask, self.wiring.context, self.context_policy
            )
        wiring = self.wiring
        return draft, make_request(
            self.agent_id,
            self.transcript,
            draft,
            ask,
            wiring.context,
            wiring.vocab_size,
            isolated=wiring.isolated,
        )

    def _warn(self, request: Request) -> None:
        most, context = most_tokens(request), self.wiring.context
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
            self._running.ticket.push(message.token_ids)

    def _finish(self, message: TurnFinished) -> None:
        finished = message.finished
        if self._running is None or not self._is_running(finished.request.serial):
            return
        ask, draft = self._running, self._draft
        assert draft is not None
        if ask.ticket.reply.done:
            self._take_back(finished.exported)
            self._end()
            return
        try:
            answer = make_answer(self.transcript, draft, ask, finished)
        except Exception as error:
            failure = TurnFailed(f"the answer of {self.agent_id!r} cannot be decoded: {error}")
            failure.__cause__ = error
            self._take_back(finished.exported)
            self._fail(failure)
            return
        record = self.transcript.extend([*draft.turns, *answer], draft.keep, draft.system_prompt)
        self._save(record, ask.ticket, finished.exported)
        self._end()
        text = answer[0].text if answer else ""
        ask.ticket.resolve(make_reply(finished, text, draft.match, ask.ticket))

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
        self._save(transcript.extend(remains, keep), ticket, ())
        left = sum(len(turn.token_ids) for turn in transcript.turns)
        ticket.resolve(Rewound(len(transcript.turns), left, ticket.durable))

    def _fork(self, message: Fork) -> None:
        """Both other actors are told at once: whatever comes later of this agent is not the
        child's."""
        if message.ticket.reply.done:
            return
        stored, child = None, message.child
        if self.wiring.persistence is not None and self.transcript.turns:
            parent = self.agent_id
            try:
                stored = self.wiring.persistence.ask(
                    WithStore(lambda store: store.fork(parent, child)), block=False
                )
            except ActorDeadError:
                gone = SystemStopped("the persistence actor is dead: nothing can be forked")
                message.ticket.reject(gone)
                return
        self._tell_gpu(ForkCache(self.agent_id, child))
        message.ticket.durable.resolve(stored is not None)
        message.ticket.cached.resolve(stored is not None)
        message.ticket.resolve((self.transcript.copy(), stored))

    def _save(self, record: dict[str, Any], ticket: Ticket, exported: Sequence[ExportedKV]) -> None:
        if self.wiring.persistence is None:
            ticket.durable.resolve(False)
            ticket.cached.resolve(False)
            return
        segments = tuple(
            Segment(part.start, part.end, part.tokens_hash, part.layout, part.tensors)
            for part in exported
        )
        nbytes = sum(part.nbytes for part in exported)
        save = Save(self.agent_id, (record,), self.wiring.fingerprint, segments)
        self.wiring.outstanding.begin_save(ticket, nbytes)
        if not send(self.wiring.persistence, SaveTurn(save, ticket, nbytes)):
            error = SaveFailed("the persistence actor is dead: nothing is saved any more")
            ticket.durable.reject(error)
            ticket.cached.reject(error)
            self.wiring.outstanding.end_save(ticket)
            self._take_back(exported)

    def _take_back(self, exported: Sequence[ExportedKV]) -> None:
        """Tell the GPU actor that the KV it exported will never be on disk."""
        nbytes = sum(part.nbytes for part in exported)
        self._tell_gpu(Saved(self.agent_id, 0, nbytes, False))

    def _cancel(self, message: CancelTurn) -> None:
        """End the running turn at its next step; one that has not begun never will."""
        running = None if self._running is None else self._running.ticket
        if running is None and message.ticket is None:
            self._cancel_before = message.serial
        elif running is not None and message.ticket in (None, running):
            self._tell_gpu(Cancel(self.agent_id, running.serial, message.error))
            if message.error is not None:
                # Whoever waits is told now: the GPU may be in the middle of a long step.
                running.reject(message.error)
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
        self._draft = None
        self.actor_inbox.open_to_prompts = True

    def _is_running(self, serial: int) -> bool:
        return self._running is not None and self._running.ticket.serial == serial

    def _tell_gpu(self, message: Any) -> None:
        # A dead GPU actor has already failed every ticket; there is nobody left to tell.
        send(self.wiring.gpu, message)
