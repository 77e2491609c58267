"""Errors of pydantic's in plain words, with the nearest word of the schema. Any thread."""

from collections.abc import Sequence
from typing import Any

from kvactors.actors.scenarios.files.problems import nearest
from kvactors.actors.scenarios.files.schema import ScenarioWords

__all__ = ["in_words"]


def in_words(found: Any) -> str:
    """What an error of pydantic's, `found`, says."""
    kind, place = found["type"], [part for part in found["loc"] if part != "[key]"]
    if kind == "extra_forbidden":
        known = _words_at(place[:-1])
        return f"no such word: {nearest(str(place[-1]), known)}"
    if kind == "literal_error":
        words = found["ctx"]["expected"].replace(" or ", ",").split(",")
        choices = [word.strip(" '") for word in words]
        meant = nearest(str(found["input"]), choices)
        return f"{found['input']!r} is none of {', '.join(choices)}: {meant}"
    if kind == "missing":
        return "it is missing"
    text = str(found["msg"]).removeprefix("Value error, ")
    shown = found["input"]
    if kind == "value_error" or isinstance(shown, dict | list):
        return text
    return f"{text[:1].lower()}{text[1:]}, not {shown!r}"


def _words_at(place: Sequence[str | int]) -> list[str]:
    """The words that may stand at a place of the schema."""
    schema = ScenarioWords.model_json_schema(by_alias=True)
    part: Any = schema
    for word in place:
        part = _resolved(part, schema)
        if isinstance(word, int):
            part = part.get("items", {})
        else:
            named = part.get("properties", {}).get(word)
            part = named or next(iter(part.get("patternProperties", {}).values()), part)
    return [*_resolved(part, schema).get("properties", {}), *(() if place else ("inherits",))]


def _resolved(part: Any, schema: Any) -> Any:
    """What a reference of a JSON schema refers to."""
    for _ in range(5):
        one = next((o for o in part.get("anyOf", ()) if o.get("type") != "null"), part)
        part = schema["$defs"][one["$ref"].split("/")[-1]] if "$ref" in one else one
    return part
