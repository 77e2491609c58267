"""Speculation: which turns are given drafts in a step, and of how many tokens. GPU thread only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvactors.core.schedule.request import Request
from kvactors.core.schedule.speculation.acceptance import (
    MOST_DRAFTED,
    Acceptance,
    Costs,
    Draft,
    share_out,
)
from kvactors.core.schedule.speculation.texts import BORDER, Follower, Text

__all__ = ["Speculation", "SpeculationConfig"]

# Tokens by cost that a forward with drafts must give, of a plain one; and one that must wait for
# what is in flight.
WORTH, WORTH_WAITING = 1.05, 1.1
# Tokens of ended turns that others may repeat.
MOST_REPLIES = 8192
# Tokens of a turn that are looked at to find where it is.
_TAIL = 16


class _Turn:
    """One turn as it is followed: through what itself has said, and others."""

    def __init__(self, request: Request, replies: Text | None) -> None:
        self.text = Text()
        self.text.add(request.tokens)
        self.followers = {"own": Follower(self.text, own=True)}
        if replies is not None:
            self.followers["others"] = Follower(replies, own=False)
        for follower in self.followers.values():
            follower.follow(request.tokens[-_TAIL:])

    def hear(self, request: Request, acceptance: Acceptance) -> None:
        """The turn has one token more. Every follower says what it would have drafted, whether that
        was fed or not."""
        tail = request.tokens[-_TAIL:]
        self.text.add(tail[-1:])
        for source, follower in self.followers.items():
            length, right = follower.length, follower.follow(tail)
            if right is not None:
                acceptance.note(source, length, right=right)

    def draft(self, acceptance: Acceptance, most: int, *, behind: int = 0) -> Draft:
        """The likeliest text to follow, of `most` tokens; `behind` tokens are in flight before."""
        source, follower = max(
            self.followers.items(), key=lambda one: acceptance.chance(one[0], one[1].length)
        )
        tokens = follower.ahead(behind + most)
        chances = [
            acceptance.chance(source, follower.length + place) for place in range(len(tokens))
        ]
        if behind and chances[behind:]:
            chances[1] *= chances[0]
        return Draft(tokens[behind:], chances[behind:], source)


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """With `share` a turn may repeat what turns of others said that have ended."""

    share: bool = True


class Speculation:
    """Drafts for the turns of one engine, as `config` says."""

    def __init__(self, config: SpeculationConfig) -> None:
        self._acceptance = Acceptance()
        self._costs = Costs()
        self._replies = Text(MOST_REPLIES) if config.share else None
        self._turns: dict[Request, _Turn] = {}

    def worth_waiting(self, requests: Sequence[Request]) -> bool:
        """Whether drafts behind the tokens in flight are so good that these are better read before
        the next forward than while it runs."""
        drafts = [self._draft(request, behind=1) for request in requests]
        return any(share_out(drafts, len(requests), self._costs, least=WORTH_WAITING))

    def drafts(self, requests: Sequence[Request]) -> dict[Request, Sequence[int]]:
        """What to feed behind the last tokens of some of the `requests`, which take the next
        forward together; nothing where a plain step is as good."""
        drafts = [self._draft(request) for request in requests]
        shares = share_out(drafts, len(requests), self._costs, least=WORTH)
        found = {
            request: _allowed(request, draft.tokens[:share])
            for request, draft, share in zip(requests, drafts, shares, strict=True)
            if share
        }
        return {request: tokens for request, tokens in found.items() if tokens}

    def hear(self, request: Request) -> None:
        """A turn has one token more."""
        turn = self._turns.get(request)
        if turn is not None:
            turn.hear(request, self._acceptance)

    def took(self, rows: int, drafts: Mapping[Request, Sequence[int]], seconds: float) -> None:
        """A forward of so many `rows`, which checked these `drafts`, if any, took `seconds`."""
        lengths = [len(draft) for draft in drafts.values()]
        if lengths:
            self._costs.note(rows, sum(lengths), max(lengths), seconds)
        else:
            self._costs.note_plain(rows, seconds)

    def ended(self, request: Request) -> None:
        """A turn has ended: others may repeat what it said."""
        self._turns.pop(request, None)
        if self._replies is not None and request.generated:
            self._replies.add([*request.generated, BORDER])

    def _draft(self, request: Request, *, behind: int = 0) -> Draft:
        left = request.sampling.max_tokens - request.decoded - behind - 1
        if left <= 0 or request.suspect:
            return Draft((), (), "own")
        turn = self._turns.get(request)
        if turn is None:
            turn = self._turns[request] = _Turn(request, self._replies)
        return turn.draft(self._acceptance, min(left, MOST_DRAFTED), behind=behind)


def _allowed(request: Request, tokens: Sequence[int]) -> Sequence[int]:
    """Of a draft, what the turn's grammar would take as it is, if it has one."""
    if request.guide is None:
        return tokens
    request.guide.follow(request.generated)
    return tokens[: request.guide.takes(tokens)]
