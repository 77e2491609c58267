"""Tools that come later, and results of calls, behind an answer that is gone on with."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from puppets import Chat, call, puppet_server, with_tools

from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.testing import PuppetModel

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
BOTH = f"{call('read', path='a')}\n{call('edit', path='b')}"


@pytest.fixture
def heard() -> list[str]:
    return []


@pytest.fixture
def server(heard: list[str]) -> Iterator[Server]:
    def script(said: str) -> str:
        heard.append(said)
        return BOTH if said.rstrip().endswith("Call both.<|end|>\n<|start|>assistant") else "So."

    with puppet_server(PuppetModel(script, tokenizer=with_tools)) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, said: Any, *tools: str, behind: Any = None) -> Any:
    listed: Any = [{"type": "function", "name": name, "parameters": SCHEMA} for name in tools]
    before = behind.id if behind else None
    return client.responses.create(
        model="any", input=said, tools=listed, previous_response_id=before
    )


def results(answer: Any) -> Any:
    """Of its calls, by their names."""
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": f"of {item.name}"}
        for item in answer.output
        if item.type == "function_call"
    ]


def test_each_branch_is_told_of_a_tool_that_another_one_was_told_of(
    client: openai.OpenAI, heard: list[str]
) -> None:
    first = ask(client, "Hi.", "read")

    for said in ("One way.", "Another.", "A third."):
        ask(client, said, "read", "write", behind=first)
        assert '"write"' in heard[-1]
        assert said in heard[-1]


def test_a_branch_is_told_once_and_those_that_come_from_it_know(
    client: openai.OpenAI, heard: list[str]
) -> None:
    later = ask(client, "Go on.", "read", "write", behind=ask(client, "Hi.", "read"))

    for said in ("And on.", "Or else."):
        ask(client, said, "read", "write", behind=later)
        assert heard[-1].count('"write"') == 1


def test_who_begins_anew_is_told_of_all_its_tools_though_another_was_told_later(
    client: openai.OpenAI, server: Server, heard: list[str]
) -> None:
    ask(client, "Go on.", "read", "write", behind=ask(client, "Hi.", "read"))

    told = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "So."}]
    for messages in ([{"role": "user", "content": "New."}], [*told, *told[:1]]):
        Chat(stream=False)(server, messages, tools=("read", "write"))
        assert '"write"' in heard[-1]


def test_a_tool_that_comes_with_results_is_no_part_of_them(
    client: openai.OpenAI, heard: list[str]
) -> None:
    first = ask(client, "Call both.", "read", "edit")
    told = results(first)

    second = ask(client, told, "read", "edit", "write", behind=first)
    last = "<|start|>tool\nof edit<|end|>\n"
    before, _, after = heard[-1].partition(last)
    assert '"write"' not in before
    assert after.startswith("<|start|>user\n<system>")
    assert '"write"' in after

    # It is told once, there alone, and places behind it are where they were.
    ask(client, "And?", "read", "edit", "write", behind=second)
    assert heard[-1].startswith(f"{before}{last}{after}So.<|end|>\n<|start|>user\nAnd?")
    ask(client, told, "read", "edit", "write", behind=first)
    assert heard[-1] == f"{before}{last}{after}"
    ask(client, told, "read", "edit", behind=first)
    assert heard[-1] == f"{before}{last}<|start|>assistant\n"


def test_results_stand_in_the_order_of_their_calls_however_they_come(
    client: openai.OpenAI, heard: list[str]
) -> None:
    first = ask(client, "Call both.", "read", "edit")

    ask(client, results(first)[::-1], "read", "edit", behind=first)

    assert "tool\nof read<|end|>\n<|start|>tool\nof edit<|end|>" in heard[-1]
