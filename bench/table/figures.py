"""The figures of the table as a file, and as a picture."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from json import dumps, loads
from pathlib import Path
from typing import Any

from kvactors.bench.report import machine
from kvactors.bench.setup import Scale
from kvactors.core.errors import InvalidConfig

__all__ = ["Figures", "draw", "make_folder"]

Row = Mapping[str, Any]
# On the axis of ratios.
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
OF_ALL = ("shrink", "fewer", "decoded")


class Figures:
    """What a `bench` found so far, in the file at `path` after each row: a run may take an hour and
    be stopped. What is of before stays until it is measured again, of the same `model` and `scale`
    alone; None keeps nothing. Raises InvalidConfig for a file of others, or of something else."""

    def __init__(self, path: Path | None, model: str, scale: Scale, bench: str = "suite") -> None:
        self._path = path
        sizes = {name: asdict(scale)[name] for name in OF_ALL}
        self._found: dict[str, Any] = {"bench": bench, "model": model, "scale": sizes}
        if path is None or not path.exists():
            return
        before = _read(path)
        for name in self._found:
            if before.get(name) != self._found[name]:
                raise InvalidConfig(
                    f"{path} has figures of the {name} {before.get(name)}, not of "
                    f"{self._found[name]}: name another file"
                )
        self._found = before

    def keep(self, **more: Any) -> None:
        """Replace these parts of the file; the machine is as it is now."""
        self._found |= machine() | more
        if self._path is not None:
            self._path.write_text(dumps(self._found, indent=1) + "\n", encoding="utf-8")

    def keep_row(self, row: Row, order: Sequence[str]) -> None:
        """Put a `row` in the place of that of its name; rows stand in the `order` of names, and
        those of other names are gone."""
        rows = {each["name"]: each for each in [*self._found.get("rows", ()), row]}
        self.keep(rows=[rows[name] for name in order if name in rows])

    def keep_curves(self, curves: Sequence[Row]) -> None:
        """Put `curves` in the places of those of the same value over the same."""
        every = [*self._found.get("curves", ()), *curves]
        self.keep(curves=list({(curve["value"], curve["over"]): curve for curve in every}.values()))


def _read(path: Path) -> dict[str, Any]:
    try:
        before = loads(path.read_text(encoding="utf-8"))
    except ValueError:
        before = None
    if not isinstance(before, dict):
        raise InvalidConfig(f"{path} has no figures of a bench: name another file")
    return before


def make_folder(plot: Path) -> None:
    """Make the folder `plot` for pictures, if it is not there. Raises InvalidConfig where that
    cannot be, and without matplotlib."""
    if find_spec("matplotlib") is None:
        raise InvalidConfig("--plot needs matplotlib: pip install 'kvactors[plot]'")
    try:
        plot.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfig(f"--plot {plot}: {error.strerror}: name a folder") from error
    if not os.access(plot, os.W_OK):
        raise InvalidConfig(f"--plot {plot} cannot be written to: name another folder")


def draw(rows: Sequence[Row], path: Path) -> None:
    """How far each ratio is from its target, above 1 missed, as a PNG. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = [row for row in rows if not (row["cannot"] or row["invalid"])][::-1]
    values = [
        row["ratio"] / row["target"] if row["better"] == "lower" else row["target"] / row["ratio"]
        for row in measured
    ]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.3 * len(measured)), layout="constrained")
    colors = [
        "tab:green" if row["met"] else "tab:orange" if row["median_meets"] else "tab:red"
        for row in measured
    ]
    axes.barh([row["name"] for row in measured], values, color=colors)
    axes.axvline(1, color="grey", linestyle="--")
    axes.set(xscale="log", xlabel="ratio / target (below 1: met)")
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
