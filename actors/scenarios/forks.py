"""How a run begins as another one did, up to one of its steps. Any thread, one at a time."""

from collections.abc import Iterable
from dataclasses import replace

from kvactors.actors.scenarios.files.cast import Cast
from kvactors.actors.scenarios.files.document import Document
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.schema import ScenarioWords
from kvactors.actors.scenarios.folder import NAME, RunFolder, check_script
from kvactors.actors.scenarios.journal.file import Journal, Record, holds_run
from kvactors.actors.scenarios.journal.reading import read_journal
from kvactors.actors.scenarios.journal.records import Event, place_of
from kvactors.actors.scenarios.part import header_of
from kvactors.actors.scenarios.running.runner import Runner
from kvactors.actors.scenarios.running.script import points

__all__ = ["changed_words", "copy_beginning"]


def changed_words(
    source: RunFolder, settings: Iterable[str]
) -> tuple[ScenarioWords, frozenset[str]]:
    """The words of a run with some of them set, and the agents whose persona is another one then.
    Raises InvalidScenario."""
    document = Document(source.path / NAME, dict(source.source), ()).with_values(settings)
    words = document.check()
    before = {script.point.label: script.cast for script in source.scripts()}
    renewed = set[str]()
    for point in points(words):
        script = check_script(words, point, source.path, document.problem)
        if point.label not in before:
            raise InvalidScenario(f"{source.path} has no run {point.label} to fork")
        renewed |= _renewed(before[point.label], script.cast)
    return words, frozenset(renewed)


def _renewed(before: Cast, now: Cast) -> set[str]:
    """Whose persona is another one; whoever begins with an agent's memory has that one's."""
    return {
        name
        for name, member in before.members.items()
        if now.members.get(name, member).persona != member.persona
    }


def copy_beginning(source: RunFolder, folder: RunFolder, step: int, model: str) -> None:
    """Let the runs of a new `folder`, which goes on with a `model`, begin as those of `source` did,
    up to and without a `step`. Raises InvalidScenario, OSError."""
    for script in folder.scripts():
        label = script.point.label
        path = source.journal(label)
        if not holds_run(path):
            raise InvalidScenario(f"{source.path} has no run {label}")
        header, records = read_journal(path)
        made = replace(
            header_of(folder, script, model),
            begun=header.begun,
            agents=header.agents,
            fork_of=f"{label}@{step}",
        )
        journal = Journal(folder.new_journal(label), made)
        runner = Runner(script, journal.append)
        try:
            runner.replay(_beginning(records, step), exactly=True)
        finally:
            journal.close()
        _check_renewed(runner, folder.renewed, step)
    folder.begin()


def _check_renewed(runner: Runner, renewed: frozenset[str], step: int) -> None:
    """Whoever has another persona has said nothing yet: what it heard is told it again."""
    for lane in runner.lanes.values():
        if lane.answered and lane.member.name in renewed:
            raise InvalidScenario(
                f"the persona of {lane.member.name} is where its memory begins, and at step "
                f"{lane.answered} it has answered as who it was: fork at that step or before, or "
                "begin a run"
            )


def _beginning(records: Iterable[Record], step: int) -> list[Record]:
    """Those before a `step`, in the order of the file, whoever was rounds ahead. A process stands
    behind the restart that it came of."""
    placed: list[tuple[tuple[int, int, int], Record]] = []
    restarted = 0
    for number, record in enumerate(records):
        kind = record.kind if isinstance(record, Event) else ""
        if record.step < step and kind not in ("stop", "end"):
            behind = (restarted, 2, number)
            placed.append((behind if kind == "process" else place_of(record), record))
            restarted = record.step if kind == "restart" else restarted
    return [record for _, record in sorted(placed, key=lambda pair: pair[0])]
