"""What a simulation costs beside its turns, and what it saves.

    python -m kvactors.bench.experiments.simulations [--quick] [--plot out.png]

Regime: the model that is shipped, greedy, on an idle machine. Replay: the command runs a journal of
10,000 turns, each heard by one, again without a model, byte for byte, its start and its results
included; not as the first command after an installation, which compiles all modules besides. Fork:
a run of 200 turns goes on from its middle. Sweep: twenty seeds whose agents begin with the same 600
tokens, at once and each by itself. Bytes: the journal, and all results but pictures, beyond prompts
and answers.

Out of order: 1,000 agents of five turns, each of whom hears one neighbour, against the same
scenario in lockstep, which is how simulations elsewhere wait for each time step. A day has 100 of
these, as a simulation's clock is finer than what its people do: in each a twentieth of the agents
says something, one answer in seventeen 64 tokens long and the others 8. Lockstep then waits for the
longest answer with an ever emptier batch; out of order only the neighbour does. The first line is
of a model whose forward takes 30 ms whatever its rows are, as that of a GPU does which reads all
weights for it, with 64 turns at once. The others are of the same model as it is: on two cores each
row costs what it costs, whoever shares its step, so that a fuller batch gains nothing. In the last
there is little to gain anywhere: all agents speak in each of five time steps. Answers have exactly
these lengths: a small random model ends no turn by itself (the shipped one says six tokens).
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.folder import RunFolder
from kvactors.actors.scenarios.journal.file import Journal
from kvactors.actors.scenarios.journal.reading import read_journal
from kvactors.actors.scenarios.journal.records import Event, Header, Heard, Run, Turn
from kvactors.actors.scenarios.scenario import Scenario, fork_run
from kvactors.bench.experiments.experiment import Row, begin, figure
from kvactors.bench.random_model import endless_llama, paced_llama

__all__ = ["main"]

CROWD = """\
name: crowd
agents: {person: {count: AGENTS}}
sampling: {max_tokens: 4}
channels:
  street: {listeners: "['person-%d' % (speaker.number % AGENTS + 1)]"}
phases:
  - name: talk
    order: together
    rounds: 5
    channel: street
    steps:
      - say: "What does the candle cost?"
        when: (agent.number + round) % 16 > 0
      - say: "What does the candle cost?"
        when: (agent.number + round) % 16 == 0
        sampling: {max_tokens: 64}
"""
CITY = """\
name: city
engine: {max_batch: 64}
agents: {person: {count: AGENTS}}
channels:
  street: {listeners: "['person-%d' % (speaker.number % AGENTS + 1)]"}
phases:
  - name: day
    order: rule
    rule: "agents[7 * round % 20::20] | map(attribute='name') | list"
    rounds: ROUNDS
    channel: street
    steps:
      - say: "What does the candle cost?"
        when: (agent.number + round) % 17 > 0
        sampling: {max_tokens: 8}
      - say: "What does the candle cost?"
        when: (agent.number + round) % 17 == 0
        sampling: {max_tokens: 64}
"""
TALK = """\
name: talk
agents: {anna: {persona: "PERSONA"}, ben: {persona: "PERSONA"}}
sampling: {max_tokens: 8}
phases:
  - name: talk
    rounds: ROUNDS
    steps:
      - say: "What does the candle cost?"
"""
SHAPE = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 32_768,
}
SENTENCE = "The code of the garage is 4711. "


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    asked = begin("simulations", __doc__, arguments, None, "default")
    few, agents = asked.quick, 8 if asked.quick else 1000
    with TemporaryDirectory() as folder:
        root = Path(folder)
        talk = _scenario(root, TALK, ROUNDS=3 if few else 100, PERSONA="You sell candles.")
        [run] = talk.run(out=root / "talk")
        rows = [
            _replay(root, 20 if few else 10_000),
            *_bytes(run, root / "talk"),
            _fork(run, root),
            _out_of_order(root, CITY, agents, "a few at a time, steps of 30 ms", "<= 0.6", _paced),
            _out_of_order(root, CITY, agents, "a few at a time", "<= 1"),
            _out_of_order(root, CROWD, agents, "all at a time", "<= 1"),
            _sweep(root, 2 if few else 20),
        ]
    asked.show("simulations", rows)
    if asked.plot is not None:
        figure(asked.plot, lambda axes: _draw(axes, rows))
    asked.end(rows)


def _scenario(root: Path, text: str, *settings: str, **words: object) -> Scenario:
    for word, value in words.items():
        text = text.replace(word, str(value))
    path = root / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return Scenario.load(path, settings=settings)


def _row(what: str, value: float, unit: str, target: str) -> Row:
    return {"what": what, "value": round(value, 3), "unit": unit, "target": target}


def _replay(root: Path, turns: int) -> Row:
    """A run of so many turns, each heard by one, as it would have been recorded, and then replayed
    as a person does: the command, its start, its tables and its page."""
    scenario = _scenario(root, CROWD, AGENTS=turns // 5)
    recorded, out = root / "recorded", root / "again"
    folder = RunFolder.create(recorded, scenario.words, scenario.folder)
    folder.begin()
    path = folder.journal("seed-0")
    names = tuple(f"person-{number}" for number in range(1, turns // 5 + 1))
    journal = Journal(path, Header("crowd", "seed-0", 0, {}, "default", names, ("talk",), 0.0))
    for record in _recorded(turns // 5):
        journal.append(record)
    journal.append(Event(turns * 4 + 1, "end", "", 0.0))
    journal.close()
    command = [sys.executable, "-P", "-c", "from kvactors.actors.cli import main; main()", "run"]
    # As where it is installed, and has run before: modules are compiled once.
    usual = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def replayed(what: Path, out: Path) -> float:
        begun = time.perf_counter()
        ran = [*command, str(what), "--replay", "--out", str(out)]
        subprocess.run(ran, check=True, capture_output=True, env=usual)
        return time.perf_counter() - begun

    replayed(root / "talk", root / "first")
    seconds = replayed(recorded, out)
    assert RunFolder.open(out).journal("seed-0").read_bytes() == path.read_bytes()
    return _row(f"--replay of {turns:,} turns, heard by one", seconds, "s", "<= 10")


def _recorded(agents: int) -> Iterator[Turn | Heard]:
    """What the crowd says, and who hears it, in the order of its walk."""
    tokens, seconds = (40, 30, 10, 8), (1.0, 0.01, 0.0, 0.02, 0.03, 0.09)
    prompt, answer, first = "What does the candle cost?", "The candle costs 90.", 0
    for round_ in range(1, 6):
        for long in (False, True):
            for n in (spoke := [n for n in range(1, agents + 1) if _long(n, round_) == long]):
                name, heard_by = f"person-{n}", (f"person-{n % agents + 1}",)
                where = (first + n, "say", name, "talk", round_, "say", "", prompt, answer)
                yield Turn(*where, None, heard_by, (), "hot", "stop", *tokens, *seconds, round_)  # type: ignore[arg-type]
            for n in spoke:
                name = f"person-{n % agents + 1}"
                yield Heard(first + agents + n, first + n, name, "talk", round_, "", 9, round_)
            first += 2 * agents


def _long(number: int, round_: int) -> bool:
    """Whether an answer of the crowd is a long one."""
    return (number + round_) % 16 == 0


def _bytes(run: Run, folder: Path) -> list[Row]:
    """Bytes of a turn that are not its text: in the journal, and in all that the run leaves but the
    agents' store and pictures. Journal and page have the text; turns.csv.gz is packed."""
    texts = sum(len((turn.prompt + turn.answer).encode()) for turn in run.turns)
    journal = folder / "runs/seed-0.journal"
    header = len(str(read_journal(journal)[0]))
    page = (folder / "report.html").read_text(encoding="utf-8")
    drawn = sum(len(svg.encode()) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    left = [path for path in folder.iterdir() if path.is_file()]
    whole = journal.stat().st_size + sum(path.stat().st_size for path in left) - drawn
    beyond = {
        "journal of a turn": journal.stat().st_size - header - texts,
        "journal and results of a turn": whole - 2 * texts,
    }
    return [
        _row(f"{what}, heard by one", size / len(run.turns), "bytes", "<= 300")
        for what, size in beyond.items()
    ]


def _fork(run: Run, root: Path) -> Row:
    """Tokens that an agent prefills behind a fork, in its turns and of what it hears, beyond what
    it did there without the fork: of the one with the most."""
    middle = run.turns[len(run.turns) // 2].step
    [fork] = fork_run(root / "talk", middle, root / "fork")
    without, behind = _prefilled_behind(run, middle), _prefilled_behind(fork, middle)
    assert without.keys() == behind.keys()
    more = max(behind[agent] - without[agent] for agent in behind)
    return _row("fork at the middle, more prefilled", more, "tokens an agent", "<= 256")


def _prefilled_behind(run: Run, step: int) -> Counter[str]:
    """Tokens that each agent prefilled from a step on."""
    prefilled = Counter[str]()
    records: list[Turn | Heard] = [*run.turns, *run.heard]
    for record in records:
        if record.step >= step:
            prefilled[record.agent] += record.prefilled_tokens
    return prefilled


def _endless() -> Any:
    """Steps take milliseconds, and answers as many of them as they may."""
    return endless_llama(**SHAPE)


def _paced() -> Any:
    """The same, and steps take 30."""
    return paced_llama(0.03, **SHAPE)


def _out_of_order(
    root: Path, text: str, agents: int, how: str, target: str, model: Any = _endless
) -> Row:
    """Seconds of the scenario `text` with so many `agents` as a part of those in lockstep; `how`
    they speak in it, and the `target`; of a `model`."""
    seconds = {}
    scenario = _scenario(root, text, AGENTS=agents, ROUNDS=max(5, agents // 10))
    options = scenario.words.engine.model_dump(exclude_unset=True)
    for lockstep in (True, False):
        out, store = root / "crowd", root / "crowd-store"
        with AgentSystem(model, store, **options) as system:
            [run] = scenario.run(system, out=out, lockstep=lockstep)
        process = next(event.at for event in run.events if event.kind == "process")
        seconds[lockstep] = next(e.at for e in run.events if e.kind == "end") - process
        shutil.rmtree(out)
        shutil.rmtree(store)
    ratio = seconds[False] / seconds[True]
    return _row(f"{agents:,} agents, {how}: out of order / lockstep", ratio, "of the time", target)


def _sweep(root: Path, seeds: int) -> Row:
    words = {"ROUNDS": 1, "PERSONA": SENTENCE * 60}
    together = _prefilled(_scenario(root, TALK, f"seeds=1..{seeds}", **words), root / "sweep")
    alone = sum(
        _prefilled(_scenario(root, TALK, f"seeds={seed}", **words), root / f"alone-{seed}")
        for seed in range(1, seeds + 1)
    )
    return _row(f"sweep of {seeds} seeds / one by one", together / alone, "of prefilled", "<= 0.5")


def _prefilled(scenario: Scenario, out: Path) -> int:
    runs = scenario.run(out=out)
    said = sum(turn.prefilled_tokens for run in runs for turn in run.turns)
    return said + sum(heard.prefilled_tokens for run in runs for heard in run.heard)


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    """What was found as a part of what is aimed at."""
    parts = [row["value"] / float(row["target"].removeprefix("<= ")) for row in rows]
    axes.barh([row["what"] for row in rows], parts)
    axes.axvline(1, color="black")
    axes.set(xlabel="part of the target; less is better")


if __name__ == "__main__":
    main()
