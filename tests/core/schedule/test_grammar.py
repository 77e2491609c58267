"""A grammar as a value, and a guide that keeps an answer to it: no model."""

import builtins
import json
import pickle
import random
from collections.abc import Mapping
from typing import Any

import pytest
from seeded import bug, seeded

from kvactors import Grammar, InvalidGrammar, InvalidSampling, Sampling
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.grammar_tokens import GrammarTokens
from kvactors.core.schedule.guide import Guide
from kvactors.core.testing.models import PlainTokenizer

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
# One token opens what takes sixty to close.
TRAP = r"(b[0-9]{60}|a)*!"


@pytest.fixture(scope="module")
def tokens() -> GrammarTokens:
    """Each character is a token, 0 ends."""
    return ChatFormat(PlainTokenizer()).grammar_tokens(128)


def say(guide: Guide, wanted: str) -> str:
    """What a guide takes of the characters that are drawn, as far as it allows them."""
    taken = ""
    for character in wanted:
        if guide.complete or not guide.left:
            break
        drawn = ord(character)
        if not guide.allowed()[drawn]:
            drawn = next(token for token, free in enumerate(guide.allowed()) if free)
        taken += chr(guide.take(drawn))
    return taken


class Counted:
    """Tokens of somebody's, and how often they were asked for a text's."""

    def __init__(self, tokens: GrammarTokens) -> None:
        self._tokens = tokens
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokens, name)

    def encode(self, text: bytes) -> list[int]:
        self.asked += 1
        return self._tokens.encode(text)


def test_what_no_token_says_is_refused_without_a_long_search(tokens: GrammarTokens) -> None:
    counted = Counted(tokens)

    with pytest.raises(InvalidGrammar, match="and the model's tokens can say"):
        Guide(counted, Grammar.json_schema({"const": "a \u2603"}), 4000)
    assert 0 < counted.asked < 1000


@pytest.mark.parametrize(
    ("item", "count", "most"),
    [
        ({"type": "integer"}, 50, 150),
        ({"type": "number", "minimum": 1}, 50, 150),
        ({"type": "string"}, 50, 200),
        ({"type": "string", "minLength": 20}, 10, 240),
        ({}, 40, 160),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 5}, 10, 170),
        ({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, 30, 300),
    ],
)
def test_a_list_of_many_items_may_be_as_short_as_its_items_are(
    tokens: GrammarTokens, item: dict[str, Any], count: int, most: int
) -> None:
    listed = Grammar.json_schema({"type": "array", "items": item, "minItems": count})
    guide = Guide(tokens, listed, most)

    said = say(guide, "".join(random.Random(count).choices('[{"x7: ,]}', k=most)))

    assert len(json.loads(said)) >= count


def test_a_list_that_is_too_long_for_any_answer_is_refused_before_long(
    tokens: GrammarTokens,
) -> None:
    counted = Counted(tokens)
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 5000}

    with pytest.raises(InvalidGrammar, match="no answer of at most 4096 tokens"):
        Guide(counted, Grammar.json_schema(numbers), 20_000)
    assert counted.asked < 12_000


def test_a_grammar_is_a_value() -> None:
    one, other = Grammar.json_schema(PERSON), Grammar.json_schema(json.dumps(PERSON))

    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one
    assert Grammar.regex("a") != Grammar.lark('start: "a"')
    assert pickle.loads(pickle.dumps(Sampling(grammar=one))) == Sampling(grammar=other)


@pytest.mark.parametrize(
    ("make", "given", "says"),
    [
        (Grammar.regex, "a(b", "unclosed group"),
        (Grammar.regex, "a(?=b)", "look-ahead"),
        (Grammar.regex, 7, "text"),
        (Grammar.lark, "start: nothing\n", "nothing"),
        (Grammar.lark, "start foo", "1"),
        (Grammar.json_schema, {"type": "strin"}, "strin"),
        (Grammar.json_schema, {"type": "array", "uniqueItems": True}, "uniqueItems"),
        (Grammar.json_schema, {"type": "integer", "minimum": 5, "maximum": 2}, "minimum"),
        (Grammar.json_schema, {"const": {1, 2}}, "JSON values"),
        (Grammar.json_schema, "{", "JSON"),
    ],
)
def test_what_is_no_grammar_is_refused_with_what_is_wrong(make: Any, given: Any, says: str) -> None:
    with pytest.raises(InvalidGrammar, match=says):
        make(given)


@bug(builtins, "__import__")
def llguidance_is_not_installed(true: Any) -> Any:
    def look_for(name: str, *args: Any, **options: Any) -> Any:
        if name == "llguidance":
            raise ImportError(name)
        return true(name, *args, **options)

    return look_for


def test_without_the_extra_the_error_says_how_to_install_it() -> None:
    with (
        seeded(llguidance_is_not_installed),
        pytest.raises(InvalidGrammar, match=r"pip install 'kvactors\[grammar\]'"),
    ):
        Grammar.regex("never seen before")


def test_a_grammar_and_choices_exclude_each_other() -> None:
    with pytest.raises(InvalidSampling, match="not both"):
        Sampling(grammar=Grammar.regex("a"), choices=("a",))
    with pytest.raises(InvalidSampling, match="must be a Grammar"):
        Sampling(grammar="a")  # type: ignore[arg-type]


def test_an_answer_that_cannot_be_short_enough_is_refused_with_the_numbers(
    tokens: GrammarTokens,
) -> None:
    with pytest.raises(InvalidGrammar, match="takes 8 tokens, more than max_tokens 7"):
        Guide(tokens, Grammar.regex("[a-z]{8,}"), 7)


def test_a_tokenizer_without_an_end_token_is_refused() -> None:
    endless = PlainTokenizer()
    endless.eos_token_ids = set()

    with pytest.raises(InvalidGrammar, match="end token"):
        ChatFormat(endless).grammar_tokens(128)


@pytest.mark.parametrize("most", [5, 24, 66, 90])
def test_a_guide_that_looked_ahead_stands_where_it_was(tokens: GrammarTokens, most: int) -> None:
    rng = random.Random(most)
    plain, looking = (Guide(tokens, Grammar.regex(TRAP), most) for _ in range(2))
    said: list[int] = []
    looked = 0
    while plain.left and not plain.complete:
        draft = [rng.choice(b"aab1111!") for _ in range(rng.randrange(7))]
        count = looking.takes(draft)
        ahead = Guide(tokens, Grammar.regex(TRAP), most)
        ahead.follow(said)
        assert [ahead.take(token) for token in draft[:count]] == draft[:count]
        assert not ahead.complete
        assert looking.allowed() == plain.allowed()
        allowed = [token for token, free in enumerate(plain.allowed()) if free]
        said.append(plain.take(rng.choice([t for t in allowed if t != ord("!")] or allowed)))
        looking.follow(said)
        looked += count
    assert looking.complete == plain.complete
    assert looked


@pytest.mark.parametrize("most", range(1, 70))
def test_an_answer_is_whole_when_its_tokens_are_used_up(tokens: GrammarTokens, most: int) -> None:
    said = say(Guide(tokens, Grammar.regex(TRAP), most), "aaab" + "1" * 99)

    assert said.endswith("!")
    assert len(said) <= most
    assert ("b" in said) == (most >= len("aaab") + 61)


def test_a_token_that_leaves_no_way_out_is_taken_where_nobody_looks_ahead(
    tokens: GrammarTokens,
) -> None:
    @bug(Guide, "left")
    def the_end_is_never_near(_true: Any) -> Any:
        return property(lambda self: 1000)

    with seeded(the_end_is_never_near):
        said = say(Guide(tokens, Grammar.regex(TRAP), 10), "aaab" + "1" * 6)

    assert not said.endswith("!")


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_drawn_the_json_is_whole(tokens: GrammarTokens, seed: int) -> None:
    chance = random.Random(seed)
    guide = Guide(tokens, Grammar.json_schema(PERSON), chance.randint(24, 60))
    drawn = "".join(chance.choice('"{}:, abc0159-\\') for _ in range(60))

    value = json.loads(say(guide, drawn))

    assert isinstance(value, Mapping)
    assert list(value) == ["name", "age"]


def test_a_guide_stands_where_it_stood_when_it_follows_the_tokens_again(
    tokens: GrammarTokens,
) -> None:
    grammar = Grammar.json_schema(PERSON)
    first, again = Guide(tokens, grammar, 40), Guide(tokens, grammar, 40)
    said = [ord(character) for character in say(first, '{"name": "a\\"b", "a')]

    again.follow(said)
    again.follow(said[:-3])
    again.follow(said)

    assert (again.allowed(), again.way, again.left) == (first.allowed(), first.way, first.left)


def test_a_grammar_of_everything_allows_every_token_of_text(tokens: GrammarTokens) -> None:
    guide = Guide(tokens, Grammar.regex("(?s:.*)"), 5)

    assert all(guide.allowed()[:128])


@pytest.mark.parametrize(
    ("day", "there"),
    [
        ("2024-02-29", True),
        ("2023-02-29", False),
        ("6673-02-29", False),
        ("1900-02-29", False),
        ("2000-02-29", True),
        ("0000-01-01", False),
        ("0001-01-01", True),
        ("2026-04-31", False),
        ("2026-12-31", True),
    ],
)
@pytest.mark.parametrize("rest", ["", "T23:59:00Z", "T00:00:59.5+01:00"])
def test_a_date_is_a_day_that_there_is(
    tokens: GrammarTokens, day: str, *, there: bool, rest: str
) -> None:
    kind = "date-time" if rest else "date"
    grammar = Grammar.json_schema(
        {
            "type": "object",
            "properties": {"format": {"type": "string", "format": kind}},
            "required": ["format"],
            "additionalProperties": False,
        }
    )

    wanted = json.dumps({"format": day + rest})
    assert (say(Guide(tokens, grammar, 60), wanted) == wanted) is there


def test_what_is_no_schema_keeps_its_format(tokens: GrammarTokens) -> None:
    grammar = Grammar.json_schema({"enum": [{"format": "date"}]})
    wanted = '{"format": "date"}'

    assert say(Guide(tokens, grammar, 60), wanted) == wanted


def test_a_schema_that_is_nested_too_deep_is_no_grammar() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(2000):
        schema = {"type": "object", "properties": {"a": schema}}

    with pytest.raises(InvalidGrammar):
        Grammar.json_schema(schema)
    with pytest.raises(InvalidGrammar, match="nested too deep"):
        Grammar.json_schema("[" * 100_000)
