"""What an agent is asked, checked where it is asked: before anything is sent. Pure: any thread."""

import uuid
from collections.abc import Sequence
from typing import Any, Unpack

from kvactors.actors.cluster.host.requests import (
    ask_request,
    observe_request,
    rewind_request,
)
from kvactors.actors.turns.checks import (
    check_known,
    check_observed,
    check_request_id,
    check_rewind,
    check_turn,
)
from kvactors.actors.turns.options import AskOptions
from kvactors.actors.turns.prompt import (
    check_given,
    check_messages,
    check_text_or_ids,
    check_threshold,
    check_told,
)
from kvactors.core.conversation.prefix_match import THRESHOLD
from kvactors.core.text import check_text

__all__ = ["checked_ask", "checked_observe", "checked_rewind", "new_id"]

MOST_TOKENS = 2**32
"""Of any vocabulary. How many the model's has its node knows."""


def checked_ask(
    prompt: str | Sequence[int] | None, **options: Unpack[AskOptions]
) -> dict[str, Any]:
    """The request of what `ClusterAgent.ask` was given. What only the model can tell, its node
    checks. Raises InvalidInput, EmptyPrompt."""
    check_known("ask", options, AskOptions.__annotations__)
    # As plain numbers: NumPy's, say, would not cross.
    options["timeout"], options["priority"] = check_turn(
        options.get("sampling"), options.get("timeout"), options.get("priority", 0)
    )
    options["threshold"] = check_threshold(options.get("threshold", THRESHOLD))
    messages = options.get("messages")
    goes_on = options.get("continue_final_message", False)
    check_given(prompt, messages, goes_on=goes_on)
    if messages is not None:
        found = check_messages(messages)
        options["messages"] = [{"role": role, "content": text} for role, text in found]
    elif not goes_on:
        prompt = check_text_or_ids(prompt, MOST_TOKENS, match=options.get("match", False))
    if "template_kwargs" in options:
        raw = messages is None and (options.get("match", False) or not isinstance(prompt, str))
        options["template_kwargs"] = check_told(options["template_kwargs"], raw=raw)
    options["request_id"] = _named(options.get("request_id"))
    return ask_request(prompt, **options)


def checked_observe(text: str, role: str, request_id: str | None) -> dict[str, Any]:
    """The request of what `ClusterAgent.observe` was given: a `text`, its `role` and `request_id`.
    Raises InvalidInput."""
    check_observed(text, role)
    return observe_request(_named(request_id), check_text("the text", text), role)


def checked_rewind(
    turns: int | None, to_token: int | None, request_id: str | None
) -> dict[str, Any]:
    """The request of what `ClusterAgent.rewind` was given: `turns` or `to_token`, and its
    `request_id`. Raises InvalidInput."""
    return rewind_request(_named(request_id), *check_rewind(turns, to_token))


def _named(request_id: str | None) -> str:
    return check_request_id(request_id) or new_id()


def new_id() -> str:
    """Every request has one: what comes twice is taken once."""
    return uuid.uuid4().hex
