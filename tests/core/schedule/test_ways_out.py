"""What schemas of other libraries say, as they write it, and the ways out of them."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.grammar_tokens import GrammarTokens
from kvactors.core.errors import InvalidGrammar
from kvactors.core.schedule.completion import short_way
from kvactors.core.schedule.grammar import Grammar
from kvactors.core.schedule.guide import Guide
from kvactors.core.testing.models import PlainTokenizer

Schema = dict[str, Any]
WORD = "[A-Za-z0-9_'+\\-]"
LABEL = "(?:[A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"
# As zod has an address.
ADDRESS = f"^(?:{WORD}+\\.)*{WORD}*[A-Za-z0-9_+-]@{LABEL}"


@pytest.fixture
def tokens() -> GrammarTokens:
    """Each character is a token, 0 ends."""
    return ChatFormat(PlainTokenizer()).grammar_tokens(128)


def one(**kind: Any) -> Schema:
    return many(1, **kind)


def many(fields: int, **kind: Any) -> Schema:
    names = [f"v{number}" for number in range(fields)]
    properties = dict.fromkeys(names, {"type": "string"} | kind)
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


def takes(tokens: GrammarTokens, schema: Schema, value: Any) -> bool:
    """Whether `value` is a whole answer that the schema allows."""
    matcher = tokens.matcher(Grammar.json_schema(schema).source)
    said = tokens.encode(json.dumps(value).encode())
    return matcher.try_consume_tokens(said) == len(said) and matcher.is_accepting()


@pytest.mark.parametrize("fields", [1, 2, 10])
@pytest.mark.parametrize("form", [{}, {"format": "email"}], ids=["pattern", "both"])
def test_a_way_out_is_found_where_one_sign_of_many_leads_on(
    tokens: GrammarTokens, form: Schema, fields: int
) -> None:
    source = Grammar.json_schema(many(fields, pattern=ADDRESS, **form)).source

    way = short_way(tokens, tokens.matcher(source), 400)

    assert way is not None
    assert len(way) < 30 * fields
    matcher = tokens.matcher(source)
    assert matcher.try_consume_tokens(list(way)) == len(way)
    assert matcher.is_accepting()
    Guide(tokens, Grammar.json_schema(many(fields, pattern=ADDRESS, **form)), 400)


@pytest.mark.parametrize("anything", [{}, {"type": "string"}])
def test_that_names_are_texts_restricts_nothing(tokens: GrammarTokens, anything: Schema) -> None:
    schema = {"type": "object", "propertyNames": anything, "additionalProperties": {"type": "null"}}

    assert takes(tokens, schema, {"a": None})
    assert not takes(tokens, schema, {"a": 1})


@pytest.mark.parametrize("names", [{"enum": ["a", "ab"]}, {"type": "string", "pattern": "^a"}])
def test_names_are_held_to(tokens: GrammarTokens, names: Schema) -> None:
    schema = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "null"}}

    assert takes(tokens, schema, {"a": None, "ab": None})
    assert not takes(tokens, schema, {"b": None})
    assert not takes(tokens, schema, {"a": 1})


@pytest.mark.parametrize(
    "more",
    [
        {"propertyNames": {"minLength": 3}},
        {"propertyNames": {"enum": ["a"], "minLength": 3}},
        {"propertyNames": {"pattern": "^a"}, "properties": {"b": {}}},
        {"propertyNames": {"enum": [1]}},
    ],
)
def test_names_that_must_be_others_are_refused(more: Schema) -> None:
    with pytest.raises(InvalidGrammar, match="propertyNames"):
        Grammar.json_schema({"type": "object", **more})


def test_a_property_may_have_the_name_of_a_keyword(tokens: GrammarTokens) -> None:
    schema: Schema = {
        "type": "object",
        "properties": {"propertyNames": {"type": "string"}, "format": {"const": "nanoid"}},
        "required": ["propertyNames", "format"],
        "additionalProperties": False,
    }

    assert takes(tokens, schema, {"propertyNames": "x", "format": "nanoid"})


def test_of_a_format_that_is_none_of_json_schemas_the_pattern_holds(tokens: GrammarTokens) -> None:
    schema = one(format="starts_with", pattern="^ab.*")

    assert takes(tokens, schema, {"v0": "abc"})
    assert not takes(tokens, schema, {"v0": "bc"})
    assert takes(tokens, one(format="jwt"), {"v0": "a.b.c"})


@pytest.mark.parametrize("form", ["json-pointer", "iri"])
def test_a_format_that_cannot_be_held_to_is_refused(form: str) -> None:
    with pytest.raises(InvalidGrammar, match=f"Unknown format: {form}"):
        Grammar.json_schema(one(format=form))


@pytest.mark.parametrize("form", [{}, {"format": "lowercase"}, {"format": "email"}])
def test_a_pattern_that_looks_around_is_refused(form: Schema) -> None:
    with pytest.raises(InvalidGrammar, match="look-around"):
        Grammar.json_schema(one(pattern="^(?!x)[a-z]+$", **form))


@pytest.mark.parametrize("most", [22, 29, 30, 60])
def test_what_was_said_of_a_way_out_need_not_be_said_again(
    tokens: GrammarTokens, most: int
) -> None:
    guide = Guide(tokens, Grammar.regex("[a-z]{20,}!"), most)

    for _ in range(most - 1):
        assert guide.allowed()[ord("q")]
        assert guide.take(ord("q")) == ord("q")

    assert guide.way == (ord("!"),)


LABELS = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}"
# What zod writes of its kinds whose patterns look around, with what they allow and do not.
ZODS = {
    "duration": (
        r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?"
        r"(\d+([.,]\d+)?S)?)?)$",
        ("P1W", "P1Y2M3DT4H5M6S", "PT5M"),
        ("", "P", "PT", "P1D2W", "P1DT"),
    ),
    "hostname": (
        rf"^(?=.{{1,253}}\.?$){LABELS}[0-9a-zA-Z])?)*\.?$",
        ("a", "a-b.c", "a" * 63, ".".join(["a" * 62] * 4)),
        ("", "-a", "a" * 64, "a..b", ".".join(["a" * 62] * 4) + ".bcd"),
    ),
    "emoji": (
        r"^(?=[\s\S]*[\p{Extended_Pictographic}\p{Regional_Indicator}\u20E3])"
        r"[\p{Extended_Pictographic}\p{Emoji_Component}]+$",
        ("\U0001f600", "\U0001f1ee\U0001f1f9", "1\ufe0f\u20e3", "\u2764\ufe0f"),
        ("", "1", "#", "a", "\U0001f600a"),
    ),
}


@pytest.mark.parametrize("kind", ZODS)
def test_zods_patterns_that_look_around_are_held_to(kind: str) -> None:
    pattern, right, wrong = ZODS[kind]
    bytewise = LLTokenizer("byte")

    def allowed(value: str) -> bool:
        source = Grammar.json_schema(one(pattern=pattern, format=kind)).source
        matcher = LLMatcher(bytewise, source)
        said = bytewise.tokenize_str(json.dumps({"v0": value}, ensure_ascii=False))
        return matcher.try_consume_tokens(said) == len(said) and matcher.is_accepting()

    assert [value for value in right if not allowed(value)] == []
    assert [value for value in wrong if allowed(value)] == []


LEFT = [
    (
        {"type": "array", "items": {"type": "null"}, "uniqueItems": True},
        [None, None],
        "uniqueItems",
    ),
    ({"type": "string", "pattern": "^(?!x)[a-z]+$"}, "x", "pattern ^(?!x)"),
    ({"type": "string", "format": "iri"}, "x", "iri"),
    ({"type": "object", "propertyNames": {"minLength": 3}}, {"a": 1}, "propertyNames"),
    (
        {
            "type": "object",
            "patternProperties": {"^(?!x)": {"type": "null"}},
            "additionalProperties": False,
        },
        {"a": 1},
        "pattern ^(?!x)",
    ),
]


@pytest.mark.parametrize(
    ("schema", "value", "left"), LEFT, ids=["items", "text", "format", "names", "name"]
)
@pytest.mark.parametrize("text", [False, True], ids=["object", "text"])
def test_a_lenient_grammar_leaves_out_what_cannot_be_held_to_and_names_it(
    tokens: GrammarTokens, schema: Schema, value: Any, left: str, text: bool
) -> None:
    whole = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    with pytest.raises(InvalidGrammar):
        Grammar.json_schema(whole)

    grammar = Grammar.json_schema(json.dumps(whole) if text else whole, lenient=True)

    assert len(grammar.unheld) == 1
    assert left in grammar.unheld[0]
    matcher = tokens.matcher(Grammar.lark(f"start: {grammar.rule}").source)
    said = tokens.encode(json.dumps({"v": value}).encode())
    assert matcher.try_consume_tokens(said) == len(said)
    assert not matcher.try_consume_tokens(tokens.encode(b", "))


def test_a_length_of_ones_own_is_no_longer_than_zods(tokens: GrammarTokens) -> None:
    pattern = ZODS["hostname"][0]
    long = ".".join(["a" * 62] * 4) + ".bcd"

    for most, right in ((1000, "a" * 20), (9, "a" * 9)):
        schema = one(pattern=pattern, format="hostname", maxLength=most)
        assert takes(tokens, schema, {"v0": right})
        assert not takes(tokens, schema, {"v0": right + "b" * 50 if most == 9 else long})


def test_a_lenient_grammar_holds_to_all_else() -> None:
    assert Grammar.json_schema(many(2, pattern="^a"), lenient=True).unheld == ()
    for schema in ({"type": "teapot"}, "[", "1", "{", {"type": "string", "pattern": "("}):
        with pytest.raises(InvalidGrammar):
            Grammar.json_schema(schema, lenient=True)


@pytest.mark.parametrize("most", ["5", None, [1]])
def test_a_length_that_is_no_number_is_refused(most: Any) -> None:
    schema = {"type": "string", "pattern": ZODS["hostname"][0], "maxLength": most}

    with pytest.raises(InvalidGrammar, match="it is no schema"):
        Grammar.json_schema(schema)
