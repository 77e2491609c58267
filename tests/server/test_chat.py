"""Chat completions through the openai package: what a client resends is not computed again."""

import asyncio
import json
import logging
from typing import Any

import httpx
import openai
import pytest

from kvactors.actors.frontends.server.answering import taken
from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.frontends.server.wire.together import all_of
from kvactors.core.errors import AdmissionFull

TOLD = {"role": "user", "content": "My cat is called Tom. Remember that."}
ASKED = {"role": "user", "content": "What is my cat called?"}
COUNTED = ("kvactors_tokens_total", "kvactors_misses_total")


def ask(client: Any, messages: list[Any], **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 30} | options
    return client.chat.completions.create(model="default", messages=messages, **options)


def told(client: Any, system: str) -> list[Any]:
    """A conversation in which something was told."""
    messages = [{"role": "system", "content": system}, TOLD]
    said = ask(client, messages).choices[0].message.content
    return [*messages, {"role": "assistant", "content": said}]


def test_a_conversation_that_is_resent_is_remembered(client: Any) -> None:
    messages = told(client, "You remember what you are told.")

    answer = ask(client, [*messages, ASKED])

    assert "Tom" in answer.choices[0].message.content
    usage = answer.usage
    assert usage.prompt_tokens_details.cached_tokens > 0.6 * usage.prompt_tokens
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_says_what_the_whole_answer_says(client: Any) -> None:
    messages = [*told(client, "You speak in streams."), ASKED]
    whole = ask(client, messages)

    chunks = list(ask(client, messages, stream=True, stream_options={"include_usage": True}))

    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].choices == []


def test_what_has_no_meaning_changes_nothing(client: Any) -> None:
    messages = told(client, "Today's date is 2026-11-22\nYou remember.")
    messages[0] = {"role": "system", "content": "Today's date is 2026-11-23\nYou remember."}
    messages[1] = {"role": "user", "content": [{"type": "text", "text": TOLD["content"]}]}
    messages[2]["content"] += "  "

    raw = client.chat.completions.with_raw_response.create(
        model="default", messages=[*messages, ASKED], temperature=0, max_tokens=30
    )

    assert raw.headers["x-kvactors-kept"] == "date"
    assert "x-kvactors-miss" not in raw.headers
    usage = raw.parse().usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) > 20


def test_an_answer_that_its_client_changed_is_a_miss(client: Any) -> None:
    *messages, answer = told(client, "You are changed.")
    changed = {"role": "assistant", "content": f"No: {answer['content']}"}

    raw = client.chat.completions.with_raw_response.create(
        model="default", messages=[*messages, changed, ASKED], max_tokens=5
    )

    assert "forked" in raw.headers["x-kvactors-reused"]
    assert raw.headers["x-kvactors-miss"].startswith("message 1, character 0: 'No: ")


def test_a_branch_says_where_it_differs_and_the_log_without_what_was_said(
    client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    messages = told(client, "You branch.")
    with caplog.at_level(logging.INFO, taken.__name__):
        ask(client, [*messages, ASKED])

        raw = client.chat.completions.with_raw_response.create(
            model="default",
            messages=[*messages, {"role": "user", "content": "What is my dog called?"}],
            max_tokens=5,
        )

    assert "forked" in raw.headers["x-kvactors-reused"]
    assert "'dog called' instead of 'cat called'" in raw.headers["x-kvactors-miss"]
    went_on, branched = caplog.messages
    assert "conversation goes on" in went_on
    assert "conversation differs" in branched
    assert raw.headers["x-kvactors-agent"] in branched
    assert "called" not in caplog.text


def counted(server: Server) -> dict[str, float]:
    """The lines of /metrics of tokens and of misses."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith(COUNTED)]
    return {name: float(value) for name, value in pairs}


def test_metrics_count_what_answers_say_and_who_leaves_what_is_known(
    client: Any, server: Server
) -> None:
    messages = told(client, "You count.")
    before = counted(server)
    asked = [*messages, ASKED], [*messages, {"role": "user", "content": "What is my dog called?"}]

    usages = [ask(client, said).usage for said in asked]

    after = counted(server)
    cached = sum(usage.prompt_tokens_details.cached_tokens for usage in usages)
    assert {name: after[name] - before[name] for name in after} == {
        'kvactors_tokens_total{kind="cached"}': cached,
        'kvactors_tokens_total{kind="computed"}': sum(u.prompt_tokens for u in usages) - cached,
        'kvactors_tokens_total{kind="answered"}': sum(u.completion_tokens for u in usages),
        "kvactors_misses_total": 1,
    }


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "hello"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0"),
        ({"messages": [TOLD], "temperature": -1}, "temperature"),
        ({"messages": [TOLD], "n": 1000}, "n"),
        ({"messages": [TOLD], "seed": 10**4000}, "seed"),
        ({"messages": [TOLD], "tools": [{"type": "function"}]}, "tools.0.function"),
        ({"messages": [TOLD], "response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_a_bad_request_names_the_field(client: Any, wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="default", **wrong)

    assert (caught.value.param or "").startswith(field)
    assert field in str(caught.value)


def test_an_unknown_model_is_told_which_one_there_is(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="default"):
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "?"}])


def test_several_answers_are_drawn_apart(client: Any) -> None:
    answer = ask(client, [TOLD], n=3, temperature=1.5, max_tokens=12)

    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.prompt_tokens < 40


def test_streamed_answers_come_at_once(client: Any) -> None:
    long = {"type": "string", "minLength": 20, "maxLength": 60}
    schema = {"type": "object", "properties": {"said": long}, "required": ["said"]}
    form = {"type": "json_schema", "json_schema": {"name": "long", "schema": schema}}
    options = {"n": 3, "temperature": 1.5, "max_tokens": 90, "response_format": form}
    texts, order, ends = ["", "", ""], list[int](), list[int]()

    for chunk in ask(client, [TOLD], stream=True, **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            order += [choice.index] if choice.delta.content else []
            ends += [choice.index] if choice.finish_reason else []

    assert order != sorted(order)
    assert all("said" in json.loads(text) for text in texts)
    assert sorted(ends) == [0, 1, 2]


def test_the_models_have_the_shape_of_both_packages(server: Server, client: Any) -> None:
    (model,) = client.models.list().data

    assert model.id == "default"
    assert client.models.retrieve("default").object == "model"


def test_the_first_of_several_works_that_fails_ends_the_others() -> None:
    ended = list[str]()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def fails() -> None:
        raise AdmissionFull("there is no room")

    with pytest.raises(AdmissionFull, match="no room"):
        asyncio.run(all_of([waits, waits, fails, waits]))
    assert len(ended) == 3


@pytest.mark.parametrize("given", [{"ignore_eos": True}, {"min_tokens": 40}, {"min_tokens": 99}])
def test_a_load_tool_gets_answers_of_the_length_that_it_asks_for(
    client: Any, given: dict[str, Any]
) -> None:
    free = ask(client, [TOLD], max_tokens=40)

    measured = ask(client, [TOLD], max_tokens=40, extra_body=given)
    text = client.completions.create(
        model="default", prompt="My cat is", max_tokens=40, extra_body=given
    )

    assert free.usage.completion_tokens < 40
    for answer in (measured, text):
        assert answer.usage.completion_tokens == 40
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.prompt_tokens_details.cached_tokens is not None
