"""What schemas of other libraries say, as they write it, and the ways out of them."""

import json
from typing import Any

import pytest

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


def test_names_that_must_be_others_are_refused() -> None:
    with pytest.raises(InvalidGrammar, match="propertyNames"):
        Grammar.json_schema({"type": "object", "propertyNames": {"pattern": "^a"}})


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
