"""Speculation: which turns are given drafts in a step, and of how many tokens. GPU thread only."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from kvactors.core.errors import InvalidConfig, InvalidGrammar
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.speculation.acceptance import (
    LEAST_CHANCE,
    MODEL,
    MOST_DRAFTED,
    OTHERS,
    OWN,
    Acceptance,
    Costs,
    Draft,
    share_out,
)
from kvactors.core.schedule.speculation.chain import Chains
from kvactors.core.schedule.speculation.texts import BORDER, Follower, Text

__all__ = ["NOTHING", "DraftModel", "Speculation", "SpeculationConfig", "Turn"]

logger = logging.getLogger(__name__)

# Tokens by cost that a forward with drafts must give, of a plain one; and one that must wait for
# what is in flight.
WORTH, WORTH_WAITING = 1.05, 1.1
# Tokens of ended turns that others may repeat.
MOST_REPLIES = 8192
# Tokens of a turn that are looked at to find where it is.
_TAIL = 16
# Tokens of an answer where nothing is known yet; and what feeding a draft model may cost, of the
# steps that the answer would take without.
USUAL_ANSWER, MOST_FED = 32.0, 0.25
NOTHING = Draft((), (), OWN)


class Turn:
    """One turn as it is followed: through what itself has said, and others; and what a draft model
    said of it."""

    def __init__(self, request: Request, replies: Text | None) -> None:
        self.text = Text()
        self.text.add(request.tokens)
        self.followers = {OWN: Follower(self.text, own=True)}
        if replies is not None:
            self.followers[OTHERS] = Follower(replies, own=False)
        for follower in self.followers.values():
            follower.follow(request.tokens[-_TAIL:])
        # What the draft model said that is to come, how many it said right before, and in all.
        self.modelled: list[int] = []
        self.streak = self.right = 0

    def hear(self, request: Request, acceptance: Acceptance) -> None:
        """The turn has one token more. Every follower says what it would have drafted, whether that
        was fed or not."""
        tail = request.tokens[-_TAIL:]
        self.text.add(tail[-1:])
        for source, follower in self.followers.items():
            length, right = follower.length, follower.follow(tail)
            if right is not None:
                acceptance.note(source, length, right=right)
        if not self.modelled:
            return
        right = self.modelled.pop(0) == tail[-1]
        acceptance.note(MODEL, self.streak, right=right)
        self.right += right
        self.streak = self.streak + 1 if right else 0
        if not right:
            self.modelled.clear()

    def draft(
        self, request: Request, acceptance: Acceptance, most: int, *, behind: int = 0
    ) -> Draft:
        """The likeliest text to follow `request`'s, of `most` tokens, by what `acceptance` has
        seen; `behind` tokens are in flight before."""
        source, follower = max(
            self.followers.items(), key=lambda one: acceptance.chance(one[0], one[1].length)
        )
        chances, likely = list[float](), 1.0
        for length in range(follower.length, follower.length + behind + most):
            chance = acceptance.chance(source, length)
            likely *= chance
            if likely < LEAST_CHANCE:
                break
            chances.append(chance)
        if len(chances) <= behind:
            return NOTHING
        tokens = _before_the_end(request, follower.ahead(len(chances)))
        if behind:
            chances[1] *= chances[0]
        return Draft(tokens[behind:], chances[behind : len(tokens)], source)


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A model that drafts what the agents' model says, for `AgentSystem(speculation=...)`: a
    directory, a hub name, or a callable that returns (model, tokenizer) and runs on the GPU thread.
    Its tokenizer is that of the agents' model. "default" drafts for the default model. Raises
    InvalidConfig."""

    source: str | Path | Callable[[], Any] = "default"

    def __post_init__(self) -> None:
        if not callable(self.source) and not isinstance(self.source, str | Path):
            raise InvalidConfig(
                f"a draft model is a name, a directory or a callable: {type(self.source).__name__}"
            )

    @property
    def name(self) -> str:
        """As it is shown."""
        source = self.source
        return getattr(source, "__name__", "callable") if callable(source) else str(source)


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """With `share` a turn may repeat what turns of others said that have ended. `draft` is the
    draft model, if there is one."""

    share: bool = True
    draft: DraftModel | None = None


class Speculation:
    """Drafts for the turns of one engine, as `config` says, and of the `chains` of a draft model,
    if there is one."""

    def __init__(self, config: SpeculationConfig, chains: Chains | None = None) -> None:
        self._acceptance = Acceptance()
        self._costs = Costs()
        self._replies = Text(MOST_REPLIES) if config.share else None
        self._turns: dict[Request, Turn] = {}
        self._usual = USUAL_ANSWER
        self._chains = chains
        self.sources: Mapping[Request, str] = {}
        """Whose drafts those are that were given last."""

    def worth_waiting(self, requests: Sequence[Request]) -> bool:
        """Whether drafts behind the tokens in flight are so good that these are better read before
        the next forward than while it runs."""
        drafts = [self._draft(request, len(requests), behind=1) for request in requests]
        return any(share_out(drafts, len(requests), self._costs, least=WORTH_WAITING))

    def drafts(self, requests: Sequence[Request]) -> dict[Request, Sequence[int]]:
        """What to feed behind the last tokens of some of the `requests`, which take the next
        forward together; nothing where a plain step is as good."""
        drafts = [self._draft(request, len(requests)) for request in requests]
        shares = share_out(drafts, len(requests), self._costs, least=WORTH)
        shared = list(zip(requests, drafts, shares, strict=True))
        wanted = {request: n for request, draft, n in shared if n and draft.source == MODEL}
        found = {r: draft.tokens[:n] for r, draft, n in shared if n and r not in wanted}
        self.sources = {request: draft.source for request, draft, n in shared if n}
        found |= self._modelled(len(requests), wanted)
        allowed = {request: _allowed(request, tokens) for request, tokens in found.items()}
        return {request: tokens for request, tokens in allowed.items() if tokens}

    def hear(self, request: Request) -> None:
        """A turn has one token more."""
        turn = self._turns.get(request)
        if turn is not None:
            turn.hear(request, self._acceptance)

    def took(self, rows: int, drafts: Mapping[Request, Sequence[int]], seconds: float) -> None:
        """A forward of so many `rows`, which checked these `drafts`, if any, took `seconds`:
        of none, by a clock that stands still, nothing is learned."""
        if seconds <= 0:
            return
        lengths = [len(draft) for draft in drafts.values()]
        if lengths:
            self._costs.note(rows, sum(lengths), max(lengths), seconds)
        else:
            self._costs.note_plain(rows, seconds)

    def ended(self, request: Request) -> None:
        """A turn has ended: others may repeat what it said."""
        turn = self._turns.pop(request, None)
        if self._replies is not None and request.generated:
            self._replies.add([*request.generated, BORDER])
        if turn is not None and self._chains is not None:
            self._usual += 0.1 * (request.decoded - self._usual)
            self._chains.ended(request)
            if not turn.right:
                self._acceptance.doubt(MODEL)

    def _modelled(
        self, rows: int, wanted: Mapping[Request, int]
    ) -> Mapping[Request, Sequence[int]]:
        """So many tokens of the draft model for each turn as are `wanted`, of `rows` that decode,
        unless memory is short."""
        chains = self._chains
        if chains is None or not wanted:
            return {}
        wanted = {request: n for request, n in wanted.items() if chains.fits(request, n)}
        begin, fed = perf_counter(), sum(map(chains.missing, wanted))
        try:
            drafts = {request: chains.draft(request, n) for request, n in wanted.items()}
        except Exception:
            # Its turns go on without.
            logger.exception("the draft model failed; it drafts no more")
            chains.clear()
            self._chains = None
            return {}
        drafted = sum(map(len, drafts.values()))
        if drafted:
            self._costs.note_draft(rows, fed, drafted, perf_counter() - begin)
        for request, draft in drafts.items():
            self._turns[request].modelled = list(draft)
        return {request: _before_the_end(request, draft) for request, draft in drafts.items()}

    def _draft(self, request: Request, rows: int, *, behind: int = 0) -> Draft:
        left = request.sampling.max_tokens - request.decoded - behind - 1
        if left <= 0 or request.suspect:
            return NOTHING
        turn = self._turns.get(request)
        if turn is None:
            turn = self._turns[request] = Turn(request, self._replies)
        text = turn.draft(request, self._acceptance, min(left, MOST_DRAFTED), behind=behind)
        model = self._of_model(request, turn, rows, min(left, MOST_DRAFTED))
        return max(text, model, key=lambda draft: draft.worth)

    def _of_model(self, request: Request, turn: Turn, rows: int, most: int) -> Draft:
        """What the draft model may say, if it is asked: its tokens are not known yet."""
        if self._chains is None or not self._costs.known(rows):
            return NOTHING
        left = min(request.sampling.max_tokens, max(self._usual, 2.0 * request.decoded))
        feed = self._costs.feed(rows, self._chains.missing(request))
        if feed > MOST_FED * (left - request.decoded) or not self._chains.fits(request, most):
            return NOTHING
        chances = [self._acceptance.chance(MODEL, turn.streak + place) for place in range(most)]
        return Draft(range(most), chances, MODEL, self._costs.draft(rows))


def _before_the_end(request: Request, tokens: Sequence[int]) -> Sequence[int]:
    """What is drafted up to what would end the turn: that is drawn behind it anyway."""
    ends = (place for place, token in enumerate(tokens) if token in request.stop_tokens)
    return tokens[: next(ends, len(tokens))]


def _allowed(request: Request, tokens: Sequence[int]) -> Sequence[int]:
    """Of a draft, what the turn's grammar would take as it is, if it has one."""
    if request.guide is None:
        return tokens
    try:
        request.guide.follow(request.generated)
        return tokens[: request.guide.takes(tokens)]
    except InvalidGrammar:
        # The step that draws says so, of this turn alone.
        return ()
