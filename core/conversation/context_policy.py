"""What an agent does at the end of its context. Pure: any thread.

"refuse": the turn is refused with the numbers. DropOldest: the oldest turns are left out, the
first ones kept, and what is kept is prefilled again. Summarize: the model's own summary of them
stands in their place. The ledger keeps every turn: the record that leaves some out says so and
repeats those that stay behind the gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import InvalidConfig
from kvactors.core.numbers import number, whole
from kvactors.core.text import check_text

__all__ = ["ContextPolicy", "DropOldest", "Summarize", "check_policy", "turns_to_drop"]

PROMPT = (
    "Summarize our conversation so far in a few sentences: names, facts, decisions, open "
    "questions. Answer with the summary alone."
)


@dataclass(frozen=True, slots=True)
class DropOldest:
    """Leave the oldest turns out once the context is full, but for the first `keep_head`.

    So many go that at most `fill` of the context is used: each time costs a prefill of all
    that stays. Raises InvalidConfig.
    """

    keep_head: int = 2
    fill: float = 0.5

    def __post_init__(self) -> None:
        head, fill = whole(self.keep_head), number(self.fill)
        if head is None or head < 0:
            raise InvalidConfig(f"keep_head counts turns, 0 or more, not {self.keep_head!r}")
        if fill is None or not 0 < fill < 1:
            raise InvalidConfig(f"fill is a share of the context in (0, 1), not {self.fill!r}")
        object.__setattr__(self, "keep_head", head)
        object.__setattr__(self, "fill", fill)


@dataclass(frozen=True, slots=True)
class Summarize(DropOldest):
    """As DropOldest, and a summary stands in place of the turns that go.

    The model is asked for it with `prompt`, greedily, behind the turns that go; neither that
    nor its answer is part of the transcript, a reply or a stream, only the summary is, as a
    user's turn. It costs a turn of at most `max_tokens` tokens within the turn that needed it
    (within its timeout too); `reply.cache` and `reply.usage` are of that turn alone. If it
    fails, is empty, has not ended after `max_tokens`, or does not fit, the turns are dropped,
    with a warning on the logger "kvactors". A turn that is cancelled meanwhile raises TurnFailed
    and leaves no trace. Raises InvalidConfig.
    """

    max_tokens: int = 256
    prompt: str = PROMPT

    def __post_init__(self) -> None:
        DropOldest.__post_init__(self)
        most = whole(self.max_tokens)
        if most is None or most < 1:
            raise InvalidConfig(f"max_tokens must be an int of at least 1: {self.max_tokens!r}")
        object.__setattr__(self, "max_tokens", most)
        if not isinstance(self.prompt, str) or not self.prompt:
            raise InvalidConfig(f"prompt must be text to ask with, not {self.prompt!r}")
        check_text("prompt", self.prompt, InvalidConfig)


ContextPolicy = Literal["refuse"] | DropOldest


def check_policy(policy: object) -> None:
    """Raise InvalidConfig for what is no policy."""
    if policy != "refuse" and not isinstance(policy, DropOldest):
        raise InvalidConfig(
            f'context_policy is "refuse", DropOldest(...) or Summarize(...), not {policy!r}'
        )


def turns_to_drop(
    policy: DropOldest, turns: Sequence[Turn], new: int, context: int
) -> tuple[int, int]:
    """(head, tail): the first `head` turns and those from `tail` on stay, so that with `new`
    more tokens at most the `fill` of `policy` of the context is used, if dropping whole turns can
    do that.

    A question and its answer go together.
    """
    head = min(policy.keep_head, len(turns))
    while 0 < head < len(turns) and turns[head].is_answer:
        head += 1
    used = sum(len(turn.token_ids) for turn in turns) + new
    tail = head
    while tail < len(turns) and (used > policy.fill * context or turns[tail].is_answer):
        used -= len(turns[tail].token_ids)
        tail += 1
    return head, tail
