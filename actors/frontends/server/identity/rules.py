"""Parts of what a client says that change though nothing changed: nonces, dates. Pure: any thread.

A rule "ignore" takes the part out of comparisons. A rule "note" does too, if there is one such
part, and its new value is told with what the user says next, where it moves nothing: of several
nobody could tell which is meant. Rules are for system prompts, or for what the user says: there
they "ignore", as there is nothing that says it again. What no rule names is never ignored.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from kvactors.core.errors import InvalidConfig

__all__ = ["Rule", "Stripped", "read_rules", "shipped_rules", "shorn", "standing_rules", "strip"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Text that `pattern` matches is no difference. Its first group, or all of it, is the value
    that a "note" tells, as `tell` says with `{}` in the value's place. It is for `of`."""

    name: str
    pattern: re.Pattern[str]
    action: Literal["ignore", "note"]
    tell: str = "{}"
    of: Literal["system", "user"] = "system"


@dataclass(frozen=True, slots=True)
class Stripped:
    """A text without its volatile parts, and what those said, by the names of their rules."""

    text: str
    values: Mapping[str, str]


def strip(text: str, rules: Iterable[Rule]) -> Stripped:
    """A system prompt's `text` as the `rules` compare it."""
    values: dict[str, list[str]] = {}
    for rule in rules:
        if rule.of != "system":
            continue
        if rule.action == "note" and sum(1 for _ in rule.pattern.finditer(text)) > 1:
            continue

        def taken(match: re.Match[str], rule: Rule = rule) -> str:
            value = (match[1] or "") if match.re.groups else match[0]
            values.setdefault(rule.name, []).append(value)
            return f"\0{rule.name}\0"

        text = rule.pattern.sub(taken, text)
    return Stripped(text, {name: "\n".join(found) for name, found in values.items()})


def shorn(text: str, rules: Iterable[Rule]) -> str:
    """A user's `text` as the `rules` compare it: what they name may be gone the next time."""
    for rule in rules:
        if rule.of == "user":
            text = rule.pattern.sub("", text)
    return text


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
    known = {"name", "pattern", "action", "tell", "of"}
    if not isinstance(entry, Mapping) or not {"name", "pattern", "action"} <= set(entry) <= known:
        raise InvalidConfig(f"{where}: a rule has name, pattern, action and maybe tell and of")
    of, action = entry.get("of", "system"), entry["action"]
    if action not in ("ignore", "note"):
        raise InvalidConfig(f'{where}: action is "ignore" or "note", not {action!r}')
    if of not in ("system", "user"):
        raise InvalidConfig(f'{where}: of is "system" or "user", not {of!r}')
    if of == "user" and action != "ignore":
        raise InvalidConfig(f'{where}: action is "ignore" of what the user says, not {action!r}')
    try:
        pattern = re.compile(entry["pattern"], re.MULTILINE)
    except (re.error, TypeError, OverflowError) as error:
        raise InvalidConfig(f"{where}: {entry['pattern']!r} is no pattern: {error}") from error
    tell = str(entry.get("tell", "{}"))
    try:
        tell.format("")
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise InvalidConfig(
            f"{where}: tell has {{}} once where the value goes, other braces twice: {tell!r}"
        ) from error
    return Rule(str(entry["name"]), pattern, action, tell, of)


def standing_rules(rules: Sequence[Rule], told: str, says: str) -> tuple[tuple[str, ...], str]:
    """The `rules` by which the ledger's own text stands, where an agent was `told` one thing by its
    system prompt and tools, as JSON, and it `says` another now; and what is to be told instead."""
    # Of what is sealed with a key that is not there nothing is known.
    before, now = json.loads(told or "{}"), json.loads(says)
    known, values, tools = before.get("values", {}), now["values"], now["tools"]
    changed = {name: value for name, value in values.items() if known.get(name) != value}
    named = {rule.name: rule for rule in rules}
    notes = [
        named[name].tell.format(value)
        for name, value in changed.items()
        if name in named and named[name].action == "note"
    ]
    names, stands = list(before.get("tools", ())), list(changed)
    if tools != names:
        stands.append("tool-order" if set(tools) == set(names) else "fewer-tools")
    return tuple(stands), "\n".join(notes)
