"""One process's part of the runs of a folder: from where their journals end to the end, or to a
restart. One thread, which waits for the system.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.folder import RunFolder, source_of
from kvactors.actors.scenarios.journal.file import Journal, Record, holds_run, read_frames
from kvactors.actors.scenarios.journal.reading import read_journal, run_of
from kvactors.actors.scenarios.journal.records import Event, Header, Run
from kvactors.actors.scenarios.metrics import with_own
from kvactors.actors.scenarios.results.measure import measure
from kvactors.actors.scenarios.running.clustered import ClusterSystem
from kvactors.actors.scenarios.running.live import LiveAgents, World
from kvactors.actors.scenarios.running.runner import Runner
from kvactors.actors.scenarios.running.script import Script
from kvactors.actors.system.system import AgentSystem

__all__ = ["Watch", "follow", "header_of", "read_runs", "replay_runs", "run_part", "unwatched"]

# Runs of a sweep that go on at once: each holds a file open, and its agents.
AT_ONCE = 64
# Told of each record, and how many turns there will be at most.
Watch = Callable[[int, Record], object]


def unwatched(most_turns: int, record: Record) -> None:
    """Nobody watches."""


@dataclass(eq=False, slots=True)
class _Running:
    """A run on its way. `wrong` is what of its file cannot be run, once it is known."""

    runner: Runner
    journal: Journal
    wrong: InvalidScenario | None = None

    @property
    def over(self) -> bool:
        """Whether nothing of it is begun any more."""
        return self.wrong is not None or bool(self.runner.ended)

    def advance(self, go_on: Callable[[], None]) -> None:
        """Let it `go_on`. What is wrong with it is no other run's end."""
        if self.wrong is None:
            try:
                go_on()
            except InvalidScenario as error:
                label = self.runner.script.point.label
                self.wrong = InvalidScenario(f"{label} has not ended: {error}")


def follow(folder: RunFolder, watch: Watch) -> Callable[[], None]:
    """What is returned tells `watch` of the records that another process has added to the journals
    of a `folder`, since now or since it was last called."""
    scripts = folder.scripts()
    most = sum(script.most_turns() for script in scripts)
    told = {folder.journal(script.point.label): 0 for script in scripts}

    def news() -> list[Record]:
        found: list[Record] = []
        for path in filter(holds_run, told):
            new = list(read_frames(path, behind=told[path]))
            told[path] += len(new)
            found += [record for record in new if not isinstance(record, Header)]
        return found

    def tell() -> None:
        for record in news():
            watch(most, record)

    news()
    return tell


def run_part(
    folder: RunFolder, system: AgentSystem | ClusterSystem, *, watch: Watch = unwatched
) -> str:
    """Run what is left of the runs of a `folder` with the agents of a `system` that runs: "end", or
    "restart" where another process is to go on. `watch` is told of each record. Raises
    InvalidScenario, KvactorsError, OSError; what was done until then is kept."""
    with folder.held():
        return _run_part(folder, system, watch)


def _run_part(folder: RunFolder, system: AgentSystem | ClusterSystem, watch: Watch) -> str:
    folder = folder.named(known.agent_id for known in system.known_agents())
    scripts = folder.scripts()
    most = sum(script.most_turns() for script in scripts)
    part = _Part(folder, World(system), lambda record: watch(most, record))
    part.check(scripts)
    wrong: list[InvalidScenario] = []
    # What concerns the system concerns every run in it.
    alone = any(phase.restart or phase.swap_model for phase in folder.words.phases)
    many = 1 if alone else AT_ONCE
    for first in range(0, len(scripts), many):
        runs = part.run(scripts[first : first + many])
        if any(run.runner.ended == "restart" for run in runs):
            return "restart"
        wrong += [run.wrong for run in runs if run.wrong is not None]
    if wrong:
        more = f" (and {len(wrong) - 1:,} runs more)" if wrong[1:] else ""
        raise InvalidScenario(f"{wrong[0]}{more}") from wrong[0]
    return "end"


class _Part:
    """Runs of a `folder` in a `world`; `watch` is told of each of their records."""

    def __init__(
        self,
        folder: RunFolder,
        world: World,
        watch: Callable[[Record], object],
    ) -> None:
        self._folder = folder
        self._world = world
        self._watch = watch
        self._clock = _clock(folder)

    def check(self, scripts: Sequence[Script]) -> None:
        """Raise what these may not begin for. It is before any journal is there: what has one has
        begun, and its agents are its own."""
        for script in scripts:
            self._world.require_room(script)
        new = [s for s in scripts if not holds_run(self._folder.journal(s.point.label))]
        self._world.require_new(map(self._prefix, new))

    def run(self, scripts: Sequence[Script]) -> list[_Running]:
        """Run these at once, until each is over."""
        with ExitStack() as stack:
            runs = [self._begin(script, stack) for script in scripts]
            while going := [run for run in runs if not run.over]:
                assert any(run.runner.flying for run in going), "a run waits for nothing"
                for run in going:
                    run.journal.sync()
                self._world.wait()
            for run in runs:
                run.journal.sync()
        return runs

    def _begin(self, script: Script, stack: ExitStack) -> _Running:
        path = self._folder.journal(script.point.label)
        if not holds_run(path):
            self._world.load(None)
            path.unlink(missing_ok=True)
            made = Journal(path, header_of(self._folder, script, self._world.system.info.name))
            made.close()
        header, records = read_journal(path)
        journal = Journal(path)
        stack.callback(journal.close)
        runner = Runner(script, self._keeper(journal, records), lockstep=self._folder.lockstep)
        run = _Running(runner, journal)
        run.advance(lambda: runner.replay(records))
        if run.wrong is not None or runner.ended == "end":
            return run
        origin = self._folder.origin
        agents = LiveAgents(
            self._world,
            script,
            lambda step, outcome: run.advance(lambda: runner.take(step, outcome)),
            prefix=self._prefix(script),
            origin=None if origin is None else f"{origin}{script.point.label}",
            renewed=self._folder.renewed,
            clock=lambda: self._clock(header.begun),
        )
        behind = 1 + max((record.step for record in records), default=0)
        taken_up = Event(behind, "process", "", self._clock(header.begun)[0])
        stack.callback(agents.abandon)
        journal.append(taken_up)
        self._watch(taken_up)
        run.advance(lambda: runner.go_on(agents))
        return run

    def _prefix(self, script: Script) -> str:
        return f"{self._folder.tag}{script.point.label}"

    def _keeper(self, journal: Journal, records: Sequence[Record]) -> Callable[[Record], None]:
        """Keeps the records that come behind those."""
        past = len(records)

        def keep(record: Record) -> None:
            nonlocal past
            past -= 1
            if past < 0:
                journal.append(record)
            self._watch(record)

        return keep


def _clock(folder: RunFolder) -> Callable[[float], tuple[float, float]]:
    """Seconds since a moment, and since this part began; none pass in a deterministic run."""
    if folder.words.engine.deterministic:
        return lambda _: (0.0, 0.0)
    began, wall = time.monotonic(), time.time()
    return lambda since: (
        wall - since + time.monotonic() - began,
        time.monotonic() - began,
    )


def header_of(folder: RunFolder, script: Script, model: str) -> Header:
    """The header of a `script` of a `folder` that begins now with a `model`."""
    words, point = folder.words, script.point
    return Header(
        scenario=words.name,
        label=point.label,
        seed=point.seed,
        parameters=dict(point.parameters),
        model=model,
        agents=tuple(script.cast.members),
        phases=tuple(phase.name for phase in words.phases),
        begun=0.0 if words.engine.deterministic else round(time.time(), 3),
        settings=words.engine.model_dump(exclude_unset=True),
        source=source_of(words),
    )


def replay_runs(source: RunFolder, folder: RunFolder) -> None:
    """Run again what the journals of `source` have, without a model, into journals of a new
    `folder`: the same bytes. Raises InvalidScenario where the scenario says otherwise, OSError."""
    for script in folder.scripts():
        path = source.journal(script.point.label)
        if not holds_run(path):
            continue
        header, records = read_journal(path)
        journal = Journal(folder.new_journal(script.point.label), header)
        try:
            # How far it was laid out when a step failed is in the numbers of its end.
            Runner(script, journal.append, lockstep=source.lockstep).replay(records)
        finally:
            journal.close()
    folder.begin()


def read_runs(folder: RunFolder) -> list[Run]:
    """The runs of a folder that have begun, with their metrics. Raises InvalidInput, OSError."""
    runs = []
    for script in folder.scripts():
        path = folder.journal(script.point.label)
        if holds_run(path):
            run = run_of(*read_journal(path))
            run = replace(run, metrics=measure(run.turns, run.heard, run.failures))
            for name in folder.words.metrics:
                run = with_own(name, run, folder.homes)
            runs.append(run)
    return runs
