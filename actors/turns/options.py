"""What a turn is asked with: one record, checked on the caller's thread before anything is sent."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from kvactors.actors.turns.checks import check_observed, check_request_id, check_turn
from kvactors.actors.turns.prompt import (
    Messages,
    NewText,
    NewTokenIds,
    PromptInput,
    WholeText,
    check_prompt,
    check_told,
)
from kvactors.core.conversation.prefix_match import THRESHOLD
from kvactors.core.errors import InvalidInput
from kvactors.core.model.info import ModelInfo
from kvactors.core.schedule.sampling import Sampling

__all__ = ["AskOptions", "TurnOptions", "check_options", "observing", "withdrawing"]


class AskOptions(TypedDict, total=False):
    """The keyword parameters of `Agent.ask`, which says what they mean."""

    messages: Messages | None
    match: bool
    threshold: float
    sampling: Sampling | None
    timeout: float | None
    priority: int
    request_id: str | None
    template_kwargs: dict[str, Any] | None
    continue_final_message: bool


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """A turn as it travels from its asker to the engine."""

    prompt: PromptInput
    """What it adds, or the whole conversation that it ends."""
    sampling: Sampling
    """How to decode."""
    timeout: float | None = None
    """Seconds that it may take, queue included."""
    priority: int = 0
    """Before turns of other agents that have a lower one."""
    role: str = "user"
    """Of the new turn: user, or what `observe` was given."""
    answer: bool = True
    """Whether an answer is wanted; False: remember only."""
    remembered: bool = True
    """Whether the agent remembers it, on disk too; False: it leaves no trace."""
    lends: bool = False
    """Of one that is not remembered, whose agent is forgotten: whether its KV stays in memory,
    while there is room, for others of its tenant that begin alike."""
    request_id: str | None = None
    """Names it: what the agent has taken under this id is not taken again."""
    template_kwargs: dict[str, Any] | None = None
    """What the chat template is told for it, beside what it always is."""
    tenant: str = ""
    """Whose it is: the KV of a beginning is taken from turns of the same one alone."""
    taken: bool = True
    """False: nothing is, and no turn of this id from then on; its reply is that of the one that was
    taken, if there is one, else empty."""


def withdrawing(request_id: str) -> TurnOptions:
    """What sees to it that no turn of this id is taken from now on."""
    return TurnOptions(NewText(""), Sampling(), request_id=request_id, taken=False)


def check_options(
    model: ModelInfo,
    prompt: str | Sequence[int] | None,
    *,
    messages: Messages | None = None,
    match: bool = False,
    threshold: float = THRESHOLD,
    sampling: Sampling | None = None,
    timeout: float | None = None,
    priority: int = 0,
    request_id: str | None = None,
    template_kwargs: dict[str, Any] | None = None,
    continue_final_message: bool = False,
) -> TurnOptions:
    """The record of what `Agent.ask` was given, for this `model`: `prompt`, `messages`, `match`,
    `threshold`, `sampling`, `timeout`, `priority`, `request_id`, `template_kwargs`,
    `continue_final_message`. Raises EmptyPrompt, TokenOutOfRange, InvalidInput."""
    goes_on = continue_final_message
    given = check_prompt(
        model, prompt, messages=messages, match=match, threshold=threshold, goes_on=goes_on
    )
    seconds, placed = check_turn(sampling, timeout, priority)
    if goes_on and sampling is not None and sampling.choices:
        raise InvalidInput("choices are whole answers: no other one is gone on with")
    named = check_request_id(request_id)
    told = check_told(template_kwargs, raw=isinstance(given, NewTokenIds | WholeText))
    return TurnOptions(
        given, sampling or Sampling(), seconds, placed, request_id=named, template_kwargs=told
    )


def observing(
    model: ModelInfo, text: str, role: str, *, request_id: str | None = None
) -> TurnOptions:
    """The record of what `Agent.observe` was given, for this `model`: `text`, `role`, `request_id`.
    Raises EmptyPrompt, InvalidInput."""
    check_observed(text, role)
    turn = check_options(model, text, request_id=request_id)
    return replace(turn, role=role, answer=False)
