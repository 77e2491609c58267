"""Answers with a form, from the shipped model: JSON, and calls of tools that must be called."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from puppets import call, opening, puppet_server

from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.testing import PuppetModel

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
ASKED = [{"role": "user", "content": "What is the weather in Rome?"}]


def ask(client: Any, **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 120, "messages": ASKED} | options
    return client.chat.completions.create(model="default", **options).choices[0]


@pytest.mark.parametrize("strict", [False, True])
def test_a_required_tool_is_called_with_what_its_schema_allows(
    client: Any, *, strict: bool
) -> None:
    tool = json.loads(json.dumps(WEATHER))
    tool["function"]["strict"] = strict

    choice = ask(client, tools=[tool], tool_choice="required", parallel_tool_calls=False)

    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    schema = WEATHER["function"]["parameters"]  # type: ignore[index]
    jsonschema.validate(json.loads(call.function.arguments), schema)


def test_a_call_that_must_be_made_ends_when_it_is_made(claude: Any) -> None:
    one = {"properties": {"x": {"type": "integer", "maximum": 999}}, "required": ["x"]}
    schema = {"type": "object", "additionalProperties": False} | one

    answer = claude.messages.create(
        model="default",
        messages=[{"role": "user", "content": "Add 2 and 3"}],
        max_tokens=400,
        extra_body={"temperature": 0},
        tools=[{"name": "f", "input_schema": schema}],
        tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    )

    assert answer.stop_reason == "tool_use"
    assert answer.usage.output_tokens < 60


def test_a_named_tool_is_the_one_that_is_called(client: Any) -> None:
    named = {"type": "function", "function": {"name": "clock"}}

    choice = ask(client, tools=[WEATHER, CLOCK], tool_choice=named, parallel_tool_calls=False)

    assert [call.function.name for call in choice.message.tool_calls] == ["clock"]


def test_a_tool_that_is_not_there_is_refused(client: Any) -> None:
    named = {"type": "function", "function": {"name": "teapot"}}

    with pytest.raises(openai.BadRequestError, match="teapot"):
        ask(client, tools=[WEATHER], tool_choice=named)


@pytest.mark.parametrize(("path", "choice"), [("chat", "required"), ("messages", {"type": "any"})])
def test_a_call_of_none_is_refused(server: Server, path: str, choice: Any) -> None:
    paths = {"chat": "chat/completions", "messages": "messages"}
    asked = {"messages": ASKED, "max_tokens": 9, "tools": [], "tool_choice": choice}

    answer = httpx.post(f"{server.url}/v1/{paths[path]}", json=asked, timeout=60)

    assert answer.status_code == 400
    assert "there is none" in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def thinker() -> Iterator[openai.OpenAI]:
    """Its template begins each answer with a thought."""
    puppet = PuppetModel(
        lambda said: (
            call("weather", city="Rome", unit="celsius") if "tools" in said else '{"a": 1}'
        ),
        tokenizer=opening,
    )
    with (
        puppet_server(puppet) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_an_answer_with_a_form_is_no_thought_though_the_template_begins_one(thinker: Any) -> None:
    form = {"type": "json_object"}

    said = ask(thinker, response_format=form).message

    assert json.loads(said.content) == {"a": 1}
    assert not hasattr(said, "reasoning_content")


def test_nor_is_a_call_that_must_be_made(thinker: Any) -> None:
    choice = ask(thinker, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)

    assert [call.function.name for call in choice.message.tool_calls] == ["weather"]


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_an_answer_is_json_where_that_is_asked_for(client: Any, kind: str) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "legs": {"type": "integer"}},
        "required": ["name", "legs"],
        "additionalProperties": False,
    }
    form: dict[str, Any] = {"type": kind}
    if kind == "json_schema":
        form["json_schema"] = {"name": "animal", "schema": schema}

    found = json.loads(ask(client, response_format=form).message.content)

    assert isinstance(found, dict)
    if kind == "json_schema":
        jsonschema.validate(found, schema)


def test_a_call_streams_as_it_is_answered_whole(client: Any) -> None:
    asked = {
        "model": "default",
        "messages": ASKED,
        "tools": [WEATHER],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 120,
    }
    whole = client.chat.completions.create(**asked).choices[0].message.tool_calls[0]

    chunks = list(client.chat.completions.create(**asked, stream=True))

    parts = [c.choices[0].delta.tool_calls for c in chunks if c.choices[0].delta.tool_calls]
    calls = [part[0] for part in parts]
    assert calls[0].function.name == whole.function.name
    assert "".join(c.function.arguments or "" for c in calls) == whole.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_schema_that_cannot_be_held_to_is_refused(client: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "teapot"}}}

    with pytest.raises(openai.BadRequestError, match="teapot"):
        ask(client, response_format=form)


# What no grammar of ours says.
SET = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "maxItems": 2}
LETTERS = {
    "type": "object",
    "properties": {"letters": SET},
    "required": ["letters"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("tools", [[], [WEATHER]], ids=["alone", "beside a tool"])
@pytest.mark.parametrize("strict", [None, False])
def test_of_a_form_that_is_not_strict_what_cannot_be_held_to_is_named(
    client: Any, strict: bool | None, tools: list[Any]
) -> None:
    named = {"name": "x", "schema": LETTERS, "strict": strict}

    answer = client.chat.completions.with_raw_response.create(
        model="default",
        messages=ASKED,
        response_format={"type": "json_schema", "json_schema": named},
        tools=tools or None,
        tool_choice="none" if tools else None,
    )

    said = json.loads(answer.parse().choices[0].message.content)
    jsonschema.validate(said, LETTERS | {"properties": {"letters": SET | {"uniqueItems": False}}})
    assert "response_format: Unimplemented keys" in answer.headers["x-kvactors-ignored"]


def test_a_response_names_it_too(client: Any) -> None:
    form = {"type": "json_schema", "name": "x", "schema": LETTERS}

    answer = client.responses.with_raw_response.create(
        model="default", input="Which letters?", text={"format": form}
    )

    assert set(json.loads(answer.parse().output_text)["letters"]) <= {"a", "b"}
    assert "text.format: Unimplemented keys" in answer.headers["x-kvactors-ignored"]


def test_of_a_strict_form_it_is_refused(client: Any) -> None:
    named = {"name": "x", "schema": LETTERS, "strict": True}

    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        ask(client, response_format={"type": "json_schema", "json_schema": named})
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        client.responses.create(
            model="default",
            input="Which letters?",
            text={"format": {"type": "json_schema", **named}},
        )


def test_a_tool_that_is_not_strict_is_held_to_what_can_be(client: Any) -> None:
    tool = {"type": "function", "function": {"name": "letters", "parameters": LETTERS}}

    choice = ask(client, tools=[tool], tool_choice="required", parallel_tool_calls=False)

    said = json.loads(choice.message.tool_calls[0].function.arguments)
    assert list(said) == ["letters"]
    assert set(said["letters"]) <= {"a", "b"}
