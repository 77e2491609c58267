"""Everything that runs leave behind for their readers, into one folder. Any thread."""

from collections.abc import Sequence
from pathlib import Path

from kvactors.actors.scenarios.journal.records import Run
from kvactors.actors.scenarios.results.figures import draw_all, plotting
from kvactors.actors.scenarios.results.report import render
from kvactors.actors.scenarios.results.tables import (
    metric_rows,
    over_seeds,
    turn_rows,
    write_csv,
)

__all__ = ["write_results"]


def write_results(runs: Sequence[Run], folder: Path) -> tuple[Path, ...]:
    """Tables, pictures and the page of `runs`, one for each point of a sweep, into `folder`, over
    what was there: the paths that were written. The same runs give the same files. May raise
    OSError."""
    if not runs:
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    rows = over_seeds(runs)
    written = [
        write_csv(turn_rows(runs), folder / "turns.csv.gz"),
        write_csv(metric_rows(runs), folder / "metrics.csv"),
        write_csv(rows, folder / "summary.csv"),
    ]
    pictures = draw_all(runs, rows, folder / "figures") if plotting() else None
    written += [path for picture in pictures or () for path in picture.files]
    page = folder / "report.html"
    page.write_text(render(runs, rows, pictures), encoding="utf-8")
    return (*written, page)
