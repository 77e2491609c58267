"""What an agent does at the end of its context.

"refuse": the turn is refused with the numbers. DropOldest: the oldest turns are left out, the
first ones kept, and what is kept is prefilled again. The ledger keeps every turn: the record
that drops some says so and repeats those that stay behind the gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvactors.core.errors import InvalidConfig
from kvactors.core.transcript import Turn

__all__ = ["ContextPolicy", "DropOldest", "check_policy", "turns_to_drop"]


@dataclass(frozen=True, slots=True)
class DropOldest:
    """Leave the oldest turns out once the context is full, but for the first `keep_head`.

    So many go that at most `fill` of the context is used: each time costs a prefill of all
    that stays. Raises InvalidConfig.
    """

    keep_head: int = 2
    fill: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.keep_head, int) or self.keep_head < 0:
            raise InvalidConfig(f"keep_head counts turns, 0 or more, not {self.keep_head!r}")
        if not isinstance(self.fill, float) or not 0 < self.fill < 1:
            raise InvalidConfig(f"fill is a share of the context in (0, 1), not {self.fill!r}")


ContextPolicy = Literal["refuse"] | DropOldest


def check_policy(policy: object) -> None:
    """Raise InvalidConfig for what is no policy."""
    if policy != "refuse" and not isinstance(policy, DropOldest):
        raise InvalidConfig(f'context_policy is "refuse" or DropOldest(...), not {policy!r}')


def turns_to_drop(
    policy: DropOldest, turns: Sequence[Turn], new: int, context: int
) -> tuple[int, int]:
    """(head, tail): the first `head` turns and those from `tail` on stay, so that with `new`
    more tokens at most `fill` of the context is used, if dropping whole turns can do that.

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
