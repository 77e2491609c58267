"""What experiments share: how they are asked for, and how they say what they found."""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from kvactors.bench.random_model import DESCRIPTION, random_llama, unnamed
from kvactors.bench.report import Origin, aligned, origin, print_json, print_table
from kvactors.bench.setup import QUICK, TABLE, Setup, endless
from kvactors.core import blas

__all__ = ["Experiment", "Row", "begin", "figure"]

Row = dict[str, Any]
# As many as the paper took medians of.
RUNS = 3
SHORT = (64, 128)


@dataclass(frozen=True, slots=True)
class Experiment:
    """One run of the command: what was asked for, and since when it runs."""

    name: str
    setup: Setup
    quick: bool
    plot: Path | None
    page: Path | None
    model: str
    begun: Origin

    def sizes(self, tokens: Sequence[int]) -> list[int]:
        """Lengths as they are measured: a quick run has two short ones instead."""
        return list(SHORT if self.quick else tokens)

    def median(self, act: Callable[[], float]) -> float:
        """Of as many runs as the scale asks for."""
        return median(act() for _ in range(self.setup.scale.runs))

    def show(self, title: str, rows: Sequence[Row]) -> None:
        """A table of rows with the same columns, under a `title`; seconds are shown in ms. On the
        page that was asked for it takes the place of the one before."""
        columns = [name.removesuffix("_s").replace("_", " ") for name in rows[0]]
        cells = [[_shown(*cell) for cell in row.items()] for row in rows]
        print_table(title, columns, cells)
        if self.page is not None:
            written = self.page.read_text(encoding="utf-8") if self.page.exists() else ""
            section = self._section(title, aligned(columns, cells))
            self.page.write_text(_with_section(written, self.name, section), encoding="utf-8")

    def _section(self, title: str, table: str) -> str:
        begun = self.begun
        where = f"{begun.date}, {begun.commit}, load {begun.load[0]}; {self.model}"
        return f"## {self.name}\n\n{title}\n\n```text\n{table}\n```\n\n{where}\n"

    def end(self, rows: Sequence[Row], **more: Any) -> None:
        """The JSON line: `rows`, what else is given, and of which model, commit and time."""
        print_json(self.name, model=self.model, rows=list(rows), **more, **self.begun.as_json())


def begin(
    name: str,
    described: str | None,
    arguments: Sequence[str] | None,
    source: Callable[[], Any] | None = random_llama,
    model: str = DESCRIPTION,
) -> Experiment:
    """The experiment `name` as the `arguments` ask for it, with `--help` as `described`: of the
    random `model` that `source` makes (a small one instead of the default one, if it is quick), or
    of any other; where that is None, of the one that it loads itself. Sets BLAS up, before anybody
    loads MLX."""
    parser = argparse.ArgumentParser(
        description=described, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="so small that it shows that it runs")
    parser.add_argument("--plot", type=Path, help="write a PNG here (needs kvactors[plot])")
    parser.add_argument("--page", type=Path, help="write the table on this page, over its last one")
    if source is not None:
        parser.add_argument("--model", help="a name or directory, instead of a random one")
    options = parser.parse_args(arguments)
    blas.preload()
    if chosen := getattr(options, "model", None):
        source, model = endless(chosen), chosen
    elif source is random_llama:
        source, model = unnamed(quick=options.quick)
    scale = replace(QUICK, runs=1) if options.quick else replace(TABLE, runs=RUNS)
    setup = Setup(scale, source or random_llama)
    return Experiment(name, setup, options.quick, options.plot, options.page, model, origin())


def _shown(name: str, value: Any) -> Any:
    return f"{1e3 * value:,.1f} ms" if name.endswith("_s") and value is not None else value


def _with_section(page: str, name: str, section: str) -> str:
    """A `page` whose section of this `name` is this one, at its end if there was none."""
    head, *old = re.split(r"^(?=## )", page, flags=re.M)
    sections = {text.splitlines()[0]: text for text in old} | {f"## {name}": section}
    return "\n\n".join(filter(None, map(str.strip, (head, *sections.values())))) + "\n"


def figure(path: Path, draw: Callable[[Any], None]) -> None:
    """What `draw` draws into one pair of axes, as a PNG at `path`. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    draw(axes)
    shown.savefig(path, dpi=120)
    pyplot.close(shown)
