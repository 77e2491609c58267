"""Five agents of 3,500 tokens after a restart: when all have answered, and each turn's time.

    python -m kvactors.bench.experiments.recovery [--quick] [--model M] [--plot out.png]

Regime: agents remember a prompt each, then the process ends. A new one asks one after the other, 8
tokens a question, 64 an answer, three times [write-up, 5.4]. From the disk: what kvactors does,
files out of the page cache where the system can drop them. From the ledger: kvactors with the KV
deleted. mlx-lm: its process has the text of all turns and prefills all of it in each. Recovered is
the sum of the agents' times to a first token in the first turn; a turn is the mean of the agents.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

from kvactors.bench.disk import drop_from_cache
from kvactors.bench.experiments.experiment import Experiment, Row, begin, figure
from kvactors.bench.experiments.uncached import Turn, uncached
from kvactors.bench.peer_process import in_another_process, in_its_own_process
from kvactors.bench.setup import TABLE, Setup, answer

__all__ = ["main"]

AGENTS, CONTEXT, TURNS, ASKED, DECODED = 5, 3500, 3, 8, 64
# Turn by turn, one of each agent.
Life = list[list[Turn]]


@dataclass(frozen=True, slots=True)
class Work:
    """What every agent remembers, what each is asked in each turn, and tokens of an answer."""

    source: Callable[[], Any]
    contexts: list[list[int]]
    questions: list[list[int]]
    decoded: int

    @property
    def setup(self) -> Setup:
        """For a system in the process that was given this."""
        return Setup(TABLE, self.source)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables and a JSON line, draw if asked to."""
    run = begin("recovery", __doc__, arguments)
    setup, scale = run.setup, run.setup.scale
    contexts = [setup.prompt(scale.tokens(CONTEXT), n) for n in range(scale.number(AGENTS))]
    questions = [setup.prompt(ASKED, 100 + turn) for turn in range(TURNS)]
    work = Work(setup.source, contexts, questions, min(DECODED, 2 * scale.decoded))
    with TemporaryDirectory(prefix="kvactors-bench-") as folder:
        lives = _lives(run, work, Path(folder))
    rows = [_row(how, found) for how, found in lives.items()]
    run.show(f"{len(contexts)} agents of {len(contexts[0])} tokens after a restart.", rows)
    if run.plot is not None:
        figure(run.plot, lambda axes: _draw(axes, rows))
    run.end(rows, agents=len(contexts), tokens=len(contexts[0]))


def _lives(run: Experiment, work: Work, folder: Path) -> dict[str, list[Life]]:
    """What each way gave, as often as the scale asks for, in turns."""
    with in_another_process(_remembering, work, folder / "store") as remember:
        remember()
    lives: dict[str, list[Life]] = {"from the disk": [], "from the ledger": [], "mlx-lm": []}
    with in_its_own_process(work.source, _prefilled_each_turn, work) as theirs:
        for _ in range(run.setup.scale.runs):
            lives["from the disk"].append(_restart(work, folder, "warm"))
            lives["from the ledger"].append(_restart(work, folder, "cold"))
            lives["mlx-lm"].append(theirs())
    return lives


def _restart(work: Work, folder: Path, state: str) -> Life:
    """In a new process, over a copy of the store, or of its ledgers alone."""
    part, copy = ("." if state == "warm" else "agents"), folder / "copy"
    shutil.copytree(folder / "store" / part, copy / part)
    for path in copy.rglob("*.*"):
        drop_from_cache(path)
    with in_another_process(_asking, work, copy, state) as ask:
        life: Life = ask()
    shutil.rmtree(copy)
    return life


def _remembering(work: Work, store: Path) -> Callable[[], None]:
    def remember() -> None:
        with work.setup.system(store=store) as system:
            for number, context in enumerate(work.contexts):
                answer(system.spawn(f"agent {number}"), context).cached.get()

    return remember


def _asking(work: Work, store: Path, state: str) -> Callable[[], Life]:
    def ask() -> Life:
        with work.setup.system(store=store) as system:
            # The first turn of a process also pays for kernels and buffers.
            answer(system.spawn("first"), [1] * 64)
            agents = [system.spawn(f"agent {number}") for number in range(len(work.contexts))]
            life: Life = []
            for turn, question in enumerate(work.questions):
                replies = [answer(agent, question, work.decoded) for agent in agents]
                assert {reply.cache for reply in replies} == {"hot" if turn else state}
                life.append(
                    [Turn(r.timing.first_token, r.timing.total, r.token_ids) for r in replies]
                )
            return life

    return ask


def _prefilled_each_turn(model: Any, work: Work) -> Callable[[], Life]:
    turn = uncached(model, work.contexts[0])

    def ask() -> Life:
        said, life = [list(context) for context in work.contexts], Life()
        for question in work.questions:
            life.append([])
            for history in said:
                history += question
                life[-1].append(turn(history, work.decoded))
                history += life[-1][-1].tokens
        return life

    return ask


def _row(how: str, lives: Sequence[Life]) -> Row:
    """Medians of the runs."""
    turns = [median(mean(t.total_s for t in life[n]) for life in lives) for n in range(TURNS)]
    recovered = median(sum(turn.first_s for turn in life[0]) for life in lives)
    columns = {f"turn_{number}_s": seconds for number, seconds in enumerate(turns, start=1)}
    return {"how": how, "recovered_s": recovered, **columns, "each_turn_s": mean(turns)}


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    for row in rows:
        axes.plot(
            [f"turn {n + 1}" for n in range(TURNS)],
            [row[f"turn_{n + 1}_s"] for n in range(TURNS)],
            marker="o",
            label=row["how"],
        )
    axes.set(ylabel="s", ylim=(0, None), title="a turn after a restart")
    axes.legend()


if __name__ == "__main__":
    main()
