"""How much a model is to think, and what else its chat template is told, as clients say it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from call_forms import channels, hybrid, tokenizer_with
from puppets import puppet_server

from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.testing import PuppetModel

WAIT = 60
ASKED = {"messages": [{"role": "user", "content": "Hi"}]}
RESPONSE = {"input": "Hi"}
MESSAGE = {**ASKED, "max_tokens": 50}
NO_THOUGHT = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
KWARGS = {"chat_template_kwargs": {"enable_thinking": False}}
OFF: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", {**ASKED, "reasoning_effort": "none"}),
    ("chat/completions", {**ASKED, "reasoning": {"effort": "none"}}),
    ("chat/completions", {**ASKED, "reasoning": {"enabled": False}}),
    ("chat/completions", {**ASKED, "reasoning": {"max_tokens": 0}}),
    ("chat/completions", {**ASKED, **KWARGS}),
    ("responses", {**RESPONSE, "reasoning": {"effort": "none"}}),
    ("responses", {**RESPONSE, **KWARGS}),
    ("messages", {**MESSAGE, "thinking": {"type": "disabled"}}),
    ("messages", {**MESSAGE, **KWARGS}),
]


@contextmanager
def stage(
    tokenizer: Any, store: Path | None = None, says: str = "Yes."
) -> Iterator[tuple[Server, list[str]]]:
    heard = list[str]()

    def script(said: str) -> str:
        heard.append(said)
        return says

    with puppet_server(PuppetModel(script, tokenizer=tokenizer), store) as server:
        yield server, heard


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{path}", json={"model": "any", **body}, timeout=WAIT)


@pytest.mark.parametrize(("path", "body"), OFF)
def test_a_model_is_asked_without_a_thought_where_its_client_says_so(
    path: str, body: dict[str, Any]
) -> None:
    with stage(hybrid) as (server, heard):
        answer = post(server, path, body)

    assert answer.status_code == 200, answer.text
    assert heard[-1].endswith(NO_THOUGHT)
    assert "x-kvactors-ignored" not in answer.headers


def test_the_next_turn_may_be_asked_otherwise_and_goes_on() -> None:
    with stage(hybrid) as (server, heard):
        first = post(server, "chat/completions", {**ASKED, "reasoning_effort": "none"})
        told = [*ASKED["messages"], first.json()["choices"][0]["message"]]
        more = {"messages": [*told, {"role": "user", "content": "And?"}]}
        second = post(server, "chat/completions", more)
        again = post(server, "chat/completions", {**more, **KWARGS})

    assert heard[1].startswith(f"{heard[0]}Yes.<|im_end|>\n<|im_start|>user\nAnd?")
    assert heard[1].endswith("<|im_start|>assistant\n")
    assert heard[2] == heard[1] + NO_THOUGHT.removeprefix("<|im_start|>assistant\n")
    assert first.headers["x-kvactors-agent"] == second.headers["x-kvactors-agent"]
    cached = again.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= second.json()["usage"]["prompt_tokens"] - 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {**ASKED, "reasoning_effort": "high"}),
        ("chat/completions", {**ASKED, "reasoning_effort": "xhigh"}),
        ("responses", {**RESPONSE, "reasoning": {"effort": "high"}}),
        ("messages", {**MESSAGE, "output_config": {"effort": "max"}}),
    ],
)
def test_an_effort_stands_where_the_template_writes_it(path: str, body: dict[str, Any]) -> None:
    with stage(channels) as (server, heard):
        answer = post(server, path, body)

    assert answer.status_code == 200, answer.text
    assert "Reasoning: high" in heard[-1]
    assert "x-kvactors-ignored" not in answer.headers


def test_a_conversation_with_another_beginning_is_another_one(tmp_path: Path) -> None:
    def ask(server: Server, body: dict[str, Any]) -> str:
        answer = post(server, "chat/completions", body)
        assert answer.status_code == 200, answer.text
        return answer.headers["x-kvactors-reused"]

    with stage(channels, tmp_path) as (server, heard):
        ask(server, ASKED)
        told = [*ASKED["messages"], {"role": "assistant", "content": "Yes."}]
        more = {"messages": [*told, {"role": "user", "content": "And?"}]}
        usual = ask(server, more)
        high = ask(server, {**more, "reasoning_effort": "high"})
        same = ask(server, {**more, "reasoning_effort": "medium"})
        # Behind what is known the beginning stays.
        again = ask(server, {**more, "reasoning_effort": "high"})

    assert usual.endswith("goes on")
    assert high.endswith("new")
    assert same.endswith("again")
    assert again.endswith("again")
    assert ["Reasoning: high" in each for each in heard] == [False, False, True, False, True]


@pytest.mark.parametrize(
    ("tokenizer", "path", "body", "ignored"),
    [
        (hybrid, "chat/completions", {**ASKED, "reasoning_effort": "low"}, "reasoning_effort"),
        (hybrid, "responses", {**RESPONSE, "reasoning": {"effort": "low"}}, "reasoning.effort"),
        (
            hybrid,
            "messages",
            {**MESSAGE, "output_config": {"effort": "low"}},
            "output_config.effort",
        ),
        (channels, "messages", {**MESSAGE, "thinking": {"type": "enabled"}}, "thinking"),
        (channels, "chat/completions", {**ASKED, "reasoning_effort": "odd"}, "reasoning_effort"),
        (channels, "chat/completions", {**ASKED, **KWARGS}, "chat_template_kwargs.enable_thinking"),
    ],
)
def test_what_the_template_knows_nothing_of_is_named(
    tokenizer: Any, path: str, body: dict[str, Any], ignored: str
) -> None:
    with stage(tokenizer) as (server, _):
        answer = post(server, path, body)

    assert answer.status_code == 200, answer.text
    assert answer.headers["x-kvactors-ignored"] == ignored


@pytest.mark.parametrize(
    ("told", "rule"),
    [
        ({"chat_template": "{{ 1 }}"}, "chat_template is not"),
        ({"tokenize": True}, "tokenize is not"),
        ({"mood": "wild"}, "mood"),
        ({"mood": "x" * 20_000}, "16384"),
        ([1], "dict"),
    ],
)
def test_what_no_template_may_be_told_is_refused(told: Any, rule: str) -> None:
    with stage(hybrid) as (server, heard):
        answer = post(server, "chat/completions", {**ASKED, "chat_template_kwargs": told})

    assert answer.status_code == 400
    assert "chat_template_kwargs" in answer.text
    assert rule in answer.text
    assert not heard


def test_an_agent_of_ones_own_is_told_too() -> None:
    with stage(hybrid) as (server, heard), httpx.Client(base_url=server.url) as http:
        http.post("/agents", json={"id": "a"}).raise_for_status()
        turn = {"prompt": "Hi", "template_kwargs": {"enable_thinking": False}}
        http.post("/agents/a/turns", json=turn).raise_for_status()
        raw = http.post("/agents/a/turns", json={**turn, "prompt": [65]})

    assert heard[-1].endswith(NO_THOUGHT)
    assert raw.status_code == 400
    assert "token ids" in raw.text


def test_tokens_are_counted_as_they_are_asked() -> None:
    with stage(hybrid) as (server, heard):
        for told in ({"thinking": {"type": "disabled"}}, {}):
            counted = post(server, "messages/count_tokens", {**ASKED, **told}).json()
            used = post(server, "messages", {**MESSAGE, **told}).json()["usage"]
            total = used["input_tokens"] + used["cache_read_input_tokens"]
            assert counted == {"input_tokens": total}

    assert heard[0] != heard[1]


@pytest.mark.parametrize(
    ("more", "ignored"),
    [({}, None), ({"reasoning_effort": "high"}, "reasoning_effort")],
)
def test_what_has_a_form_does_not_stand_in_a_thought(more: Any, ignored: str | None) -> None:
    # As DeepSeek's: it thinks where it is told to, or closes the thought.
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{{ '<think>' if thinking else '</think>' }}{% endif %}"
    )
    marks = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    form = {"response_format": {"type": "json_object"}}
    body = {**ASKED, "max_tokens": 40, **more}

    def tokenizer() -> Any:
        return tokenizer_with(template, marks, ["<|im_end|>"])

    with stage(tokenizer, says='{"a": 1}') as (server, heard):
        formed = post(server, "chat/completions", {**body, **form})
        post(server, "chat/completions", body)

    assert formed.status_code == 200, formed.text
    assert heard[0].endswith("</think>")
    assert heard[1].endswith("<think>") == bool(more)
    named = formed.headers.get("x-kvactors-ignored", "")
    assert named == (ignored or "")
