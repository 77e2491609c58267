"""What an agent runs for a prompt: its turn, or first, at the end of the context, a summary.

The turns that leave the context, and what stands in their place, are part of the draft: they
become the transcript's only when the turn itself has ended.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvactors.actors.agents.request_builder import (
    check_length,
    longest_answer,
    make_choices,
    make_draft,
    make_request,
)
from kvactors.actors.turns.messages_agent import Ask, CancelTurn
from kvactors.actors.turns.options import TurnOptions
from kvactors.actors.turns.prompt import NewText
from kvactors.core.cache.spec import ModelCacheSpec
from kvactors.core.conversation.context_policy import (
    ContextPolicy,
    DropOldest,
    Summarize,
    turns_to_drop,
)
from kvactors.core.conversation.prefix_match import Draft
from kvactors.core.conversation.transcript import Transcript, as_asked, as_told
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import ContextExceeded, KvactorsError, TurnFailed
from kvactors.core.schedule.events import Finished
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import Sampling

__all__ = ["Planner", "Running", "warn_if_nearly_full"]

logger = logging.getLogger(__name__)

WARN_AT = 0.8
HEADING = "Summary of our conversation so far: "


@dataclass(frozen=True, slots=True)
class Gap:
    """Turns [head, tail) of those that a draft keeps leave the context."""

    head: int
    tail: int


@dataclass(slots=True)
class Running:
    """The turn that an agent takes. `gap`: the model is summarizing these turns for it."""

    ask: Ask
    draft: Draft
    gap: Gap | None = None
    cancelled: CancelTurn | None = None

    @property
    def serial(self) -> int:
        """Names it to the engine, and its summary."""
        return self.ask.ticket.serial


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans an agent's turns, as things are. Each plan is a record for the agent and the
    request for the engine."""

    agent_id: str
    transcript: Transcript
    spec: ModelCacheSpec
    policy: ContextPolicy
    isolated: bool

    def first(self, ask: Ask) -> tuple[Running, Request]:
        """The turn, or the summary that makes room for it. Raises InvalidInput, TemplateError."""
        check_length(self.transcript, ask.turn, self.spec.context)
        draft = make_draft(self.transcript, ask)
        gap = self._gap(draft, ask)
        if gap is None:
            return self._turn(ask, draft)
        if isinstance(self.policy, Summarize):
            try:
                gap, request = self._summary(ask, gap, self.policy)
                return Running(ask, draft, gap), request
            except KvactorsError as error:
                self._warn(error)
        return self._turn(ask, self._without(draft, gap))

    def after_summary(
        self, running: Running, ended: Finished | Exception
    ) -> tuple[Running, Request]:
        """The turn that waited for a summary: behind it, or if it failed without. Raises as
        `first`."""
        ask, draft = running.ask, running.draft
        assert running.gap is not None
        try:
            if isinstance(ended, Exception):
                raise ended
            return self._turn(ask, self._without(draft, running.gap, self._read(ended)))
        except Exception as error:
            self._warn(error)
        return self._turn(ask, self._without(draft, self._gap(draft, ask) or running.gap))

    def _turn(self, ask: Ask, draft: Draft) -> tuple[Running, Request]:
        request = make_request(
            self.agent_id, self.transcript, draft, ask, self.spec, isolated=self.isolated
        )
        return Running(ask, draft), request

    # -- what leaves -------------------------------------------------------------------

    def _gap(self, draft: Draft, ask: Ask) -> Gap | None:
        """What may leave so that a draft fits; None if it does, or nothing may. Raises
        InvalidSampling."""
        if not isinstance(self.policy, DropOldest):
            return None
        past, context = self.transcript.turns[: draft.keep], self.spec.context
        stays: Sequence[Turn] = ()
        if not draft.turns or draft.turns[0].is_answer:
            # A question stays with its answer, also with one that is still to be given.
            past, stays = past[:-1], past[-1:]
        new = _tokens((*stays, *draft.turns, draft.begun))
        new += longest_answer(ask, make_choices(self.transcript, draft, ask))
        if _tokens(past) + new <= context or new > context:
            return None
        reserved = self.policy.max_tokens if isinstance(self.policy, Summarize) else 0
        gap = Gap(*turns_to_drop(self.policy, past, new + reserved, context))
        return gap if gap.head < gap.tail else None

    def _without(self, draft: Draft, gap: Gap, summary: str = "") -> Draft:
        """The draft without the turns of a gap, or with a summary of them in their place."""
        past = self.transcript.turns[: draft.keep]
        after = self._beginning(gap.head)
        if summary:
            turn = after.render("user", HEADING + summary, answer=False)
            count = sum(turn.stands_for or 1 for turn in past[gap.head : gap.tail])
            after.turns.append(replace(turn, stands_for=count))
        rest = [*past[gap.tail :], *draft.turns]
        answered = len(past) > gap.tail
        before = past[: gap.tail]
        rest[:1] = [self._moved(turn, before, after, answered=answered) for turn in rest[:1]]
        turns = (*after.turns[gap.head :], *rest)
        return replace(draft, keep=gap.head, turns=turns)

    def _moved(
        self, turn: Turn, before: Sequence[Turn], after: Transcript, *, answered: bool
    ) -> Turn:
        """A turn that follows others than `before` now. Its rendering begins with what the last
        of them lacks, or with the system prompt, and at the very start as the tokenizer begins
        texts: what it was told of that was for its own answer, if it is `answered`."""
        if turn.is_answer or (turn.raw and after.turns):
            return turn
        if turn.raw:
            return replace(turn, token_ids=tuple(after.chat.begun(turn.token_ids)))
        own = as_asked(self.transcript, turn.told)
        was = own.rendering(turn.role, turn.text, answer=turn.asked, after=before)
        told = own.chat.not_begun_by if answered and not after.turns else turn.told
        now = as_asked(after, told).render(turn.role, turn.text, answer=turn.asked)
        # A turn that was cut is not rendered whole, and stays as it is.
        if turn.rendered != was or turn.token_ids == now.token_ids:
            return turn
        return replace(now, stands_for=turn.stands_for)

    def _beginning(self, turns: int) -> Transcript:
        first = as_told(self.transcript, None)
        first.turns = first.turns[:turns]
        return first

    # -- the summary -------------------------------------------------------------------

    def _summary(self, ask: Ask, gap: Gap, policy: Summarize) -> tuple[Gap, Request]:
        """The request for a summary of all up to the end of a gap, or of fewer turns where
        they leave no room for it. Raises ContextExceeded, TemplateError."""
        turns, sampling = self.transcript.turns, Sampling(max_tokens=policy.max_tokens)
        # It shares with nobody, as what leaves no trace.
        asked = Ask(
            ask.ticket,
            TurnOptions(
                NewText(policy.prompt), sampling, priority=ask.turn.priority, remembered=False
            ),
        )
        tail = gap.tail
        while True:
            question = self._beginning(tail).render("user", policy.prompt, answer=True)
            draft = Draft(tail, (question,), None, self.transcript.system_prompt)
            try:
                request = make_request(self.agent_id, self.transcript, draft, asked, self.spec)
            except ContextExceeded:
                tail -= 2 if turns[tail - 1].is_answer else 1
                if tail <= gap.head:
                    raise
            else:
                request.stream = False
                return Gap(gap.head, tail), request

    def _read(self, finished: Finished) -> str:
        """The text of a summary. Raises TurnFailed unless there is one that came to its end."""
        generated = finished.request.generated
        if finished.reason != "stop":
            raise TurnFailed(f"the summary had not ended after {len(generated)} tokens")
        chat = self.transcript.chat.usual
        text = chat.words(chat.reply_text(generated)).strip()
        if not text:
            raise TurnFailed("the summary is empty")
        return text

    def _warn(self, error: Exception) -> None:
        logger.warning(
            "agent %r drops its oldest turns without a summary: %s", self.agent_id, error
        )


def _tokens(turns: Sequence[Turn]) -> int:
    return sum(len(turn.token_ids) for turn in turns)


def warn_if_nearly_full(agent_id: str, transcript: Transcript, context: int) -> bool:
    """Warn if the `transcript` of `agent_id` fills most of the `context`; whether it does. Not of
    what a turn may say: clients set limits of far more than it does."""
    tokens = _tokens(transcript.turns)
    if tokens < WARN_AT * context:
        return False
    logger.warning(
        "agent %r has %d of %d tokens of context (%d %%): further turns will be refused at the end",
        agent_id,
        tokens,
        context,
        100 * tokens // context,
    )
    return True
