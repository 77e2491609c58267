"""The scenarios that are shipped, in full, played by the default model: who takes part, how much of
their prompts they knew, what they recall, and how long it takes. Probes are turns, too."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from kvactors.actors.scenarios.journal.records import Run
from kvactors.actors.scenarios.scenario import Scenario
from kvactors.bench.experiments.experiment import Row, begin, figure

# They stand in the checkout alone.
FOLDER = Path(__file__).resolve().parents[2] / "examples/scenarios"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    asked = begin("shipped", __doc__, arguments, None, "default")
    names = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    rows = list(_played(["gossip"] if asked.quick else names))
    asked.show("The scenarios that are shipped, in full.", rows)
    if asked.plot is not None:
        figure(asked.plot, lambda axes: _draw(axes, rows))
    asked.end(rows)


def _played(names: Sequence[str]) -> Iterator[Row]:
    """A row for each scenario, all of whose runs have ended."""
    with TemporaryDirectory() as folder:
        for name in names:
            scenario = Scenario.load(FOLDER / f"{name}.yaml")
            begun = time.perf_counter()
            runs = scenario.run(out=Path(folder) / name)
            yield _row(name, runs, time.perf_counter() - begun)


def _row(name: str, runs: Sequence[Run], seconds: float) -> Row:
    if not all(run.ended for run in runs):
        raise RuntimeError(f"{name}: a run has not ended")
    turns = [turn for run in runs for turn in run.turns]
    reused = sum(turn.reused_tokens for turn in turns)
    return {
        "scenario": name,
        "runs": len(runs),
        "agents": sum(len(run.header.agents) for run in runs),
        "turns": len(turns),
        "failures": sum(len(run.failures) for run in runs),
        "reused": round(reused / sum(turn.prompt_tokens for turn in turns), 3),
        "generated": sum(turn.generated_tokens for turn in turns),
        "recall": _mean(runs, "recall"),
        "refusal": _mean(runs, "refusal"),
        "seconds": round(seconds, 1),
    }


def _mean(runs: Sequence[Run], name: str) -> float | None:
    """Of a metric of all of a run, over those that have it."""
    metrics = [metric for run in runs for metric in run.metrics if metric.name == name]
    values = [metric.value for metric in metrics if metric.agent is metric.phase is None]
    return round(fmean(values), 3) if values else None


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    axes.barh([row["scenario"] for row in rows], [row["seconds"] for row in rows])
    axes.set_xlabel("seconds")


if __name__ == "__main__":
    main()
