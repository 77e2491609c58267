"""Parts of a system prompt that change though nothing changed: nonces, dates. Pure: any thread.

A rule "ignore" takes the part out of comparisons. A rule "note" does too, and its new value is told
at the end of the conversation, where it moves nothing. What no rule names is never ignored.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from kvactors.core.errors import InvalidConfig

__all__ = ["Rule", "Stripped", "read_rules", "shipped_rules", "strip"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Text that `pattern` matches is no difference. Its first group, or all of it, is the value
    that a "note" tells, as `tell` says with `{}` in the value's place."""

    name: str
    pattern: re.Pattern[str]
    action: Literal["ignore", "note"]
    tell: str = "{}"


@dataclass(frozen=True, slots=True)
class Stripped:
    """A text without its volatile parts, and what those said, by the names of their rules."""

    text: str
    values: Mapping[str, str]


def strip(text: str, rules: Iterable[Rule]) -> Stripped:
    """`text` as the `rules` compare it."""
    values: dict[str, list[str]] = {}
    for rule in rules:

        def taken(match: re.Match[str], rule: Rule = rule) -> str:
            value = match[1] if match.re.groups else match[0]
            values.setdefault(rule.name, []).append(value)
            return f"\0{rule.name}\0"

        text = rule.pattern.sub(taken, text)
    return Stripped(text, {name: "\n".join(found) for name, found in values.items()})


def shipped_rules() -> tuple[Rule, ...]:
    """Those for known clients."""
    text = files(__package__).joinpath("rules.toml").read_text(encoding="utf-8")
    return _rules(tomllib.loads(text), "the shipped rules")


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Those of a file, in the form of the shipped one. Raises InvalidConfig, OSError."""
    try:
        return _rules(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} is no TOML: {error}") from error


def _rules(content: Mapping[str, Any], where: str) -> tuple[Rule, ...]:
    entries = content.get("rule", ())
    if not isinstance(entries, Sequence):
        raise InvalidConfig(f"{where}: write each rule under [[rule]]")
    return tuple(_rule(entry, f"{where}, rule {number}") for number, entry in enumerate(entries, 1))


def _rule(entry: Any, where: str) -> Rule:
    known = {"name", "pattern", "action", "tell"}
    if not isinstance(entry, Mapping) or not {"name", "pattern", "action"} <= set(entry) <= known:
        raise InvalidConfig(f"{where}: a rule has name, pattern, action and maybe tell")
    if entry["action"] not in ("ignore", "note"):
        raise InvalidConfig(f'{where}: action is "ignore" or "note", not {entry["action"]!r}')
    try:
        pattern = re.compile(entry["pattern"], re.MULTILINE)
    except re.error as error:
        raise InvalidConfig(f"{where}: {entry['pattern']!r} is no pattern: {error}") from error
    return Rule(str(entry["name"]), pattern, entry["action"], str(entry.get("tell", "{}")))
