"""Clients that run one tool at a time: an answer ends behind its first call."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from call_forms import results_within, tools_apart
from puppets import Asks, Chat, Messages, call, puppet_server, thinking, with_tools

from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.testing import PuppetModel

INTERFACES = [Chat(stream=False), Chat(stream=True), Messages(stream=False), Messages(stream=True)]
FIRST = f"I look.\n{call('read', path='a.py')}"
LISTED = [{"name": "read", "arguments": {"path": path}} for path in ("a.py", "b.py")]
TOKENIZERS = [thinking, with_tools, tools_apart, results_within]
SAYS = {
    "say both": f"{FIRST}\n{call('read', path='b.py')}\n",
    "say list": f"I look.\n<tool_call>\n{json.dumps(LISTED)}\n</tool_call>",
    "say none": "I look.",
}


@pytest.fixture(scope="module", params=TOKENIZERS, ids=["generic", "template", "own", "within"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    def script(said: str) -> str:
        if "is empty" in said:
            return "So."
        return next(text for word, text in SAYS.items() if word in said)

    with puppet_server(PuppetModel(script, tokenizer=request.param)) as server:
        yield server


def one_by_one(ask: Asks) -> dict[str, Any]:
    """How an interface says that it takes one call at a time."""
    if isinstance(ask, Chat):
        return {"parallel_tool_calls": False}
    return {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}


@pytest.mark.parametrize("ask", INTERFACES, ids=str)
@pytest.mark.parametrize("says", ["say both", "say list"])
def test_who_takes_one_call_at_a_time_gets_one_and_goes_on_behind_it(
    server: Server, ask: Asks, says: str
) -> None:
    messages = [{"role": "user", "content": f"{says} {ask}"}]

    said = ask(server, messages, **one_by_one(ask))
    results = ask.results({said.calls[0][0]: "is empty"})
    second = ask(server, [*messages, said.message, *results], **one_by_one(ask))

    assert [given["path"] for _, _, given in said.calls] == ["a.py"]
    assert said.reason in ("tool_calls", "tool_use")
    assert said.text == "I look."
    if says == "say both":
        # The second one was not even said.
        assert said.answered <= len(FIRST)
    assert second.text == "So."
    assert second.cached >= said.prompt + said.answered - 1


@pytest.mark.parametrize("ask", INTERFACES, ids=str)
def test_who_takes_one_call_at_a_time_may_get_none(server: Server, ask: Asks) -> None:
    said = ask(server, [{"role": "user", "content": f"say none {ask}"}], **one_by_one(ask))

    assert (said.text, said.calls) == ("I look.", [])
    assert said.reason in ("stop", "end_turn")


@pytest.mark.parametrize("ask", INTERFACES, ids=str)
def test_a_stop_string_of_the_clients_is_no_call(server: Server, ask: Asks) -> None:
    name = "stop" if isinstance(ask, Chat) else "stop_sequences"
    asked = [{"role": "user", "content": f"say both and stop {ask}"}]

    said = ask(server, asked, **one_by_one(ask), **{name: ["look"]})

    assert (said.text, said.calls) == ("I ", [])
    assert said.reason in ("stop", "stop_sequence")


@pytest.mark.parametrize("stream", [False, True])
def test_responses_take_one_call_at_a_time(server: Server, *, stream: bool) -> None:
    tool: Any = {"type": "function", "name": "read", "parameters": {"type": "object"}}
    asked: Any = {"model": "any", "input": f"say both {stream}", "tools": [tool]}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        asked["parallel_tool_calls"] = False
        told: Any = client.responses.create(**asked, stream=stream)
        answer = list(told)[-1].response if stream else told

    assert [item.type for item in answer.output] == ["message", "function_call"]
    assert json.loads(answer.output[1].arguments) == {"path": "a.py"}
