"""What an agent is asked, checked where it is asked, and the plain record of it that crosses."""

import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvactors.actors.turns.checks import check_text, check_turn
from kvactors.actors.turns.prompt import Messages, check_messages, check_token_ids
from kvactors.core.conversation.prefix_match import THRESHOLD
from kvactors.core.errors import EmptyPrompt, InvalidInput
from kvactors.core.numbers import number
from kvactors.core.schedule.sampling import Sampling

__all__ = ["ask_request", "observe_request"]

MOST_TOKENS = 2**32
"""Of any vocabulary: how many the model's has its node knows."""


def ask_request(
    prompt: str | Sequence[int] | None,
    *,
    messages: Messages | None = None,
    match: bool = False,
    threshold: float = THRESHOLD,
    sampling: Sampling | None = None,
    timeout: float | None = None,
    priority: int = 0,
) -> dict[str, Any]:
    """The record of what `ClusterAgent.ask` was given: `prompt`, `messages`, `match`, `threshold`,
    `sampling`, `timeout`, `priority`. What only the model can tell, its node checks. Raises
    InvalidInput, EmptyPrompt."""
    seconds, placed = check_turn(sampling, timeout, priority)
    share = number(threshold)
    if share is None or not 0 <= share <= 1:
        raise InvalidInput(f"threshold must be between 0 and 1, not {threshold!r}")
    if (prompt is None) == (messages is None):
        raise InvalidInput("give a prompt or messages, one of them")
    if match and not isinstance(prompt, str):
        raise InvalidInput(f"match=True compares text, not {type(prompt).__name__}")
    return {
        **_begin("ask"),
        "prompt": None if prompt is None else _prompt(prompt),
        "messages": None if messages is None else _messages(messages),
        "match": match,
        "threshold": share,
        "sampling": _sampling(sampling),
        "timeout": seconds,
        "priority": placed,
    }


def observe_request(text: str, role: str) -> dict[str, Any]:
    """The record of what `ClusterAgent.observe` was given: a `text` and its `role`. Raises
    InvalidInput."""
    if not isinstance(text, str):
        raise InvalidInput(f"observe takes text, not {type(text).__name__}")
    if not isinstance(role, str) or not role:
        raise InvalidInput(f"role must be a non-empty string, not {role!r}")
    return {**_begin("observe"), "text": _prompt(text), "role": check_text("role", role)}


def _begin(kind: str) -> dict[str, Any]:
    """Every request has an id: one that comes twice is taken once."""
    return {"id": uuid.uuid4().hex, "kind": kind}


def _prompt(prompt: str | Sequence[int]) -> str | list[int]:
    if not isinstance(prompt, str):
        return list(check_token_ids(prompt, MOST_TOKENS))
    if not prompt:
        raise EmptyPrompt("the prompt is empty")
    return check_text("the prompt", prompt)


def _messages(messages: Messages) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in check_messages(messages)]


def _sampling(sampling: Sampling | None) -> dict[str, Any]:
    record = asdict(sampling or Sampling())
    return {**record, "stop": list(record["stop"]), "choices": list(record["choices"])}
