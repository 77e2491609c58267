"""A turn that is cancelled by somebody else than its client."""

from typing import Any

import anthropic
import openai
import pytest

from kvactors.actors import AgentSystem

LONG = {"type": "array", "items": {"type": "string", "minLength": 40}, "minItems": 60}
ASKED = {
    "model": "default",
    "messages": [{"role": "user", "content": "Count."}],
    "max_tokens": 9000,
    "stream": True,
}


def cancelled_at_its_first_text(stream: Any, system: AgentSystem, agent: str) -> None:
    """Read all, while the program cancels what its agent does."""
    for _ in stream:
        found = system.find(agent)
        assert found is not None
        found.cancel()


def test_half_an_answer_of_chat_is_told_as_an_error(client: Any, system: AgentSystem) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "long", "schema": LONG}}
    named = {"X-Kvactors-Agent": "counts"}
    stream = client.chat.completions.create(**ASKED, response_format=form, extra_headers=named)

    with pytest.raises(openai.APIError, match="the turn was cancelled"):
        cancelled_at_its_first_text(stream, system, "counts")


def test_half_a_message_is_told_as_an_error(claude: Any, system: AgentSystem) -> None:
    form = {"output_config": {"format": {"type": "json_schema", "schema": LONG}}}
    named = {"X-Kvactors-Agent": "counts too"}
    stream = claude.messages.create(**ASKED, extra_body=form, extra_headers=named)

    with pytest.raises(anthropic.APIError, match="the turn was cancelled"):
        cancelled_at_its_first_text(stream, system, "counts too")
