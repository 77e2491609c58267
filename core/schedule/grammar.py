"""Grammar: what form an answer must have. A value, checked where it is made. Pure: any thread."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from kvactors.core.errors import InvalidGrammar

__all__ = ["Grammar"]

Kind = Literal["json_schema", "regex", "lark"]
# JSON as Python writes it, which is what models saw most. A schema's own "x-guidance" has the
# last word.
JSON_STYLE: Any = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
# Keywords whose values are no schemas, and those that have one by each name.
_VALUES = ("const", "default", "enum", "examples", "required")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
# Formats that JSON Schema defines. Others restrict nothing.
_FORMATS = frozenset(
    [
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "idn-email",
        "hostname",
        "idn-hostname",
        "ipv4",
        "ipv6",
        "uri",
        "uri-reference",
        "iri",
        "iri-reference",
        "uuid",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
        "regex",
    ]
)
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29"
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    "02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP})"
_HOUR = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_DATES = {
    "date": _DATE,
    "date-time": f"{_DATE}T{_HOUR}:[0-5][0-9](?:[.][0-9]{{1,9}})?(?:Z|[+-]{_HOUR})",
}


@dataclass(frozen=True, slots=True)
class Grammar:
    """The form of an answer: `Sampling(grammar=...)`. Made by `json_schema`, `json_object`,
    `regex` and `lark`; needs the extra `grammar`. Raises InvalidGrammar, which says what is wrong
    and where.
    """

    kind: Kind
    text: str

    def __post_init__(self) -> None:
        if self.kind not in ("json_schema", "regex", "lark") or not isinstance(self.text, str):
            raise InvalidGrammar(f"a grammar is text of one kind, not {self.kind!r}: {self.text!r}")
        _check(self.kind, self.text)

    @staticmethod
    def json_schema(schema: Mapping[str, Any] | str) -> "Grammar":
        """A JSON value that this `schema` allows, its properties in the schema's order. A keyword
        that cannot be held to is refused, not ignored; a format that JSON Schema does not define
        restricts nothing."""
        if isinstance(schema, Mapping):
            try:
                schema = json.dumps(dict(schema))
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidGrammar(
                    f"a JSON schema must be made of JSON values: {error}"
                ) from None
        return Grammar("json_schema", schema)

    @staticmethod
    def json_object() -> "Grammar":
        """Any JSON object."""
        return Grammar.json_schema({"type": "object"})

    @staticmethod
    def regex(pattern: str) -> "Grammar":
        """Text that the whole of `pattern` matches, in the syntax of Rust's regex crate."""
        return Grammar("regex", pattern)

    @staticmethod
    def lark(text: str) -> "Grammar":
        """Text that the rule `start` of a context-free grammar derives, in llguidance's dialect of
        Lark."""
        return Grammar("lark", text)

    @property
    def source(self) -> str:
        """The grammar as llguidance wants it."""
        return _source(self.kind, self.text)

    @property
    def rule(self) -> str:
        """The grammar of a JSON schema as what a rule of a `lark` says. The schema stays a document
        of its own: its pointers are from its root, wherever the rule stands."""
        (held,) = json.loads(self.source)["grammars"]
        return f"%json {json.dumps(held['json_schema'])}"


def _source(kind: Kind, text: str) -> str:
    from llguidance import LLMatcher

    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "lark":
        return LLMatcher.grammar_from_lark(text)
    schema = json.dumps(_holdable(json.loads(text)))
    return LLMatcher.grammar_from_json_schema(schema, defaults=JSON_STYLE)


def _holdable(schema: Any) -> Any:
    """A JSON `schema` as llguidance holds to it: without what restricts nothing, and with dates
    that are days which there are, as it has a 29th of February in each year, and a year 0."""
    if isinstance(schema, list):
        return [_holdable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _holdable_part(key, value) for key, value in schema.items()}
    if found.get("propertyNames") in ({}, {"type": "string"}):
        # Names are nothing else. Zod writes it for each record.
        del found["propertyNames"]
    form = found.get("format")
    if isinstance(form, str) and form not in _FORMATS:
        del found["format"]
    elif isinstance(form, str) and form in _DATES and "pattern" not in found:
        del found["format"]
        found["pattern"] = f"^{_DATES[form]}$"
    return found


def _holdable_part(key: str, value: Any) -> Any:
    if key in _VALUES:
        return value
    if key in _BY_NAME and isinstance(value, dict):
        return {name: _holdable(part) for name, part in value.items()}
    return _holdable(value)


@lru_cache(maxsize=256)
def _check(kind: Kind, text: str) -> None:
    """Raise InvalidGrammar for what is no grammar; a good one is checked once."""
    try:
        from llguidance import LLMatcher
    except ImportError:
        raise InvalidGrammar(
            "a grammar needs the package `llguidance`: pip install 'kvactors[grammar]'"
        ) from None
    try:
        wrong, messages = LLMatcher.validate_grammar_with_warnings(_source(kind, text))
    except ValueError as error:
        wrong, messages = True, [f"it is no JSON: {error}"]
    except RecursionError:
        wrong, messages = True, ["it is nested too deep"]
    if wrong:
        raise InvalidGrammar(f"the {kind.replace('_', ' ')} is no grammar: {messages[0].strip()}")
