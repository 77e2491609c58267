"""A conversation that ends with an answer: that is gone on with, and only what is new is told."""

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from puppets import Chat, Messages, call, opening, puppet_server, thinking

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.testing import PuppetModel

ASKED = [{"role": "user", "content": "Tell me a story about a cat and a dog, with their names."}]
HALF, WHOLE = 7, 24


def ask(client: Any, messages: list[Any], **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": WHOLE, "extra_body": {"ignore_eos": True}} | options
    return client.chat.completions.create(model="default", messages=messages, **options)


def named(system: str) -> list[Any]:
    """A conversation of its own."""
    return [{"role": "system", "content": system}, *ASKED]


def said(answer: Any) -> str:
    text: str = answer.choices[0].message.content
    return text


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_was_cut_goes_on_as_if_it_had_not_been(client: Any, stream: bool) -> None:
    messages = named(f"You go on, {stream}.")
    whole = ask(client, messages, extra_headers={"X-Kvactors-Agent": f"whole {stream}"})
    first = ask(client, messages, max_tokens=HALF)
    rest = WHOLE - HALF
    longer = [*messages, {"role": "assistant", "content": said(first)}]

    raw = client.chat.completions.with_raw_response.create(
        model="default",
        messages=longer,
        temperature=0,
        max_tokens=rest,
        stream=stream,
        extra_body={"ignore_eos": True},
    )

    answer = raw.parse()
    if stream:
        chunks = [chunk.choices[0] for chunk in answer if chunk.choices]
        more = "".join(chunk.delta.content or "" for chunk in chunks)
        reason = chunks[-1].finish_reason
    else:
        more, reason = said(answer), answer.choices[0].finish_reason
        details = answer.usage.prompt_tokens_details
        assert answer.usage.prompt_tokens - details.cached_tokens <= 1
        assert answer.usage.prompt_tokens == whole.usage.prompt_tokens + HALF
    assert first.choices[0].finish_reason == "length"
    assert said(first) + more == said(whole)
    assert reason == whole.choices[0].finish_reason
    assert raw.headers["x-kvactors-agent"] != f"whole {stream}"


def test_the_turn_behind_it_computes_what_is_new_alone(client: Any) -> None:
    messages = named("You go on, and then some.")
    first = said(ask(client, messages, max_tokens=HALF))
    more = said(ask(client, [*messages, {"role": "assistant", "content": first}]))
    whole = {"role": "assistant", "content": first + more}

    raw = client.chat.completions.with_raw_response.create(
        model="default", messages=[*messages, whole, *ASKED], temperature=0, max_tokens=HALF
    )

    assert "x-kvactors-miss" not in raw.headers
    usage = raw.parse().usage
    assert usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens < 40


def test_the_beginning_of_an_answer_that_nobody_gave_is_gone_on_with(claude: Any) -> None:
    drawn: Any = {"extra_body": {"temperature": 0, "ignore_eos": True}}
    begun = [*ASKED, {"role": "assistant", "content": "The cat's name is "}]

    answer = claude.messages.create(model="default", messages=begun, max_tokens=HALF, **drawn)
    text = answer.content[0].text
    whole = {"role": "assistant", "content": "The cat's name is " + text}
    then = claude.messages.create(
        model="default", messages=[*ASKED, whole, *ASKED], max_tokens=HALF, **drawn
    )

    assert text
    assert not text.startswith("The cat's")
    asked = answer.usage.input_tokens + answer.usage.cache_read_input_tokens
    assert then.usage.cache_read_input_tokens >= asked + answer.usage.output_tokens - 2


def test_a_response_goes_on_with_what_it_is_given_last(client: Any) -> None:
    begun = [*ASKED, {"role": "assistant", "content": "Once upon a time"}]

    response = client.responses.create(
        model="default",
        input=begun,
        max_output_tokens=HALF,
        temperature=0,
        extra_body={"ignore_eos": True},
    )

    assert response.output_text
    assert not response.output_text.startswith("Once")


@pytest.mark.parametrize("kind", [Chat, Messages])
@pytest.mark.parametrize("stream", [False, True])
def test_blanks_between_what_is_known_and_what_is_new_are_told_once(
    tmp_path: Path, kind: Any, stream: bool
) -> None:
    asks = kind(stream)
    with puppet_server(
        PuppetModel([" and more", "on.", "end"], tokenizer=thinking), tmp_path
    ) as server:
        first = asks(server, [*ASKED, {"role": "assistant", "content": "Well "}])
        second = asks(server, [*ASKED, {"role": "assistant", "content": "Well  and more"}])
        known = [*ASKED, {"role": "assistant", "content": "Well  and moreon."}, *ASKED]
        third = asks(server, known)

    assert (first.text, second.text) == (" and more", "on.")
    assert third.cached > second.prompt


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_thought_before_it_stays_known_and_is_not_told_again(
    tmp_path: Path, stream: bool
) -> None:
    asks = Chat(stream)
    puppet = PuppetModel(["<think>Is it?</think>It is", " so.", "Yes."], tokenizer=thinking)
    with puppet_server(puppet, tmp_path) as server:
        first = asks(server, ASKED, max_tokens=12)
        second = asks(server, [*ASKED, {"role": "assistant", "content": first.text}])
        whole = {"role": "assistant", "content": first.text + second.text}
        third = asks(server, [*ASKED, whole, *ASKED])

    assert "It is".startswith(first.text)
    assert (second.text, second.thought) == (" so.", "")
    assert second.cached >= first.prompt + first.answered - 1
    assert third.cached >= second.prompt + second.answered - 1


def test_what_is_given_of_an_answer_is_no_thought_though_the_template_begins_one(
    tmp_path: Path,
) -> None:
    asks = Chat(stream=True)
    with puppet_server(PuppetModel([" so.", "Yes."], tokenizer=opening), tmp_path) as server:
        first = asks(server, [*ASKED, {"role": "assistant", "content": "It is"}])
        whole = {"role": "assistant", "content": "It is" + first.text}
        second = asks(server, [*ASKED, whole, *ASKED])

    assert (first.text, first.thought) == (" so.", "")
    assert second.cached >= first.prompt + first.answered - 1


def test_an_answer_that_its_client_left_goes_on_with_its_thoughts(tmp_path: Path) -> None:
    puppet = PuppetModel(
        ["<think>Is it?</think>" + "It is so. " * 400, "The end."], tokenizer=thinking
    )
    with puppet_server(puppet, tmp_path) as server:
        heard = ""
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            asked: Any = {"model": "any", "messages": ASKED, "stream": True, "max_tokens": 4000}
            with client.chat.completions.create(**asked) as stream:
                for chunk in stream:
                    heard += chunk.choices[0].delta.content or ""
                    if len(heard) > 20:
                        break
        known = server_text(server)
        begun = {"role": "assistant", "content": heard}
        more = Chat(stream=False)(server, [*ASKED, begun], tools=())
        after = server_text(server)

    assert known.startswith(f"<think>Is it?</think>{heard}")
    assert after == f"<think>Is it?</think>{heard.strip()}The end."
    assert (more.text, more.thought) == ("The end.", "")
    assert more.cached >= more.prompt - 2


def server_text(server: Server) -> str:
    """What the only agent of a server has answered, when its turn has ended."""
    system: AgentSystem = server.service.system  # type: ignore[assignment]
    assert system.wait_idle(60)
    (agent,) = system.agents()
    return agent.transcript().turns[-1].text


@pytest.mark.parametrize(
    ("last", "flag", "rule"),
    [
        ({"role": "user", "content": "x"}, True, "user does not go with"),
        ({"role": "assistant", "content": "x"}, False, "assistant does not go with"),
        ({"role": "assistant", "content": "x"}, "perhaps", "continue_final_message"),
    ],
)
def test_what_vllm_calls_it_must_be_true(server: Server, last: Any, flag: Any, rule: str) -> None:
    asked = {"messages": [*ASKED, last], "continue_final_message": flag, "max_tokens": 2}

    answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=60)

    assert answer.status_code == 400
    assert rule in answer.text


def test_calls_without_results_are_not_gone_on_with(server: Server) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    last = {"role": "assistant", "content": "", "tool_calls": [call]}

    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json={"messages": [*ASKED, last]}, timeout=60
    )

    assert answer.status_code == 400
    assert "nothing to answer" in answer.text


def test_an_answer_of_nothing_is_no_beginning(server: Server) -> None:
    asked = {"messages": [*ASKED, {"role": "assistant", "content": ""}], "max_tokens": 2}

    answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=60)

    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("known", ["Let me look.", "", "Hi"])
def test_a_call_that_its_client_has_removed_is_gone(tmp_path: Path, known: str) -> None:
    # What was said may stand within a thought and within the call, too.
    called = f"<think>{known} there</think>{known}{call('read', path=f'{known} there')}"
    puppet = PuppetModel([called, " And so on.", "Yes."], tokenizer=thinking)
    with puppet_server(puppet, tmp_path) as server:
        first = Chat(stream=False)(server, ASKED)
        more = Chat(stream=False)(server, [*ASKED, {"role": "assistant", "content": known}])

    assert first.calls
    assert (more.text.strip(), more.calls, more.reason) == ("And so on.", [], "stop")


@pytest.mark.parametrize("blanks", ["\n\n", "   \n", ""])
def test_other_blanks_at_its_end_lose_nothing_of_what_follows(tmp_path: Path, blanks: str) -> None:
    puppet = PuppetModel(["Well", " and more.", "end"], tokenizer=thinking)
    with puppet_server(puppet, tmp_path) as server:
        Chat(stream=False)(server, ASKED)
        said = {"role": "assistant", "content": f"Well{blanks}"}
        more = Chat(stream=True)(server, [*ASKED, said])

    assert f"Well{blanks}{more.text}".split() == ["Well", "and", "more."]


def test_an_answer_that_had_ended_stays_and_a_fork_goes_on_with_it(tmp_path: Path) -> None:
    asks = Chat(stream=False)
    puppet = PuppetModel(["<think>Is it?</think>It is", " so.", "Yes."], tokenizer=thinking)
    with puppet_server(puppet, tmp_path) as server:
        first = asks(server, ASKED)
        asks(server, [*ASKED, first.message])
        behind = asks(server, [*ASKED, first.message, *ASKED])
        system: AgentSystem = server.service.system  # type: ignore[assignment]
        said = sorted(agent.transcript().turns[1].text for agent in system.agents())

    assert behind.cached >= first.prompt + first.answered - 1
    assert said == ["<think>Is it?</think>It is", "<think>Is it?</think>It is so."]


def test_a_form_that_is_whole_is_not_gone_on_with(server: Server) -> None:
    said = {"role": "assistant", "content": '{"a": true}'}
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    form = {"name": "f", "schema": {**schema, "additionalProperties": False}}
    asked = {
        "messages": [*ASKED, said],
        "response_format": {"type": "json_schema", "json_schema": form},
    }

    answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=60)

    assert answer.status_code == 400, answer.text
    assert "whole" in answer.text
