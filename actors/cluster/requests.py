"""What an agent is asked, checked where it is asked: before anything is sent. Pure: any thread."""

import uuid
from collections.abc import Sequence
from typing import Any, Unpack

from kvactors.actors.cluster.host.requests import ask_request, observe_request
from kvactors.actors.turns.checks import check_text, check_turn
from kvactors.actors.turns.options import AskOptions
from kvactors.actors.turns.prompt import check_messages, check_token_ids
from kvactors.core.conversation.prefix_match import THRESHOLD
from kvactors.core.errors import EmptyPrompt, InvalidInput
from kvactors.core.numbers import number

__all__ = ["checked_ask", "checked_observe"]

MOST_TOKENS = 2**32
"""Of any vocabulary. How many the model's has its node knows."""


def checked_ask(
    prompt: str | Sequence[int] | None, **options: Unpack[AskOptions]
) -> dict[str, Any]:
    """The request of what `ClusterAgent.ask` was given. What only the model can tell, its node
    checks. Raises InvalidInput, EmptyPrompt."""
    check_turn(options.get("sampling"), options.get("timeout"), options.get("priority", 0))
    share = number(options.get("threshold", THRESHOLD))
    if share is None or not 0 <= share <= 1:
        raise InvalidInput(f"threshold must be between 0 and 1, not {options['threshold']!r}")
    messages = options.get("messages")
    if (prompt is None) == (messages is None):
        raise InvalidInput("give a prompt or messages, one of them")
    if messages is not None:
        found = check_messages(messages)
        options["messages"] = [{"role": role, "content": text} for role, text in found]
    elif not isinstance(prompt, str):
        prompt = _tokens(prompt, match=options.get("match", False))
    elif not prompt:
        raise EmptyPrompt("the prompt is empty")
    else:
        check_text("the prompt", prompt)
    options.setdefault("request_id", _new_id())
    return ask_request(prompt, **options)


def checked_observe(text: str, role: str) -> dict[str, Any]:
    """The request of what `ClusterAgent.observe` was given: a `text` and its `role`. Raises
    InvalidInput."""
    if not isinstance(text, str):
        raise InvalidInput(f"observe takes text, not {type(text).__name__}")
    if not isinstance(role, str) or not role:
        raise InvalidInput(f"role must be a non-empty string, not {role!r}")
    check_text("the text", text)
    return observe_request(_new_id(), text, check_text("role", role))


def _tokens(prompt: object, *, match: bool) -> tuple[int, ...]:
    if match:
        raise InvalidInput(f"match=True compares text, not {type(prompt).__name__}")
    return check_token_ids(prompt, MOST_TOKENS)


def _new_id() -> str:
    """Every request has one: what comes twice is taken once."""
    return uuid.uuid4().hex
