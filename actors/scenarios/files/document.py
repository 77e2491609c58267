"""YAML as it is read: safely, with the line of every word, what it inherits, and what is set.

    document = read_document(path).with_values(["agents.trader.count=5"])
    words = document.check()

Only plain values are made of a file, never an object. Any thread.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from kvactors.actors.scenarios.files.problems import InvalidScenario, nearest
from kvactors.actors.scenarios.files.scalars import Loader
from kvactors.actors.scenarios.files.schema import ScenarioWords
from kvactors.actors.scenarios.files.templates import Problem
from kvactors.actors.scenarios.files.wording import in_words

__all__ = ["MOST_BYTES", "Document", "read_document"]

# An alias of aliases of aliases is small in a file and without end in memory.
MOST_VALUES = 200_000
MOST_BYTES = 16_000_000
MOST_LEVELS = 50
# Half of a character: it has no UTF-8 to be stored as.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A file's values, those of the files that it inherits from among them. `sources`: each file
    with its nodes, the one that was asked for first."""

    path: Path
    values: dict[str, Any]
    sources: tuple[tuple[Path, yaml.Node], ...]

    def with_values(self, settings: Iterable[str]) -> "Document":
        """With some values set, each as `path.to.it=value`; the items of lists that have a name go
        by it. Raises InvalidScenario."""
        values = self.values
        for setting in settings:
            path, equals, text = setting.partition("=")
            if not equals or not path.strip():
                raise InvalidScenario(
                    f"--set takes path=value, such as seeds=1..3, not {setting!r}"
                )
            value = _made(_composed(text, f"--set {path}"), f"--set {path}")
            values = _with(values, path.strip().split("."), value, setting)
        return Document(self.path, values, self.sources)

    def check(self) -> ScenarioWords:
        """The words, all of them known. Raises InvalidScenario for the first that is not."""
        try:
            return ScenarioWords.model_validate(self.values)
        except ValidationError as error:
            found = error.errors()[0]
            place = tuple(part for part in found["loc"] if part != "[key]")
            raise self.problem(place, in_words(found)) from None

    def problem(self, place: Place, text: str) -> InvalidScenario:
        """The error that something at a `place` has, which `text` says."""
        file, line = self._line(place)
        where = ".".join(str(part) for part in place)
        return InvalidScenario(f"{file}:{line}: {where + ': ' if where else ''}{text}")

    def _line(self, place: Place) -> tuple[Path, int]:
        """Where the deepest part of a place is written."""
        best = (-1, self.path, 1)
        for file, root in self.sources:
            depth, node = _descend(root, place)
            if depth > best[0]:
                best = (depth, file, node.start_mark.line + 1)
        return best[1], best[2]


def read_document(path: Path) -> Document:
    """A scenario file and what it inherits. Raises InvalidScenario, OSError."""
    values: dict[str, Any] = {}
    sources: list[tuple[Path, yaml.Node]] = []
    file, (root, read) = path, _read(path)
    while True:
        sources.append((file, root))
        parent = read.pop("inherits", None)
        values = _merged(_beside(read, file.parent, path.parent), values)
        if parent is None:
            return Document(path, values, tuple(sources))
        here = Document(file, {}, ((file, root),))
        file, root, read = _parent(file, parent, partial(here.problem, ("inherits",)))
        if any(file.resolve() == known.resolve() for known, _ in sources):
            chain = " -> ".join([*(known.name for known, _ in sources), file.name])
            raise InvalidScenario(f"{path}: inherits goes round in a circle: {chain}")


def _beside(read: dict[str, Any], own: Path, folder: Path) -> dict[str, Any]:
    """What a file in the folder `own` says, as one in `folder` would say it: a table stands beside
    the file that names it."""
    agents = read.get("agents")
    if own.resolve() == folder.resolve() or not isinstance(agents, dict):
        return read
    way = os.path.relpath(own.resolve(), folder.resolve())
    moved = {
        name: {**words, "table": os.path.join(way, words["table"])}
        for name, words in agents.items()
        if isinstance(words, dict) and isinstance(words.get("table"), str)
    }
    return {**read, "agents": {**agents, **moved}}


def _parent(file: Path, parent: Any, problem: Problem) -> tuple[Path, yaml.Node, dict[str, Any]]:
    """What a `file` inherits from its `parent`. Raises what `problem` makes of it."""
    if not isinstance(parent, str) or not parent:
        raise problem("it is the path of another scenario file")
    try:
        return file.parent / parent, *_read(file.parent / parent)
    except InvalidScenario:
        raise
    except (OSError, ValueError) as error:
        raise problem(f"{parent!r} cannot be read: {error}") from error


def _read(path: Path) -> tuple[yaml.Node, dict[str, Any]]:
    if (size := path.stat().st_size) > MOST_BYTES:
        most = f"{size:,} bytes, more than {MOST_BYTES:,}: what is long goes into a table"
        raise InvalidScenario(f"{path}: {most}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidScenario(f"{path}: a scenario is UTF-8 text: {error}") from error
    root = _composed(text, str(path))
    if not isinstance(root, yaml.MappingNode):
        raise InvalidScenario(f"{path}:1: a scenario is a mapping of words, such as `name: gossip`")
    return root, _made(root, str(path))


def _composed(text: str, where: str) -> Any:
    """The nodes of a text, each of which can be made; None of an empty one."""
    try:
        root = yaml.compose(text, Loader)
    except yaml.YAMLError as error:
        raise InvalidScenario(_yaml_problem(error, where)) from error
    except RecursionError:
        raise InvalidScenario(f"{where}: more than {MOST_LEVELS} levels deep") from None
    if root is not None:
        _check_nodes(root, where)
    return root


def _made(root: yaml.Node | None, where: str) -> Any:
    """The values of nodes."""
    try:
        return None if root is None else Loader("").construct_document(root)
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidScenario(_yaml_problem(error, where)) from error


def _yaml_problem(error: Exception, where: str) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f":{mark.line + 1}" if mark is not None else ""
    text = getattr(error, "problem", None) or str(error)
    return f"{where}{line}: no YAML: {' '.join(str(text).split())}"


def _check_nodes(root: yaml.Node, where: str) -> None:
    """A word stands once in its mapping, aliases stay small, and texts can be stored."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node, depth: int) -> int:
        if id(node) in sizes:
            return sizes[id(node)]
        line = node.start_mark.line + 1
        if depth > MOST_LEVELS:
            raise InvalidScenario(f"{where}:{line}: more than {MOST_LEVELS} levels deep")
        if isinstance(node, yaml.ScalarNode) and _LONE_SURROGATE.search(node.value):
            raise InvalidScenario(f"{where}:{line}: half a character, {node.value!a:.80}")
        total, seen = 1, set[str]()
        children: Sequence[yaml.Node] = ()
        if isinstance(node, yaml.MappingNode):
            for key, _ in node.value:
                line = key.start_mark.line + 1
                size(key, depth + 1)
                if not isinstance(key, yaml.ScalarNode):
                    raise InvalidScenario(f"{where}:{line}: a word is no list or mapping")
                if key.value in seen and key.value != "<<":
                    raise InvalidScenario(f"{where}:{line}: {key.value} stands here twice")
                seen.add(str(key.value))
            children = [child for _, child in node.value]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        for child in children:
            total += size(child, depth + 1)
        sizes[id(node)] = total
        return total

    if (found := size(root, 0)) > MOST_VALUES:
        raise InvalidScenario(f"{where}: {found:,} values, more than {MOST_VALUES:,}")


def _merged(base: Any, over: Any) -> Any:
    """What `over` says, and what `base` says of all else. Lists are taken whole."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    both = {key: _merged(base[key], over[key]) for key in base.keys() & over.keys()}
    return {key: both.get(key, over.get(key, base.get(key))) for key in {**base, **over}}


def _with(values: Any, path: list[str], value: Any, setting: str) -> Any:
    if not path:
        return value
    first, *rest = path
    if isinstance(values, list):
        names = [
            item.get("name", n) if isinstance(item, dict) else n for n, item in enumerate(values)
        ]
        at = (
            int(first)
            if first.isdecimal()
            else names.index(first)
            if first in names
            else len(names)
        )
        if at >= len(values):
            known = nearest(first, map(str, names))
            raise InvalidScenario(f"--set {setting}: there is no {first!r}: {known}")
        return [_with(v, rest, value, setting) if n == at else v for n, v in enumerate(values)]
    if values is not None and not isinstance(values, dict):
        raise InvalidScenario(f"--set {setting}: {values!r} has no {first!r} in it")
    known_values = values or {}
    return {**known_values, first: _with(known_values.get(first), rest, value, setting)}


def _descend(node: yaml.Node, place: Place) -> tuple[int, yaml.Node]:
    """How deep a place is written below a node, and the node there; of a word, its key."""
    depth = 0
    for part in place:
        if isinstance(node, yaml.MappingNode):
            pairs = {str(key.value): (key, child) for key, child in node.value}
            if str(part) not in pairs:
                break
            key, child = pairs[str(part)]
            if depth + 1 == len(place) or isinstance(child, yaml.ScalarNode):
                return depth + 1, key
            node = child
        elif (
            isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value)
        ):
            node = node.value[part]
        else:
            break
        depth += 1
    return depth, node
