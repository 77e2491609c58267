"""Forms of an answer in the words of vLLM: `structured_outputs`, and `guided_…` as they were called
before. Pure: any thread."""

import re
from collections.abc import Callable
from typing import Any

from kvactors.actors.frontends.server.exchange.inquiry import Form
from kvactors.actors.frontends.server.wire.errors import refused
from kvactors.actors.frontends.server.wire.reading import Drawn
from kvactors.core.errors import InvalidGrammar
from kvactors.core.schedule.grammar import Grammar

__all__ = ["Guided"]

# What means something in a pattern.
_SIGNS = re.compile(r"[\\.+*?()|\[\]{}^$]")


class Guided(Drawn):
    """A body whose answer may have a form, of one kind."""

    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def guided(self) -> Form | None:
        """The form that is asked for. Raises Failure."""
        asked = self.structured_outputs or {}
        found = {f"structured_outputs.{kind}": (kind, asked.get(kind)) for kind in _MADE}
        found |= {f"guided_{kind}": (kind, getattr(self, f"guided_{kind}", None)) for kind in _MADE}
        given = [(where, *form) for where, form in found.items() if form[1] is not None]
        if asked.get("structural_tag") is not None:
            raise refused("structured_outputs.structural_tag", f"one of {', '.join(_MADE)}")
        if not given:
            return None
        (where, kind, value), *others = given
        if others:
            raise refused(others[0][0], f"an answer has one form, and {where} is given")
        try:
            return Form(given=_MADE[kind](value))
        except (InvalidGrammar, TypeError) as error:
            raise refused(where, str(error)) from error

    def unguided(self) -> list[str]:
        """What of `structured_outputs` changes nothing."""
        asked = (self.structured_outputs or {}).items()
        wishes = [wish for wish, value in asked if value and wish not in _MADE]
        return [f"structured_outputs.{wish}" for wish in wishes]


def _one_of(choices: Any) -> Grammar:
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) for c in choices):
        raise TypeError(f"a list of texts is needed, not {choices!r:.80}")
    return Grammar.regex("|".join(_SIGNS.sub(r"\\\g<0>", choice) for choice in choices))


def _any_object(wanted: Any) -> Grammar:
    if wanted is not True:
        raise TypeError(f"true, or nothing, not {wanted!r:.80}")
    return Grammar.json_object()


_MADE: dict[str, Callable[[Any], Grammar]] = {
    "json": Grammar.json_schema,
    "regex": Grammar.regex,
    "choice": _one_of,
    "grammar": Grammar.lark,
    "json_object": _any_object,
}
