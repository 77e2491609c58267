"""What is told of an answer with calls: of one that was cut, and of the blanks around calls."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from call_forms import channels, results_within, tools_apart
from puppets import Asks, Chat, Messages, call, puppet_server, thinking, with_tools

from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.testing import PuppetModel

WAIT = 60
INTERFACES = [Chat(stream=False), Chat(stream=True), Messages(stream=False), Messages(stream=True)]
SECOND = call("read", path="b.py")
BOTH = f"I look.\n{call('read', path='a.py')}\n{SECOND}"
BLANKS = f"I look.\n\n{call('read')}\n\n{call('edit')}\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Its answer is what it is asked for, and nothing where results are told."""
    says = {"both": BOTH, "blanks": BLANKS, "behind": f"I look.\n{call('read')}\nDone."}

    def script(said: str) -> str:
        last = said.split("<|start|>")[-2]
        return next((text for word, text in says.items() if f"say {word}" in last), "So.\n")

    with puppet_server(PuppetModel(script, tokenizer=with_tools)) as server:
        yield server


@pytest.mark.parametrize("ask", INTERFACES, ids=str)
@pytest.mark.parametrize("short", [20, 50, len(SECOND) + 1])
def test_an_answer_that_is_cut_is_no_whole_one_though_it_holds_a_call(
    server: Server, ask: Asks, short: int
) -> None:
    messages = [{"role": "user", "content": f"say both {short} {ask}"}]

    said = ask(server, messages, max_tokens=len(BOTH) - short)

    assert [given["path"] for _, _, given in said.calls] == ["a.py"]
    assert said.reason in ("length", "max_tokens")
    assert said.text == "I look."

    results = ask.results({said.calls[0][0]: "is empty"})
    second = ask(server, [*messages, said.message, *results])
    assert second.cached >= said.prompt


@pytest.mark.parametrize("ask", INTERFACES, ids=str)
def test_blank_lines_around_calls_are_nobodys_words(server: Server, ask: Asks) -> None:
    messages = [{"role": "user", "content": f"say blanks {ask}"}]

    said = ask(server, messages)
    results = ask.results({call_id: "is empty" for call_id, _, _ in said.calls})
    second = ask(server, [*messages, said.message, *results])

    assert said.text == "I look."
    assert second.text == "So.\n"
    assert second.cached >= said.prompt
    if isinstance(ask, Messages):
        kinds = [block["type"] for block in said.message["content"]]
        assert kinds == ["text", "tool_use", "tool_use"]


@pytest.mark.parametrize("ask", INTERFACES, ids=str)
def test_words_behind_a_call_stand_as_far_from_those_before_it_as_they_were(
    server: Server, ask: Asks
) -> None:
    said = ask(server, [{"role": "user", "content": f"say behind {ask}"}])

    assert said.text == "I look.\n\nDone."


@pytest.mark.parametrize("tokenizer", [thinking, with_tools, tools_apart, results_within, channels])
def test_a_loop_of_tools_is_counted_as_it_is_used(tokenizer: Callable[[], Any]) -> None:
    tool = {"name": "read", "input_schema": {"type": "object"}}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read them."}]
    for number in range(4):
        asked = {"type": "tool_use", "id": f"id{number}", "name": "read", "input": {"path": "a"}}
        result = {"type": "tool_result", "tool_use_id": f"id{number}", "content": f"of {number}"}
        words = [{"type": "text", "text": "Go on."}] * (number % 2)
        messages += [
            {"role": "assistant", "content": [*words, asked]},
            {"role": "user", "content": [result, *words]},
        ]
    body = {"model": "any", "messages": messages, "tools": [tool], "system": "Be kind."}
    with puppet_server(PuppetModel(["So."], tokenizer=tokenizer)) as server:
        url = f"{server.url}/v1/messages"
        counted = httpx.post(f"{url}/count_tokens", json=body, timeout=WAIT).json()
        used = httpx.post(url, json={**body, "max_tokens": 9}, timeout=WAIT).json()["usage"]

    assert counted == {"input_tokens": used["input_tokens"] + used["cache_read_input_tokens"]}
