"""Scenario: a file that says who takes part and what they do, and its runs.

    scenario = Scenario.load("dilemma.yaml", settings=["seeds=1..3"])
    runs = scenario.run(out="results")

What a run may raise beside what is said: whatever AgentSystem raises. Any thread, one at a time.
"""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from kvactors.actors.scenarios.diff import Difference, differences
from kvactors.actors.scenarios.files.document import read_document
from kvactors.actors.scenarios.files.own import look_in
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.schema import ScenarioWords, json_schema
from kvactors.actors.scenarios.folder import RunFolder, check_script
from kvactors.actors.scenarios.forks import changed_words, copy_beginning
from kvactors.actors.scenarios.journal.records import Run
from kvactors.actors.scenarios.part import (
    Watch,
    follow,
    read_runs,
    replay_runs,
    run_part,
    unwatched,
)
from kvactors.actors.scenarios.results.write import write_results
from kvactors.actors.scenarios.running.clustered import ClusterSystem
from kvactors.actors.scenarios.running.script import points
from kvactors.actors.system.system import AgentSystem
from kvactors.core.errors import KvactorsError

__all__ = [
    "ClusterSystem",
    "Scenario",
    "compare_runs",
    "fork_run",
    "go_on",
    "json_schema",
    "part_in_folder",
    "replay_run",
    "resume_run",
]

RESTART = 75
# Seconds between looks at what another process has added to the journals.
LOOKS = 0.5
# Ctrl-C reaches this process too: what becomes of it is for the one that began it to say.
_PART = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
import sys
from kvactors.actors.scenarios.scenario import part_in_folder
sys.exit(part_in_folder(sys.argv[1]))
"""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario that was read and checked: `words` as the schema has them, `folder` where its
    tables are, `homes` where what is its author's own may be: beside each of its files."""

    words: ScenarioWords
    folder: Path
    homes: tuple[Path, ...] = ()

    @classmethod
    def load(
        cls, path: str | Path, *, settings: Iterable[str] = (), model: str | None = None
    ) -> "Scenario":
        """The scenario of the file at `path`, with `settings` such as "agents.trader.count=5" and
        another `model`. Everything that it will run is checked. Raises InvalidScenario, OSError."""
        path = Path(path)
        changed = [*settings, *([] if model is None else [f"model={model}"])]
        document = read_document(path).with_values(changed)
        homes = tuple(dict.fromkeys(file.parent for file, _ in document.sources))
        look_in(homes)
        words = document.check()
        for point in points(words):
            check_script(words, point, path.parent, document.problem)
        return cls(words, path.parent, homes)

    def run(
        self,
        system: AgentSystem | ClusterSystem | None = None,
        *,
        out: str | Path,
        lockstep: bool = False,
        watch: Watch = unwatched,
    ) -> list[Run]:
        """Run all of it into a new folder `out`, with a `system` that runs, or without one with its
        own; `lockstep`: a round begins when the last one has ended. `watch` is told of each record.
        The results are written, and given back. Raises InvalidScenario, KvactorsError, OSError;
        what was done until then is kept, and `resume_run` goes on."""
        look_in(self.homes)  # Another may have been loaded since.
        _check_own(self.words, system)
        folder = RunFolder.create(
            Path(out), self.words, self.folder, homes=self.homes, lockstep=lockstep
        )
        folder.begin()
        return go_on(folder, system, watch=watch)


def resume_run(
    out: str | Path,
    system: AgentSystem | ClusterSystem | None = None,
    *,
    lockstep: bool = False,
    watch: Watch = unwatched,
) -> list[Run]:
    """Go on with the runs of the folder `out` from where they were cut off, and tell `watch`; with
    the `system` they were begun with, if they were, and in lockstep, if they were: with `lockstep`
    that is required. What has ended is not run again."""
    folder = _open(out)
    if lockstep and not folder.lockstep:
        raise InvalidScenario(
            f"{out} was not begun in lockstep, and some of its agents may be rounds ahead: go on "
            "without it, or begin another run"
        )
    return go_on(folder, system, watch=watch)


def replay_run(run: str | Path, out: str | Path) -> list[Run]:
    """Run a folder's `run` again on what its journals have, into the new folder `out`: without a
    model, the same journals byte for byte. Raises InvalidScenario, OSError."""
    source = _open(run)
    folder = RunFolder.create(
        Path(out), source.words, source.path, homes=source.homes, lockstep=source.lockstep
    )
    replay_runs(source, folder)
    return _results(folder)


def fork_run(
    run: str | Path,
    step: int,
    out: str | Path,
    *,
    settings: Iterable[str] = (),
    system: AgentSystem | ClusterSystem | None = None,
    lockstep: bool = False,
    watch: Watch = unwatched,
) -> list[Run]:
    """Go on otherwise from a `step` of the runs in the folder `run`, into a new folder `out`, with
    `settings` that concern what comes then. The agents begin with the memory that they had, in the
    same store, and the first run's stay as they are; who has another persona, and has answered
    nothing before that step, is told again what it heard. `system`, `lockstep` and
    `watch` as in `Scenario.run`. Raises InvalidScenario, KvactorsError, OSError."""
    source = _open(run)
    words, renewed = changed_words(source, settings)
    _check_own(words, system)
    folder = RunFolder.create(
        Path(out), words, source.path, fork_of=source, renewed=renewed, lockstep=lockstep
    )
    try:
        copy_beginning(source, folder, step, words.model if system is None else system.info.name)
    except InvalidScenario:
        shutil.rmtree(folder.path)
        raise
    return go_on(folder, system, watch=watch)


def compare_runs(left: str | Path, right: str | Path) -> dict[str, list[Difference]]:
    """Where the runs of two folders part, by their labels, and which of them only one has. Where
    each has one, these are compared, whatever they are called. Raises InvalidInput, OSError."""
    ours, theirs = (
        {run.header.label: run for run in read_runs(_open(path))} for path in (left, right)
    )
    if len(ours) == len(theirs) == 1 and ours.keys() != theirs.keys():
        [one], [other] = ours.values(), theirs.values()
        return {f"{one.header.label} | {other.header.label}": list(differences(one, other))}
    labels = dict.fromkeys([*ours, *theirs])
    if not labels:
        raise InvalidScenario(f"neither {left} nor {right} has a run that has begun")
    return {label: list(differences(ours.get(label), theirs.get(label))) for label in labels}


def go_on(
    folder: RunFolder,
    system: AgentSystem | ClusterSystem | None = None,
    *,
    watch: Watch = unwatched,
) -> list[Run]:
    """Run what is left in a `folder`, in this process and in others where it says so; `system` and
    `watch` as in `Scenario.run`."""
    _check_own(folder.words, system)
    with folder.held():
        pass  # Where somebody else runs it, nothing is loaded, nor written over their results.
    try:
        if system is not None:
            run_part(folder, system, watch=watch)
            return _results(folder)
        with ExitStack() as stack:
            with folder.held():  # Nobody begins anew what is only being loaded.
                own = stack.enter_context(_system(folder))
            state = run_part(folder, own, watch=watch)
        while state == "restart":
            state = _in_another_process(folder, watch)
    except BaseException:
        with suppress(Exception):  # What ended the run is what is told.
            _results(folder)
        raise
    return _results(folder)


def _check_own(words: ScenarioWords, system: AgentSystem | ClusterSystem | None) -> None:
    """Raise InvalidScenario for what cannot be done with somebody's own `system`."""
    if isinstance(system, ClusterSystem):
        system.check(words)
    many = next(itertools.islice(points(words), 1, None), None) is not None
    for phase in words.phases if system is not None else ():
        if phase.restart:
            what = "restarts the process, which has your system"
        elif phase.swap_model and many:
            what = "swaps the model of your system, and several runs begin with its own"
        else:
            continue
        raise InvalidScenario(f"phase {phase.name!r} {what}: leave the system out")


def part_in_folder(path: str) -> int:
    """What a process that takes up the runs of the folder at `path` does; its status. It is killed
    when its standard input ends, which ends with whoever began it. Raises SystemExit, which says
    what ended the runs."""
    threading.Thread(target=_die_with_input, daemon=True).start()
    try:
        folder = _open(path)
        with _system(folder) as system:
            return RESTART if run_part(folder, system) == "restart" else 0
    except (KvactorsError, OSError) as error:
        raise SystemExit(f"error: {error}") from error


def _die_with_input() -> None:
    # A reader of sys.stdin would hold its lock when Python ends.
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _open(path: str | Path) -> RunFolder:
    folder = RunFolder.open(Path(path))
    look_in(folder.homes)
    return folder


def _in_another_process(folder: RunFolder, watch: Watch) -> str:
    # -P: a directory named kvactors in the working directory is not this package.
    command = [sys.executable, "-P", "-c", _PART, str(folder.path)]
    # Own metrics are found where this process finds them.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    tell_new = follow(folder, watch)
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as process:
        try:
            while (status := _ended(process)) is None:
                tell_new()
        except BaseException:
            process.kill()
            raise
    tell_new()
    if status not in (0, RESTART):
        raise InvalidScenario(
            f"the process that went on with {folder.path} ended with status {status}; "
            "--resume goes on from there"
        )
    return "restart" if status == RESTART else "end"


def _ended(process: "subprocess.Popen[bytes]") -> int | None:
    """The status of a process; None if it goes on for a while."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(LOOKS)
    return None


def _system(folder: RunFolder) -> AgentSystem:
    engine = folder.words.engine.model_dump(exclude_unset=True)
    return AgentSystem(folder.words.model, folder.store, **engine)


def _results(folder: RunFolder) -> list[Run]:
    runs = read_runs(folder)
    write_results(runs, folder.path)
    return runs
