"""Grammar: what form an answer must have. A value, checked where it is made. Pure: any thread."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from kvactors.core.errors import InvalidGrammar
from kvactors.core.schedule.schemas import Held

__all__ = ["Grammar"]

Kind = Literal["json_schema", "regex", "lark"]
# JSON as Python writes it, which is what models saw most. A schema's own "x-guidance" has the
# last word.
JSON_STYLE: Any = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
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
    def json_schema(schema: Mapping[str, Any] | str, *, lenient: bool = False) -> "Grammar":
        """A JSON value that this `schema` allows, its properties in the schema's order. A keyword
        that cannot be held to is refused, or, where that is `lenient`, left out: `unheld` names it.
        A format that JSON Schema does not define restricts nothing."""
        if isinstance(schema, Mapping):
            try:
                schema = json.dumps(dict(schema))
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidGrammar(
                    f"a JSON schema must be made of JSON values: {error}"
                ) from None
        return Grammar("json_schema", _leniently(schema) if lenient else schema)

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
        return _read(self.kind, self.text)[0]

    @property
    def unheld(self) -> tuple[str, ...]:
        """What a lenient schema says that is not held to."""
        return _check(self.kind, self.text)

    @property
    def rule(self) -> str:
        """The grammar of a JSON schema or a pattern as what a rule of a `lark` says. The schema
        stays a document of its own: its pointers are from its root, wherever the rule stands.
        Raises InvalidGrammar for a `lark`."""
        if self.kind == "lark":
            raise InvalidGrammar("a grammar of rules stands alone: ask without tools, or for JSON")
        if self.kind == "regex":
            # What is escaped stays so.
            parts = re.split(r"(\\.)", self.text, flags=re.DOTALL)
            parts[::2] = [part.replace("/", r"\/") for part in parts[::2]]
            return f"/{''.join(parts)}/"
        (held,) = json.loads(self.source)["grammars"]
        return f"%json {json.dumps(held['json_schema'])}"


def _leniently(text: str) -> str:
    """A JSON schema of which what cannot be held to is left out. What is none stays as it is."""
    try:
        schema = json.loads(text)
        schema["x-guidance"] = {**schema.get("x-guidance", {}), "lenient": True}
    except (AttributeError, TypeError, ValueError, RecursionError):
        return text
    return json.dumps(schema)


def _read(kind: Kind, text: str) -> tuple[str, Sequence[str]]:
    """A grammar as llguidance wants it, and what was left out."""
    from llguidance import LLMatcher

    if kind == "regex":
        return LLMatcher.grammar_from_regex(text), ()
    if kind == "lark":
        return LLMatcher.grammar_from_lark(text), ()
    held = Held(json.loads(text))
    schema = json.dumps(held.schema)
    return LLMatcher.grammar_from_json_schema(schema, defaults=JSON_STYLE), held.left


@lru_cache(maxsize=256)
def _check(kind: Kind, text: str) -> tuple[str, ...]:
    """What of a grammar is not held to. Raises InvalidGrammar for what is none; a good one is
    checked once."""
    try:
        from llguidance import LLMatcher
    except ImportError:
        raise InvalidGrammar(
            "a grammar needs the package `llguidance`: pip install 'kvactors[grammar]'"
        ) from None
    left: Sequence[str] = ()
    try:
        source, left = _read(kind, text)
        wrong, messages = LLMatcher.validate_grammar_with_warnings(source)
    except ValueError as error:
        wrong, messages = True, [f"it is no JSON: {error}"]
    except TypeError as error:
        wrong, messages = True, [f"it is no schema: {error}"]
    except RecursionError:
        wrong, messages = True, ["it is nested too deep"]
    if wrong:
        raise InvalidGrammar(f"the {kind.replace('_', ' ')} is no grammar: {messages[0].strip()}")
    return (*left, *messages)
