"""A turn that is cancelled by somebody else than its client."""

from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from puppets import Chat, puppet_server, thinking
from pydantic import create_model
from seeded import bug, seeded

from kvactors.actors import Agent, AgentSystem
from kvactors.actors.frontends.server.answering.taken import Taken
from kvactors.actors.frontends.server.exchange.inquiry import Message
from kvactors.actors.testing import PuppetModel

LONG = {"type": "array", "items": {"type": "string", "minLength": 40}, "minItems": 60}
ASKED: dict[str, Any] = {
    "model": "default",
    "messages": [{"role": "user", "content": "Count."}],
    "max_tokens": 9000,
    "stream": True,
}


# A type that is long by its names: clients send no lengths of what it holds.
WORDS: dict[str, Any] = {f"word_{number}": (str, ...) for number in range(60)}
Long = create_model("Long", **WORDS)


def cancelled_at_its_first_text(
    stream: Any, system: AgentSystem, agent: str, kind: str = ""
) -> Any:
    """The last of all events, while the program cancels what its agent does: at each, or those of
    this `kind`."""
    for event in stream:
        found, last = system.find(agent), event
        assert found is not None
        if not kind or event.type == kind:
            found.cancel()
    return last


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


def test_half_a_typed_response_is_told_as_failed(client: Any, system: AgentSystem) -> None:
    named = {"X-Kvactors-Agent": "counts in a type"}
    asked = {"model": "default", "input": "Count.", "max_output_tokens": 9000}
    with client.responses.stream(**asked, text_format=Long, extra_headers=named) as stream:
        last = cancelled_at_its_first_text(
            stream, system, "counts in a type", "response.output_text.delta"
        )

    assert last.type == "response.failed"
    assert last.response.error.message == "the turn was cancelled"


def test_half_a_typed_message_is_told_as_an_error(claude: Any, system: AgentSystem) -> None:
    named = {"X-Kvactors-Agent": "counts in another"}
    asked = {"messages": ASKED["messages"], "model": "default", "max_tokens": 9000}
    with (
        pytest.raises(anthropic.APIError, match="the turn was cancelled"),
        claude.messages.stream(**asked, output_format=Long, extra_headers=named) as stream,
    ):
        cancelled_at_its_first_text(stream, system, "counts in another", "text")


def test_what_its_client_has_not_heard_is_not_said_though_the_turn_had_ended(
    tmp_path: Path,
) -> None:
    @bug(Agent, "end_turn")
    def it_ends_by_itself(_true: object) -> object:
        return lambda *_: None

    @bug(Taken, "answer")
    def its_client_heard_so_much(_true: object) -> object:
        return property(lambda _: Message("assistant", "It is"))

    puppet = PuppetModel(["It is so. " * 300, "Yes."], tokenizer=thinking)
    messages = ASKED["messages"]
    with puppet_server(puppet, tmp_path) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        system: AgentSystem = server.service.system  # type: ignore[assignment]
        with seeded(it_ends_by_itself), seeded(its_client_heard_so_much):
            with client, client.chat.completions.create(**{**ASKED, "model": "any"}) as stream:
                assert any(chunk.choices[0].delta.content for chunk in stream)
            assert system.wait_idle(60)
        (agent,) = system.agents()
        whole = agent.transcript().turns[-1]
        said = {"role": "assistant", "content": "It is"}
        Chat(stream=False)(server, [*messages, said, *messages], tools=())
        behind = [agent.transcript().turns for agent in system.agents()]

    assert (whole.finish, len(whole.text)) == ("stop", len("It is so. " * 300))
    assert [turns[1].text for turns in behind if len(turns) == 4] == ["It is"]
