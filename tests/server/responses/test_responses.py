"""Responses through the openai package: what is asked, what comes back, and what goes on."""

import asyncio
from typing import Any

import openai
import pytest
from inside import system_of
from responding import ASKED, GREEDY, TOLD, ask, cached

from kvactors.actors.frontends.server.web.serve import Server


def test_a_response_says_what_was_asked_and_answered(client: Any) -> None:
    response = ask(client, TOLD, instructions="You remember.", metadata={"a": "b"})

    assert response.status == "completed"
    assert response.output_text
    assert response.id.startswith("resp_")
    assert (response.instructions, response.metadata) == ("You remember.", {"a": "b"})
    usage = response.usage
    details = usage.input_tokens_details
    assert details.cached_tokens + details.cache_write_tokens == usage.input_tokens
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_a_previous_response_is_gone_on(client: Any) -> None:
    first = ask(client, TOLD, instructions="You go on.")

    second = ask(client, ASKED, previous_response_id=first.id)

    assert "Tom" in second.output_text
    assert second.previous_response_id == first.id
    assert cached(second) > 0.5 * second.usage.input_tokens
    third = ask(client, "And once more?", previous_response_id=second.id)
    assert cached(third) > cached(second)


def test_two_responses_go_on_the_same_one(client: Any) -> None:
    first = ask(client, TOLD, instructions="You branch.")
    ask(client, "What is my dog called?", previous_response_id=first.id)

    other = ask(client, ASKED, previous_response_id=first.id)

    assert "Tom" in other.output_text
    assert cached(other) > 0.5 * other.usage.input_tokens


def test_what_is_resent_is_not_computed_again(client: Any) -> None:
    first = ask(client, TOLD, instructions="You are told everything again.")
    items = [{"role": "user", "content": TOLD}]
    items += [item.model_dump(exclude_none=True) for item in first.output]

    second = ask(
        client,
        [*items, {"role": "user", "content": [{"type": "input_text", "text": ASKED}]}],
        instructions="You are told everything again.",
    )

    assert "Tom" in second.output_text
    assert cached(second) > 0.5 * second.usage.input_tokens


def test_other_instructions_move_nothing(client: Any) -> None:
    first = ask(client, TOLD, instructions="You answer in English.")
    same = ask(client, ASKED, previous_response_id=first.id, instructions="You answer in English.")

    other = ask(client, ASKED, previous_response_id=first.id, instructions="You answer in German.")
    again = ask(client, ASKED, previous_response_id=other.id, instructions="You answer in German.")

    assert cached(other) >= cached(same)
    assert other.usage.input_tokens > same.usage.input_tokens + 5
    computed = again.usage.input_tokens_details.cache_write_tokens
    assert computed < other.usage.input_tokens_details.cache_write_tokens


def test_a_response_that_is_cut_is_incomplete(client: Any) -> None:
    response = ask(client, TOLD, max_output_tokens=2)

    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[-1].status == "incomplete"
    assert response.usage.output_tokens == 2


def test_tools_of_unknown_kinds_are_skipped_and_named(client: Any) -> None:
    raw = client.responses.with_raw_response.create(
        input=TOLD,
        tools=[
            {"type": "web_search"},
            {"type": "custom", "name": "patch"},
            {"type": "namespace", "name": "n", "description": "", "tools": [{"type": "custom"}]},
        ],
        tool_choice={"type": "web_search"},
        service_tier="auto",
        **GREEDY,
    )

    assert raw.headers["x-kvactors-ignored"] == (
        "service_tier, tools: web_search, tools: custom, tool_choice: web_search"
    )
    assert raw.parse().status == "completed"


def test_the_package_may_be_asynchronous(server: Server) -> None:
    async def both() -> tuple[Any, list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            whole = await client.responses.create(input=TOLD, **GREEDY)
            stream = await client.responses.create(input=TOLD, stream=True, **GREEDY)
            return whole, [event.type async for event in stream]

    whole, kinds = asyncio.run(both())

    assert whole.status == "completed"
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["?"]}, "input.0"),
        ({"input": [{"role": "nobody", "content": "hello"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"input": [{"type": "teapot"}]}, "input.0.type"),
        ({"input": [{"type": "function_call_output", "output": "4"}]}, "input.0.call_id"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "n"}]}, "input.0.arguments"),
        ({"input": TOLD, "temperature": -1}, "temperature"),
        ({"input": TOLD, "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": TOLD, "tools": [{"type": "function"}]}, "tools.0.name"),
        ({"input": TOLD, "tools": [{"type": "namespace", "name": "n", "tools": [{
            "type": "function"}]}]}, "tools.0.tools.0.name"),
        ({"input": TOLD, "tools": [{"type": "namespace", "name": "n", "tools": [5]}]},
         "tools.0.tools.0"),
        ({"input": TOLD, "tool_choice": "maybe"}, "tool_choice"),
        ({"input": TOLD, "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": TOLD, "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"input": TOLD, "conversation": {"id": 5}}, "conversation"),
        ({"input": TOLD, "conversation": "c", "previous_response_id": "r"}, "previous_response_id"),
    ],
)  # fmt: skip
def test_a_bad_request_names_the_field(client: Any, wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="default", **wrong)

    assert (caught.value.param or "").startswith(field)
    assert field in str(caught.value)


def test_what_is_too_long_is_refused_as_openai_does(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "word " * 100_000)

    assert caught.value.code == "context_length_exceeded"


def test_an_unknown_model_is_told_which_one_there_is(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="default"):
        client.responses.create(model="gpt-9", input="?")


def test_tools_that_come_later_are_told_where_they_come(client: Any, server: Server) -> None:
    first = ask(client, "My cat is called Tom. Remember that.")
    tool = {"type": "function", "name": "feed", "parameters": {"type": "object"}}

    later = ask(client, "Feed it.", previous_response_id=first.id, tools=[tool])
    again = ask(client, "And again.", previous_response_id=later.id, tools=[tool])

    (agent,) = (a for a in system_of(server).agents() if "Feed it." in a.transcript().text)
    assert agent.transcript().text.count('"name": "feed"') == 1
    assert cached(later) > 0
    assert again.usage.input_tokens - cached(again) < 30


def test_what_a_client_moves_when_it_sums_up_is_not_its_system_prompt(client: Any) -> None:
    def developer(text: str) -> dict[str, str]:
        return {"role": "developer", "content": text}

    def asked(*items: dict[str, str]) -> Any:
        return ask(client, items, tools=[tool], extra_headers={"thread-id": "codex"})

    tool = {"type": "function", "name": "read", "description": "Reads a file by its name. " * 20}
    prompt, moved = developer("Answer in one sentence."), developer("You may read files.")
    told, again = ({"role": "user", "content": text} for text in (TOLD, ASKED))
    asked(prompt, moved, told)

    summed_up = asked(prompt, told, moved, again)

    assert cached(summed_up) > 0.5 * summed_up.usage.input_tokens
