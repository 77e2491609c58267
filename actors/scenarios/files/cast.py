"""Who takes part: the agents of a file, with the columns of their tables and their personas.

Any thread.
"""

import csv
import fnmatch
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvactors.actors.scenarios.files.problems import InvalidScenario, nearest
from kvactors.actors.scenarios.files.schema import AgentWords, SamplingWords, ScenarioWords
from kvactors.actors.scenarios.files.templates import (
    Problem,
    check_names,
    columns_of,
    placed,
    template,
)
from kvactors.core.text import check_text

__all__ = ["ALL", "Cast", "Member", "make_cast"]

ALL = "all"
MOST_AGENTS = 100_000
# "007" is a name; 7, -0.5 and 1e-3 are numbers, as in YAML.
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
MOST_DIGITS = 300
OWN = ("name", "group", "number")


@dataclass(frozen=True, slots=True)
class Member:
    """One agent. `view` is what templates see of it: name, group, number and its columns."""

    name: str
    view: SimpleNamespace
    persona: str | None
    sampling: SamplingWords
    from_: str | None
    joins: str | None
    behaviour: str | None
    asks: tuple[str, ...]


class Cast:
    """All of them, in the order of the file."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = {member.name: member for member in members}
        self.views = [member.view for member in members]
        self._places = {member.name: place for place, member in enumerate(members)}
        self._groups: dict[str, list[str]] = {}
        for member in members:
            self._groups.setdefault(member.view.group, []).append(member.name)

    def resolve(self, names: Iterable[str], problem: Problem) -> tuple[str, ...]:
        """Who is meant by names of agents or groups, patterns and "all", in the order of the file.
        Raises what `problem` makes for one that means nobody."""
        meant: set[str] = set()
        for name in names:
            if name == ALL:
                found: Iterable[str] = self.members
            elif name in self.members:
                found = [name]
            else:
                found = self._groups.get(name) or fnmatch.filter(self.members, name)
            if not found:
                known = nearest(name, [*self._groups, *self.members])
                raise problem(f"no agent is called {name!r}: {known}")
            meant.update(found)
        return tuple(sorted(meant, key=self._places.__getitem__))

    def columns(self, names: Iterable[str]) -> set[str]:
        """What templates may ask of each of these."""
        own = [set(vars(self.members[name].view)) for name in names]
        return set.intersection(*own) if own else set(OWN)


def make_cast(words: ScenarioWords, folder: Path, base: Mapping[str, Any], problem: Any) -> Cast:
    """The cast of the scenario of these `words`: its tables in `folder` are read, its personas
    filled in with the variables of `base`. `problem` makes the error of a place. Raises
    InvalidScenario, OSError."""
    members: list[Member] = []
    for group, agent in words.agents.items():
        members += _group(group, agent, folder, base, problem)
        if len(members) > MOST_AGENTS:
            raise problem(("agents", group), f"more than {MOST_AGENTS:,} agents")
    seen: set[str] = set()
    for member in members:
        if member.name in seen:
            raise problem(("agents", member.view.group), f"two agents are called {member.name!r}")
        seen.add(member.name)
    _check_groups(members, problem)
    _check_origins(members, [phase.name for phase in words.phases], problem)
    cast = Cast(_with_personas(members))
    members = list(cast.members.values())
    return Cast([_with_asked(member, cast, problem) for member in members])


def _group(
    group: str, agent: AgentWords, folder: Path, base: Mapping[str, Any], problem: Any
) -> list[Member]:
    place = ("agents", group)
    rows = _rows(folder / agent.table, place, problem) if agent.table else None
    count = agent.count or (len(rows) if rows is not None else 1)
    if rows is not None and count > len(rows):
        raise problem((*place, "count"), f"{count} agents, and {agent.table} has {len(rows)} rows")
    alone = agent.count is None and rows is None
    members = []
    for number in range(1, count + 1):
        row = dict(rows[number - 1]) if rows is not None else {}
        name = str(row.pop("name", group if alone else f"{group}-{number}"))
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            raise problem(place, f"{name!r} is no name: a letter, then letters, digits, _ or -")
        view = SimpleNamespace(name=name, group=group, number=number, **row)
        persona = _persona(agent.persona, view, base, (*place, "persona"), problem)
        begins = (agent.from_, agent.joins)
        members.append(
            Member(name, view, persona, agent.sampling, *begins, agent.behaviour, agent.asks)
        )
    return members


def _rows(path: Path, place: tuple[str, ...], problem: Any) -> list[dict[str, Any]]:
    place = (*place, "table")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            rows, named = list(reader), reader.fieldnames or ()
    except FileNotFoundError:
        raise problem(place, f"there is no {path}") from None
    except OSError as error:
        raise problem(place, f"{path} cannot be read: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise problem(place, f"{path} is no CSV in UTF-8: {error}") from error
    if not rows:
        raise problem(place, f"{path} has no rows below its first one, which names the columns")
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise problem(place, f"{path}:{number}: not as many values as there are columns")
    if len(set(named)) < len(named):
        raise problem(place, f"{path}: two columns have one name: {', '.join(named)}")
    columns = [name for name in rows[0] if name not in ("name",)]
    for column in columns:
        if not column.isidentifier() or column.startswith("_") or column in OWN:
            raise problem(place, f"{path}: a column cannot be called {column!r}")
    return [{name: _value(text) for name, text in row.items()} for row in rows]


def _value(text: str) -> Any:
    """What looks like a number is one, if it is finite."""
    if len(text) > MOST_DIGITS or not NUMBER.fullmatch(text):
        return text
    if text.lstrip("-").isdigit():
        return int(text)
    return float(text) if math.isfinite(float(text)) else text


def _persona(
    source: str | None,
    view: SimpleNamespace,
    base: Mapping[str, Any],
    place: tuple[str, ...],
    problem: Any,
) -> str | None:
    if source is None:
        return None

    def wrong(text: str) -> InvalidScenario:
        error: InvalidScenario = problem(place, text)
        return error

    text = placed(template, source, wrong)
    check_names(text, [*base, "agent"], wrong)
    for column in sorted(columns_of(text, "agent") - set(vars(view))):
        raise wrong(f"{view.name} has no column {column!r}: {nearest(column, vars(view))}")
    try:
        return check_text("the persona", str(text.render(**base, agent=view)))
    except Exception as error:  # Whatever a template may do.
        raise wrong(f"of {view.name}: {error}") from error


def _with_asked(member: Member, cast: Cast, problem: Any) -> Member:
    """With the names of those whom its behaviour asks, of whom none has one itself."""
    if not member.asks:
        return member

    def wrong(text: str) -> InvalidScenario:
        error: InvalidScenario = problem(("agents", member.view.group, "asks"), text)
        return error

    asked = tuple(name for name in cast.resolve(member.asks, wrong) if name != member.name)
    for name in asked:
        if cast.members[name].behaviour is not None:
            raise wrong(f"{name} has a behaviour: let a phase ask it, and {member.name} hear that")
    return replace(member, asks=asked)


def _with_personas(members: Sequence[Member]) -> list[Member]:
    """Whoever begins with another's memory has that one's persona."""
    by_name = {member.name: member for member in members}

    def root(member: Member) -> Member:
        return member if member.from_ is None else root(by_name[member.from_])

    return [replace(member, persona=root(member).persona) for member in members]


def _check_groups(members: Sequence[Member], problem: Any) -> None:
    """A name means an agent, or a group of others, or everybody."""
    sizes = Counter(member.view.group for member in members)
    for member in members:
        name, group = member.name, member.view.group
        if ALL in (name, group):
            raise problem(("agents", group), f"{ALL!r} means everybody: call it otherwise")
        if name in sizes and (name != group or sizes[name] > 1):
            raise problem(
                ("agents", group), f"{name!r} is an agent and a group: call one of them otherwise"
            )


def _check_origins(members: Sequence[Member], phases: Sequence[str], problem: Any) -> None:
    """Whoever begins with another's memory joins later than that one."""
    by_name = {member.name: member for member in members}
    for member in members:
        if member.from_ is None or member.joins is None:
            continue
        place = ("agents", member.name)
        if member.joins not in phases:
            raise problem((*place, "joins"), f"no such phase: {nearest(member.joins, phases)}")
        origin = by_name.get(member.from_)
        if origin is None:
            raise problem((*place, "from"), f"no such agent: {nearest(member.from_, by_name)}")
        if origin.joins and phases.index(origin.joins) >= phases.index(member.joins):
            raise problem(
                (*place, "from"),
                f"{origin.name} itself joins at {origin.joins!r}, which is not before "
                f"{member.joins!r}: agents would begin with each other's memory in a circle",
            )
