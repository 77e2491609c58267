"""What a JSON schema says, as llguidance can hold to it. Pure: any thread."""

import json
from typing import Any

__all__ = ["Held"]

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
# Patterns of zod's kinds that look around, and what says the same without: each answer that is so
# is one that they allow.
_PICTURE = r"\p{Extended_Pictographic}"
_PICTURES = rf"[{_PICTURE}\p{{Emoji_Component}}]"
_ZODS: dict[str, dict[str, Any]] = {
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
    r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$": {"format": "duration"},
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$": {
        "format": "hostname",
        "maxLength": 253,
    },
    rf"^(?=[\s\S]*[{_PICTURE}\p{{Regional_Indicator}}\u20E3]){_PICTURES}+$": {
        "pattern": rf"^{_PICTURES}*[{_PICTURE}\p{{Regional_Indicator}}\u20E3]{_PICTURES}*$"
    },
}


class Held:
    """A JSON `schema` as llguidance holds to it: without what restricts nothing, with dates that
    are days which there are, as it has a 29th of February in each year, and a year 0. Where the
    schema's "x-guidance" is `lenient`, what cannot be held to is left out: `left` says what it was,
    beside the keywords that llguidance names."""

    def __init__(self, schema: Any) -> None:
        asked = schema.get("x-guidance") if isinstance(schema, dict) else None
        self._lenient = bool(asked.get("lenient")) if isinstance(asked, dict) else False
        self.left: list[str] = []
        self.schema = self._read(schema)

    def _read(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self._read(part) for part in schema]
        if not isinstance(schema, dict):
            return schema
        found = {key: self._part(key, value) for key, value in schema.items()}
        if "propertyNames" in found:
            _name(found)
        if self._lenient and isinstance(found.get("patternProperties"), dict):
            self._loosen(found, found["patternProperties"])
        if isinstance(pattern := found.get("pattern"), str):
            self._match(found, pattern)
        form = found.get("format")
        if isinstance(form, str) and form not in _FORMATS:
            del found["format"]
        elif isinstance(form, str) and form in _DATES and "pattern" not in found:
            del found["format"]
            found["pattern"] = f"^{_DATES[form]}$"
        return found

    def _part(self, key: str, value: Any) -> Any:
        if key in _VALUES:
            return value
        if key in _BY_NAME and isinstance(value, dict):
            return {name: self._read(part) for name, part in value.items()}
        return self._read(value)

    def _loosen(self, found: dict[str, Any], named: dict[str, Any]) -> None:
        """Leave out of what is `found` those names of which the patterns are unknown."""
        for pattern in filter(_unknown, tuple(named)):
            del named[pattern]
            found["additionalProperties"] = True
            self.left.append(f"pattern {pattern}")

    def _match(self, found: dict[str, Any], pattern: str) -> None:
        if pattern in _ZODS:
            del found["pattern"]
            held = _ZODS[pattern]
            most = [part["maxLength"] for part in (found, held) if "maxLength" in part]
            found |= held | ({"maxLength": min(most)} if most else {})
        elif self._lenient and _unknown(pattern):
            del found["pattern"]
            self.left.append(f"pattern {pattern}")


def _name(found: dict[str, Any]) -> None:
    """Say of an object what its names must be by properties, where that is the same."""
    names = found["propertyNames"]
    if names in ({}, {"type": "string"}):
        # Names are nothing else. Zod writes it for each record.
        del found["propertyNames"]
        return
    if not isinstance(names, dict) or not found.keys().isdisjoint(
        ("properties", "patternProperties")
    ):
        return
    said = {key: value for key, value in names.items() if (key, value) != ("type", "string")}
    match said:
        case {"enum": list(known), **more} if not more and all(isinstance(n, str) for n in known):
            held = {"properties": known}
        case {"pattern": str(pattern), **more} if not more:
            held = {"patternProperties": [pattern]}
        case _:
            return
    del found["propertyNames"]
    anything = found.get("additionalProperties", True)
    found |= {key: dict.fromkeys(of, anything) for key, of in held.items()}
    found["additionalProperties"] = False


def _unknown(pattern: str) -> bool:
    """Whether it asks for what no automaton does: to look around, or back."""
    from llguidance import LLMatcher

    text = json.dumps({"type": "string", "pattern": pattern})
    return "not supported" in LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text))
