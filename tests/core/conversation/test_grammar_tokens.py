"""Grammars where decoding drops the space that an answer begins with: the shipped tokenizer."""

import pytest
from small_tokenizers import ASCII, Letters

from kvactors import Grammar
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.grammar_tokens import GrammarTokens
from kvactors.core.model.load import load_model
from kvactors.core.model.options import DEFAULT_MODEL, ModelOptions
from kvactors.core.schedule.guide import Guide


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return load_model(DEFAULT_MODEL, ModelOptions()).chat


@pytest.fixture(scope="module")
def tokens(chat: ChatFormat) -> GrammarTokens:
    return chat.grammar_tokens(len(chat.tokenizer.get_vocab()))


def takes(guide: Guide, ids: list[int]) -> bool:
    """Whether an answer may be made of these tokens, and end there."""
    for token in ids:
        if not guide.allowed()[token] or guide.take(token) != token:
            return False
    return guide.way == ()


@pytest.mark.parametrize(
    ("grammar", "answer"),
    [
        (Grammar.regex("yes|no"), "yes"),
        (Grammar.lark('start: "yes" | "no"'), "no"),
        (Grammar.lark('%llguidance {}\nstart: "yes" | "no"'), "no"),
        (Grammar.json_object(), '{"a": 1}'),
    ],
    ids=["regex", "lark", "lark with options", "json"],
)
def test_an_answer_may_begin_with_the_tokens_that_the_model_says(
    chat: ChatFormat, tokens: GrammarTokens, grammar: Grammar, answer: str
) -> None:
    said = chat.encode_answer(answer)

    assert said != chat.encode_rest(answer), "the model begins as in the middle of a line"
    assert takes(Guide(tokens, grammar, 60), said)
    assert takes(Guide(tokens, grammar, 60), chat.encode_rest(answer))
    assert not takes(Guide(tokens, grammar, 60), chat.encode_rest(f"  {answer}"))


def test_what_is_shown_begins_with_a_space_where_the_grammar_says_so(
    chat: ChatFormat, tokens: GrammarTokens
) -> None:
    assert chat.decode(Guide(tokens, Grammar.regex(" yes"), 60).way) == " yes"


def test_where_a_text_may_begin_with_a_space_it_may_begin_without(
    chat: ChatFormat, tokens: GrammarTokens
) -> None:
    for grammar in (Grammar.regex("(?s:.*)"), Grammar.regex(r"\s*yes")):
        assert takes(Guide(tokens, grammar, 60), chat.encode_rest("yes"))
        assert takes(Guide(tokens, grammar, 60), chat.encode_answer("yes"))
    assert Guide(tokens, Grammar.regex("(?s:.*)"), 60).way == ()


def test_a_tokenizer_without_a_vocabulary_to_show_says_what_its_ids_decode_to() -> None:
    tokens = ChatFormat(Letters(ASCII)).grammar_tokens(len(ASCII))

    assert Guide(tokens, Grammar.regex("yes"), 60).way == tuple(b"yes")
