"""Calls and their results in a transcript: where they stand, and which call a result is of."""

from collections.abc import Callable
from typing import Any

import pytest
from call_forms import channels, results_within, talk, tokenizer_with
from small_tokenizers import chat_format

from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.tool_format import Made, called_at
from kvactors.core.conversation.transcript import Transcript

CALLS = "<|channel|>commentary to=functions.read <|constrain|>json<|message|>{}"


def test_results_stand_within_the_answer_where_a_call_ends_it_by_what_they_begin_with() -> None:
    chat = ChatFormat(results_within())
    transcript = Transcript(chat, "t", "Be kind.")
    calls = '<|tool_call>call:read{path:<|"|>a<|"|>}<tool_call|>' + (
        '<|tool_call>call:edit{path:<|"|>a<|"|>}<tool_call|><|tool_response>'
    )
    prompt = transcript.render("user", "q", answer=True)
    transcript.extend([prompt, transcript.answer(chat.encode(calls), "stop")])
    transcript.extend([transcript.render("tool", "one", answer=False)])
    transcript.extend([transcript.render("tool", "two", answer=True)])
    transcript.extend([transcript.answer(chat.encode("So.<turn|>"), "stop")])

    ids = [*transcript.token_ids, *transcript.render("user", "so", answer=True).token_ids]
    assert chat.decode(ids) == (
        f"<|turn>system\nBe kind.<turn|>\n<|turn>user\nq<turn|>\n<|turn>model\n{calls}"
        "response:read{one}<tool_response|><|tool_response>response:edit{two}<tool_response|>"
        "So.<turn|>\n<|turn>user\nso<turn|>\n<|turn>model\n"
    )


@pytest.mark.parametrize(
    ("said", "ids"),
    [
        ("<|tool_call>call:read{}<tool_call|>", ["000000000"]),
        ('<|tool_call>\n{"name": "read", "arguments": {}}', ["000000000"]),
        ('<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>', ["000000000"]),
        (f"{CALLS}<|call|>", ["000000000"]),
        ('[TOOL_CALLS]read[ARGS]{"x": "[ARGS]"}', ["000000000"]),
        (
            "[TOOL_CALLS]read[CALL_ID]abc[ARGS]{}[TOOL_CALLS]read[CALL_ID]def[ARGS]{}",
            ["abc", "def"],
        ),
        ('[TOOL_CALLS][{"name": "read", "arguments": {"x": {}}, "id": "abc"}]', ["abc"]),
        ('[TOOL_CALLS]\n{"name": "read", "arguments": {"x": 1}}\n', ["000000000"]),
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.read:0"
            "<|tool_call_argument_begin|>{}<|tool_call_end|>",
            ["functions.read:0"],
        ),
    ],
)
def test_a_call_is_found_in_what_was_said(said: str, ids: list[str]) -> None:
    assert [called_at(said, place) for place in range(len(ids))] == [Made("read", i) for i in ids]
    assert called_at(said, 9) == Made("read", ids[-1])
    assert called_at("words", 0) == Made("tool")


GEMMA_CALL = '<|tool_call>call:read{path:<|"|>a<|"|>}<tool_call|>'
RESULT = "response:read{so}<tool_response|>"


@pytest.mark.parametrize(
    ("said", "between"),
    [
        ("<|tool_response>", ""),
        ("", "<|tool_response>"),
        ("<turn|>", "\n<|turn>model\n<|tool_response>"),
        ("Words.", "<turn|>\n<|turn>model\n<|tool_response>"),
    ],
)
def test_a_result_stands_in_a_turn_of_the_model_however_the_call_ended(
    said: str, between: str
) -> None:
    chat = ChatFormat(results_within())
    transcript = talk(chat, ("user", "q", f"{GEMMA_CALL}{said}"), finish="length")

    ids = [*transcript.token_ids, *transcript.render("tool", "so", answer=True).token_ids]
    assert chat.decode(ids).endswith(f"<|turn>model\n{GEMMA_CALL}{said}{between}{RESULT}")


def test_who_is_interrupted_behind_a_call_ends_the_turn() -> None:
    chat = ChatFormat(results_within())
    transcript = talk(chat, ("user", "q", f"{GEMMA_CALL}<|tool_response>"))

    ids = transcript.render("user", "so", answer=True).token_ids
    assert chat.decode(ids) == "<turn|>\n<|turn>user\nso<turn|>\n<|turn>model\n"


@pytest.mark.parametrize(
    ("tokenizer", "call", "end"),
    [(channels, CALLS, "<|call|>"), (results_within, GEMMA_CALL, "<|tool_response>")],
    ids=["headers", "within"],
)
def test_a_call_that_is_known_as_text_ends_as_a_call(
    tokenizer: Callable[[], Any], call: str, end: str
) -> None:
    chat = ChatFormat(tokenizer())
    said, given = talk(chat, ("user", "q", f"{call}{end}")), Transcript(chat, "t", "Be kind.")
    given.extend([given.render("user", "q", answer=True), given.given_answer(call)])

    assert given.token_ids == said.token_ids
    other = Transcript(chat, "other", "Be kind.")
    record = other.extend(said.turns)
    assert Transcript.restore(chat, "t", [record]).token_ids == said.token_ids


@pytest.mark.parametrize("tokenizer", [channels, results_within], ids=["headers", "within"])
def test_a_result_that_nothing_stands_before_is_told_by_the_user(
    tokenizer: Callable[[], Any],
) -> None:
    transcript = Transcript(ChatFormat(tokenizer()), "t", "Be kind.")

    assert "<tool_response>\nso\n</tool_response>" in transcript.rendering(
        "tool", "so", answer=True
    )


def test_results_go_to_a_template_without_their_role_as_words_of_the_user() -> None:
    within, plain = ChatFormat(results_within()), chat_format("default", "chatml")
    transcript = talk(
        within, ("user", "q", f"{GEMMA_CALL}<|tool_response>"), ("tool", "so", "Yes.")
    )
    untold = tokenizer_with(
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('none') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
        ["</s>"],
        ["</s>"],
    )

    other = transcript.under(ChatFormat(untold), "other")
    assert "[user]<tool_response>\nso\n</tool_response></s>[assistant]Yes." in other.chat.decode(
        other.token_ids
    )
    assert other.under(within, "t").token_ids == transcript.token_ids
    assert transcript.under(plain, "plain").turns
