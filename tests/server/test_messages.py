"""Messages through the anthropic package: true usage, blocks in order, errors in its shape."""

from typing import Any

import anthropic
import pytest

SYSTEM = "You remember what you are told, word for word, and answer in one sentence."
TOLD = {"role": "user", "content": "My cat is called Tom. Remember that."}
GREEDY = {"temperature": 0}
ASKED = {"role": "user", "content": [{"type": "text", "text": "What is my cat called?"}]}


def ask(claude: Any, messages: list[Any], **options: Any) -> Any:
    options = {"max_tokens": 30, "system": SYSTEM, "extra_body": GREEDY} | options
    return claude.messages.create(model="default", messages=messages, **options)


def told(claude: Any, system: str) -> list[Any]:
    answer = ask(claude, [TOLD], system=system)
    return [TOLD, {"role": "assistant", "content": answer.content}]


def tokens_of(claude: Any, *blocks: dict[str, Any]) -> int:
    """Those of a conversation that is one message of the user."""
    messages = [{"role": "user", "content": blocks}]
    return int(claude.messages.count_tokens(model="default", messages=messages).input_tokens)


def test_computed_and_cached_tokens_are_told_apart(claude: Any) -> None:
    messages = [*told(claude, SYSTEM), ASKED]

    answer = ask(claude, messages)

    assert "Tom" in answer.content[0].text
    assert answer.stop_reason == "end_turn"
    assert answer.usage.cache_read_input_tokens > 2 * answer.usage.input_tokens > 0
    assert answer.usage.cache_creation_input_tokens == 0


def test_a_stream_begins_with_true_numbers_and_says_the_same(claude: Any) -> None:
    system = "You speak in streams."
    messages = [*told(claude, system), ASKED]
    whole = ask(claude, messages, system=system)

    with claude.messages.stream(
        model="default", messages=messages, max_tokens=30, system=system, extra_body=GREEDY
    ) as stream:
        begun = next(event for event in stream if event.type == "message_start")
        final = stream.get_final_message()

    assert begun.message.usage.cache_read_input_tokens > 0
    assert final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == "end_turn"


def test_a_block_of_a_system_prompt_may_be_marked_for_caching(claude: Any) -> None:
    system = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]

    assert ask(claude, [TOLD], system=system).content[0].text


def test_a_stop_sequence_is_named(claude: Any) -> None:
    messages = [*told(claude, SYSTEM), ASKED]

    answer = ask(claude, messages, stop_sequences=["called"])

    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "called")
    assert "called" not in answer.content[0].text


def test_tokens_are_counted_as_they_are_used(claude: Any) -> None:
    counted = claude.messages.count_tokens(
        model="default", messages=[TOLD], system="A system prompt of its own, never said before."
    )

    usage = ask(claude, [TOLD], system="A system prompt of its own, never said before.").usage

    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [TOLD], "max_tokens": 0}, "max_tokens"),
        ({"messages": [TOLD], "tool_choice": {"type": "whatever"}}, "tool_choice.type"),
    ],
)
def test_a_bad_request_names_the_field(claude: Any, wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(claude, **wrong)

    body = caught.value.body
    assert isinstance(body, dict)
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert field in body["error"]["message"]


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "Tom is a cat."},
                "title": "Cats",
                "context": "Of pets.",
            },
            "Cats\n\nOf pets.\n\nTom is a cat.",
        ),
        (
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "text", "text": "Tom"}]},
            },
            "Tom",
        ),
        (
            {
                "type": "search_result",
                "source": "https://cats.example",
                "title": "Cats",
                "content": [{"type": "text", "text": "Tom is a cat."}],
            },
            "Cats\n\nhttps://cats.example\n\nTom is a cat.",
        ),
    ],
)
@pytest.mark.parametrize("in_a_result", [False, True])
def test_a_document_is_read_as_its_text(
    claude: Any, block: dict[str, Any], says: str, *, in_a_result: bool
) -> None:
    def counted(*blocks: dict[str, Any]) -> int:
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": blocks}
        return tokens_of(claude, *([result] if in_a_result else blocks))

    text, behind = {"type": "text", "text": says}, {"type": "text", "text": "Who is Tom?"}
    plain = f"{says}\n\nWho is Tom?"

    assert counted(block) == counted(text)
    assert counted(block, behind) == counted({"type": "text", "text": plain})


def test_an_empty_text_beside_a_result_is_no_message(claude: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}

    assert tokens_of(claude, result, {"type": "text", "text": ""}) == tokens_of(claude, result)


def test_a_document_without_a_text_is_refused(claude: Any) -> None:
    block = {"type": "document", "source": {"type": "text", "media_type": "text/plain"}}

    with pytest.raises(anthropic.BadRequestError, match=r"source\.data: a text is needed"):
        ask(claude, [{"role": "user", "content": [block]}])


def test_citations_are_named_as_what_is_not_there(claude: Any) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Tom is a cat."}
    block = {"type": "document", "source": source, "citations": {"enabled": True}}

    heard = claude.messages.with_raw_response.create(
        model="default", max_tokens=4, messages=[{"role": "user", "content": [block]}]
    )

    assert heard.headers["x-kvactors-ignored"] == "messages: citations"


def test_a_document_that_is_no_text_is_refused_by_its_kind(claude: Any) -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    asked = [{"role": "user", "content": [{"type": "document", "source": source}]}]

    with pytest.raises(anthropic.BadRequestError, match=r"content\.0\.source\.type.*base64"):
        ask(claude, asked)
