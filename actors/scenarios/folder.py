"""The folder of a run, or of the runs of a sweep: what it was begun with, and where things are.

    scenario.json    the scenario as it was checked, and whose agents it begins with
    tables/          its CSV files, as they were
    runs/LABEL.journal    made as runs.new/, and called so when all the rest is there
    run.lock         who writes there now
    store/           what the agents remember; a run that began as another one has that one's

One thread.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash
from filelock import FileLock, Timeout

from kvactors.actors.scenarios.files.checks import Checks
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.schema import ScenarioWords
from kvactors.actors.scenarios.running.roles import check_behaviours
from kvactors.actors.scenarios.running.script import PLAIN, Point, Script, points
from kvactors.persistence.files.atomic import Files, replace_file, temp_path

__all__ = ["NAME", "RunFolder", "check_script", "source_of"]

VERSION = 1
NAME = "scenario.json"
NEW = "runs.new"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder at `path` with the scenario of these `words`. Its agents are called `tag`LABEL/NAME
    in the store, those they began as `origin`LABEL/NAME; the tag of a fork is None until it first
    runs. The `renewed` began anew, with another persona. What is somebody's own is looked for in
    the `homes`, too. With `lockstep` no round begins before the last one has ended."""

    path: Path
    words: ScenarioWords
    store: Path
    tag: str | None = ""
    origin: str | None = None
    homes: tuple[Path, ...] = ()
    renewed: frozenset[str] = frozenset()
    lockstep: bool = False

    @classmethod
    def create(
        cls,
        path: Path,
        words: ScenarioWords,
        tables: Path,
        *,
        fork_of: "RunFolder | None" = None,
        homes: Iterable[Path] = (),
        renewed: frozenset[str] = frozenset(),
        lockstep: bool = False,
    ) -> "RunFolder":
        """A new one at `path` for the scenario of these `words`, whose CSV files are in the folder
        `tables`, and what is its author's own in the `homes`; with the agents of the one that it is
        a `fork_of`, but for the `renewed`; in `lockstep` or not. Nothing may run before `begin`:
        cut off until then, a folder can be made again. Raises InvalidScenario, OSError."""
        if fork_of is not None and fork_of.tag is None:
            raise InvalidScenario(f"{fork_of.path} has no agents yet: go on with it by --resume")
        _claim(path)
        kept = _in_tables(words)
        found = tuple(home.resolve() for home in homes)
        folder = cls(path, kept, path.resolve() / "store", homes=found)
        if fork_of is not None:
            origin = fork_of.store, None, fork_of.tag, fork_of.homes
            folder = cls(path, kept, *origin, renewed)
        folder = replace(folder, lockstep=lockstep)
        folder.write()
        _copy_tables(words, tables, path)
        (path / NEW).mkdir()
        return folder

    def begin(self) -> None:
        """From now on it can be run. Raises OSError."""
        (self.path / NEW).rename(self.path / "runs")

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """One that is there, and has begun. Raises InvalidScenario, OSError."""
        folder = cls.read(path)
        if not (path / "runs").is_dir():
            raise InvalidScenario(f"{path} was cut off before anything began: begin it again")
        return folder

    @classmethod
    def read(cls, path: Path) -> "RunFolder":
        """One that is there, begun or not. Raises InvalidScenario, OSError."""
        try:
            found = json.loads((path / NAME).read_text(encoding="utf-8"))
            if found["version"] > VERSION:
                raise InvalidScenario(f"{path / NAME} is of a newer version of kvactors")
            return cls(
                path,
                ScenarioWords.model_validate(found["scenario"]),
                (path / found.get("store", ".")).resolve(),
                found["tag"],
                found["origin"],
                tuple((path / home).resolve() for home in found.get("homes", ["."])),
                frozenset(found.get("renewed", ())),
                found.get("lockstep", False),
            )
        except (FileNotFoundError, NotADirectoryError):
            raise InvalidScenario(f"{path} holds no run: there is no {NAME} in it") from None
        except InvalidScenario:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidScenario(f"{path / NAME} cannot be read: {error!r}") from error

    def named(self, known: Iterable[str]) -> "RunFolder":
        """With a tag that no agent in the store, whose `known` ids these are, has, and no other
        fork: one that was cut off may have no agents there yet. Raises OSError."""
        if self.tag is not None:
            return self
        name, taken = self._fork_name(), list(known)
        tags = (f"{name}:{n}" for n in ("", *map("{}:".format, range(2, len(taken) + 3))))
        free = next(tag for tag in tags if not any(id_.startswith(tag) for id_ in taken))
        folder = replace(self, tag=free)
        folder.write()
        return folder

    def _fork_name(self) -> str:
        """What no other folder's fork is called in this store: the folder's name, where it is
        beside the one that has the store, and else with a digest of the way there."""
        path = self.path.resolve()
        name, way = PLAIN.sub("_", path.name)[:40], os.path.relpath(path, self.store.parents[1])
        return name if name == way else f"{name}-{xxhash.xxh32_hexdigest(os.fsencode(way))}"

    def write(self) -> None:
        """Write what it was begun with."""
        store, *homes = (
            os.path.relpath(where, self.path.resolve()) for where in (self.store, *self.homes)
        )
        found = {
            "version": VERSION,
            "store": store,
            "homes": homes,
            "tag": self.tag,
            "origin": self.origin,
            "renewed": sorted(self.renewed),
            "lockstep": self.lockstep,
            "scenario": self.source,
        }
        text = json.dumps(found, indent=1, ensure_ascii=False)
        replace_file(Files(), self.path / NAME, text.encode())

    @property
    def source(self) -> Mapping[str, Any]:
        """The scenario as it was checked: what is as by default is left out."""
        return source_of(self.words)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within, nobody else writes there. Raises InvalidScenario if somebody does, OSError."""
        lock = _locked(self.path)
        try:
            yield
        finally:
            lock.release()

    def journal(self, label: str) -> Path:
        """The journal of a run."""
        return self.path / "runs" / f"{label}.journal"

    def new_journal(self, label: str) -> Path:
        """The journal of a run before `begin`."""
        return self.path / NEW / f"{label}.journal"

    def scripts(self) -> list[Script]:
        """What is to be run, each checked. Raises InvalidScenario, OSError."""

        def problem(place: tuple[str | int, ...], text: str) -> InvalidScenario:
            return InvalidScenario(f"{self.path}: {'.'.join(map(str, place))}: {text}")

        return [check_script(self.words, point, self.path, problem) for point in points(self.words)]


def check_script(words: ScenarioWords, point: Point, folder: Path, problem: Any) -> Script:
    """The script of `words` at a `point`, all of it checked; tables are in the `folder`, and
    `problem` makes the error of a place. Raises InvalidScenario, OSError."""
    script = Script.of(words, point, folder, problem)
    Checks(words, script.cast, problem).run()
    check_behaviours(script.cast, problem)
    return script


def source_of(words: ScenarioWords) -> Mapping[str, Any]:
    """Words as a file would have them."""
    found: dict[str, Any] = words.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return found


def _claim(path: Path) -> None:
    """Make the folder at `path`, where nothing is, or what was cut off before anything ran. Raises
    InvalidScenario, OSError."""
    if path.is_dir() or not path.exists():
        path.mkdir(parents=True, exist_ok=True)
        found = {each.name for each in path.iterdir()} - {temp_path(path / NAME).name}
    else:
        found = {path.name}
    left = {NAME, NEW, "tables", "runs", "run.lock", "store"}
    ran = (path / "runs").is_dir() and any((path / "runs").iterdir())
    if found and not (NAME in found and found <= left and _is_ours(path) and not ran):
        raise InvalidScenario(
            f"{path} holds something: go on with a run by --resume, or choose another --out"
        )
    if "run.lock" in found:
        _locked(path).release()
    for name in (NEW, "tables", "runs"):
        shutil.rmtree(path / name, ignore_errors=True)


def _locked(path: Path) -> FileLock:
    """The lock of the folder at `path`, taken. Raises InvalidScenario if somebody has it."""
    lock = FileLock(path / "run.lock", blocking=False, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise InvalidScenario(
            f"{path} is being run by another process, or twice in this one"
        ) from None
    return lock


def _is_ours(path: Path) -> bool:
    try:
        RunFolder.read(path)
    except InvalidScenario:
        return False
    return True


def _copied(group: str) -> str:
    """Where the table of a group of agents is kept."""
    return f"tables/{group}.csv"


def _in_tables(words: ScenarioWords) -> ScenarioWords:
    """The words with the tables that are copied into a folder."""
    agents = {
        group: agent.model_copy(update={"table": _copied(group)}) if agent.table else agent
        for group, agent in words.agents.items()
    }
    return words.model_copy(update={"agents": agents})


def _copy_tables(words: ScenarioWords, tables: Path, path: Path) -> None:
    for group, agent in words.agents.items():
        if agent.table:
            (path / "tables").mkdir(exist_ok=True)
            shutil.copyfile(tables / agent.table, path / _copied(group))
