"""What agent frameworks ask for beside a chat: each was seen to, and to stumble without."""

import re
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from inside import system_of
from mlx_lm.tokenizer_utils import TokenizerWrapper
from puppets import call, opening, puppet_server, with_tools

from kvactors.actors.frontends.server.identity.rules import shipped_rules, strip
from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.testing import PuppetModel

ASKED = [{"role": "user", "content": "What is the weather in Rome?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
CALL = call("weather", city="Rome")


def qwens() -> TokenizerWrapper:
    """Marks of thoughts and calls are added tokens, which its file calls no special ones."""
    return with_tools(added=("<tool_call>", "</tool_call>"))


def beside_a_strict_tool(puppet: PuppetModel, store: Path) -> httpx.Response:
    """What is answered where the weather may be asked for."""
    tool = {"name": "weather", "parameters": CITY, "strict": True}
    body = {"model": "x", "messages": ASKED, "tools": [{"type": "function", "function": tool}]}
    with puppet_server(puppet, store) as server:
        return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


@pytest.mark.parametrize("thought", ["", "<think>Is it far?</think>"])
@pytest.mark.parametrize("said", ["It is sunny.", "Let me look.\n" + CALL, CALL])
def test_beside_a_strict_tool_a_model_thinks_and_calls_by_its_own_tokens(
    thought: str, said: str, tmp_path: Path
) -> None:
    answer = beside_a_strict_tool(PuppetModel([thought + said], tokenizer=qwens), tmp_path)

    message = answer.json()["choices"][0]["message"]
    assert (message.get("reasoning_content") or "") == ("Is it far?" if thought else "")
    assert bool(message.get("tool_calls")) == (CALL in said)
    assert (message["content"] or "").strip() == said.replace(CALL, "").strip()


def test_a_call_of_a_strict_tool_holds_its_schema_behind_a_thought(tmp_path: Path) -> None:
    wrong = "<think>Is it far?</think>" + call("weather", city=1)

    answer = beside_a_strict_tool(PuppetModel([wrong], tokenizer=qwens), tmp_path)

    # Of a puppet, which cannot say anything else.
    assert answer.status_code == 500, answer.text


@pytest.mark.parametrize("said", ["It is sunny.", CALL])
def test_a_thought_that_the_template_begins_ends_beside_a_strict_tool(
    said: str, tmp_path: Path
) -> None:
    puppet = PuppetModel([f"Is it far?</think>{said}"], tokenizer=opening)

    answer = beside_a_strict_tool(puppet, tmp_path)

    message = answer.json()["choices"][0]["message"]
    assert message["reasoning_content"] == "Is it far?"
    assert bool(message.get("tool_calls")) == (said == CALL)


def test_a_tool_runner_that_wants_its_conversation_held_is_sent_back_for_all_of_it(
    tmp_path: Path,
) -> None:
    """As anthropic 2.14 does by itself: it sends all where an error has this code."""
    tools: list[Any] = [{"name": "weather", "input_schema": CITY}]
    puppet = PuppetModel([CALL, "It is sunny."], tokenizer=with_tools)
    with puppet_server(puppet, tmp_path) as server:
        claude = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
        asked: dict[str, Any] = {"model": "x", "max_tokens": 200, "tools": tools}
        create = {"extra_body": {"thread": {"type": "create"}}}
        first = claude.messages.with_raw_response.create(**asked, **create, messages=ASKED)  # type: ignore[call-overload]
        message = first.parse()
        result = {"type": "tool_result", "tool_use_id": message.content[-1].id, "content": "sunny"}
        goes_on = {"thread": {"type": "continue", "previous_message_id": message.id}}
        new: list[Any] = [{"role": "user", "content": [result]}]
        with pytest.raises(anthropic.NotFoundError) as caught:
            claude.messages.create(model="x", max_tokens=200, messages=new, extra_body=goes_on)
        whole: list[Any] = [*ASKED, {"role": "assistant", "content": message.content}, *new]
        second = claude.messages.create(**asked, **create, messages=whole)  # type: ignore[call-overload]

    assert "thread" in first.headers["x-kvactors-ignored"]
    assert caught.value.body["error"]["details"] == {"error_code": "thread_not_found"}  # type: ignore[index]
    assert second.content[0].text == "It is sunny."
    assert second.usage.cache_read_input_tokens > message.usage.input_tokens


@pytest.mark.parametrize(
    ("kind", "name", "asked"),
    [
        ("memory_20250818", "memory", {"command": "view", "path": "/memories"}),
        ("bash_20250124", "bash", {"command": "ls"}),
        ("text_editor_20250728", "edit", {"command": "view", "path": "/a.txt"}),
    ],
)
def test_what_anthropics_models_know_is_told_to_others(
    kind: str, name: str, asked: dict[str, str], tmp_path: Path
) -> None:
    with puppet_server(
        PuppetModel([call(name, **asked)], tokenizer=with_tools), tmp_path
    ) as server:
        claude: Any = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
        tools = [{"type": kind, "name": name}]
        heard = claude.messages.with_raw_response.create(
            model="x", messages=ASKED, max_tokens=400, tools=tools, tool_choice={"type": "any"}
        )
        agent = heard.headers["x-kvactors-agent"]
        told = system_of(server).spawn(agent).transcript().text

    assert "x-kvactors-ignored" not in heard.headers
    assert [(block.name, block.input) for block in heard.parse().content] == [(name, asked)]
    assert f'"name": "{name}"' in told
    assert "str_replace" in told or name == "bash"


@pytest.mark.parametrize("field", ["output_format", "output_config"])
def test_a_form_is_held_to_under_both_its_names(claude: Any, field: str) -> None:
    form = {"type": "json_schema", "schema": {"enum": ["Rome", "Oslo"]}}
    body = {field: form if field == "output_format" else {"format": form}, "temperature": 0}

    answer = claude.messages.create(model="default", messages=ASKED, max_tokens=20, extra_body=body)

    assert answer.content[0].text in ('"Rome"', '"Oslo"')


def test_a_full_context_is_told_in_the_words_that_each_ones_clients_look_for(
    server: Server,
) -> None:
    long = {"messages": [{"role": "user", "content": "word " * 50_000}], "max_tokens": 4}
    body = {"model": "default"} | long

    said = [
        httpx.post(f"{server.url}/v1/{path}", json=body, timeout=60).json()["error"]["message"]
        for path in ("chat/completions", "messages")
    ]

    # As litellm looks for it, in any case of letters.
    assert "this model's maximum context length is" in said[0].lower()
    assert re.match(r"prompt is too long: \d+ tokens > \d+ maximum: ", said[1])


def test_the_tokens_of_an_input_are_those_that_its_answer_counts(client: Any) -> None:
    asked: dict[str, Any] = {
        "model": "default",
        "input": "Who are you?",
        "instructions": "Be kind.",
    }

    counted = client.responses.input_tokens.count(**asked)
    answer = client.responses.create(**asked, max_output_tokens=4)

    assert counted.input_tokens == answer.usage.input_tokens > 0


def test_a_response_that_is_cancelled_had_ended(client: Any) -> None:
    answer = client.responses.create(model="default", input="Hello.", max_output_tokens=4)

    assert client.responses.cancel(answer.id).output_text == answer.output_text


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("# Git\n```text\ngit: Current branch: main\ngit: Status:\n", "\n```\nBe brief."),
        ('<context name="gitStatus">On branch main\n', "</context>\nBe brief."),
        ("## Git Status\n\n```\nM one.py\n", "\n```\n\n<budget>100</budget>"),
        ("Remember.\n<working_memory_data>\n", "</working_memory_data>\nBe brief."),
        ("<session_context>\nSession folder: ", "\n</session_context>\nBe brief."),
    ],
    ids=["qwen", "continue", "gptme", "mastra", "copilot"],
)
def test_what_changes_of_itself_is_no_difference_between_two_beginnings(
    before: str, behind: str
) -> None:
    """As Qwen Code 0.24, Continue 1.5 and gptme write git's state into their system prompts, Mastra
    what its model said to remember, and GitHub's Copilot where its session is kept."""
    clean, edited = (strip(before + said + behind, shipped_rules()) for said in ("clean", "M a.py"))

    assert clean.text == edited.text
    assert [clean.text.startswith(before), clean.text.endswith(behind[-9:])] == [False, True]
    (value,) = edited.values.values()
    assert "M a.py" in value
