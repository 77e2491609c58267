"""Results as tables: a row a turn, a row a metric, a row a metric over seeds. Columns begin with
which run it is. Pure but for the files that it writes; any thread."""

import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

from kvactors.actors.scenarios.journal.records import Metric, Run, Turn
from kvactors.actors.scenarios.results.intervals import Interval, bootstrap, wilson
from kvactors.actors.scenarios.results.measure import SHARES

__all__ = [
    "Row",
    "metric_rows",
    "over_seeds",
    "point_of",
    "summary",
    "turn_rows",
    "write_csv",
]

Row = dict[str, Any]
# What a metric is of.
OF = ("agent", "phase", "branch", "distance")
# Columns of a metric over seeds, behind those that say of which point.
MEANS = ("name", *OF, "runs", "mean", "low", "high")
# The branch of what was before any fork: an empty cell is of all branches. No branch is called so.
TRUNK = "(trunk)"
# Of seconds: more than a turn's time can be told by.
DIGITS = 4
TAKEN = {
    *("run", "seed", *MEANS),
    *(field.name for record in (Turn, Metric) for field in fields(record)),
}


def turn_rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Every turn of the `runs`, with all of its fields; what is several things is JSON."""
    names = [field.name for field in fields(Turn)]
    for run, which in zip(runs, _which(runs), strict=True):
        for turn in run.turns:
            yield which[turn.branch] | {name: _flat(getattr(turn, name)) for name in names}


def metric_rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Every metric of every run; of shares with the interval behind them."""
    for run, which in zip(runs, _which(runs), strict=True):
        for metric in run.metrics:
            first = which[metric.branch or ""]
            yield first | _named(asdict(metric)) | _bounds(_interval(metric))


def over_seeds(runs: Sequence[Run], *, whole: bool = False) -> list[Row]:
    """Every metric of every point of the sweep, or only those of the `whole` of a run: its mean
    over the seeds, with the interval of that mean; of one seed alone, with the interval of the
    share."""
    points: dict[str, list[Run]] = defaultdict(list)
    columns: dict[str, dict[str, Row]] = defaultdict(dict)
    for run, varied in zip(runs, _parameters(runs), strict=True):
        point = repr(run.header.parameters)  # 1 and "1" are two.
        points[point].append(run)
        columns[point] |= varied
    return [
        columns[point].get(row["branch"], columns[point][""]) | row
        for point, same in points.items()
        for row in _means(same, whole=whole)
    ]


def point_of(row: Row) -> Row:
    """The columns of a row over seeds that say which point of the sweep it is of."""
    return {name: value for name, value in row.items() if name not in MEANS}


def summary(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """What a command prints at the end, of `rows` over seeds: a header, then a row for each metric
    of all of a run, with its mean and the interval of that."""
    whole = [row for row in rows if all(row[of] is None for of in OF)]
    header = (*(point_of(whole[0]) if whole else ()), "metric", "mean", "95 %", "runs")
    return [header, *((*map(str, point_of(r).values()), r["name"], *_shown(r)) for r in whole)]


def _shown(row: Row) -> tuple[str, str, str]:
    low, high = row["low"], row["high"]
    interval = "" if low is None else f"{low:,.4g} to {high:,.4g}"
    return f"{row['mean']:,.4g}", interval, str(row["runs"])


def _means(runs: Sequence[Run], *, whole: bool) -> Iterator[Row]:
    """Of runs that differ in nothing but their seeds."""
    metrics: dict[tuple[Any, ...], list[Metric]] = defaultdict(list)
    for metric in (metric for run in runs for metric in run.metrics):
        metrics[metric.name, *(getattr(metric, of) for of in OF)].append(metric)
    for (name, *of), found in metrics.items():
        if whole and any(each is not None for each in of):
            continue
        values = [metric.value for metric in found]
        row = _named({"name": name, **dict(zip(OF, of, strict=True))})
        yield row | {"runs": len(found), "mean": fmean(values), **_bounds(_behind(found))}


def _named(row: Row) -> Row:
    """A metric's row, in which the trunk has a name."""
    return row | {"branch": TRUNK} if row["branch"] == "" else row


def _behind(found: Sequence[Metric]) -> Interval | None:
    """The interval of the mean of one metric of several runs. Runs that all agree say no more than
    one of them: else three runs without an error would be certain that there is none."""
    drawn = bootstrap([metric.value for metric in found])
    if drawn is None or (found[0].name in SHARES and drawn[0] == drawn[1]):
        return _interval(found[0])
    return drawn


def _which(runs: Sequence[Run]) -> list[dict[str, Row]]:
    """The first columns of each run by branch; they are the same for all runs of a sweep."""
    return [
        {
            branch: {"run": run.header.label, "seed": run.header.seed, **row}
            for branch, row in varied.items()
        }
        for run, varied in zip(runs, _parameters(runs), strict=True)
    ]


def _parameters(runs: Sequence[Run]) -> list[dict[str, Row]]:
    """Columns of what a sweep varies, of each run by branch. A column has numbers alone, truth
    values alone or texts alone, and no name that another column has."""
    names = dict.fromkeys(name for run in runs for name in run.header.parameters)
    found = [(run, {branch: Row() for branch in _branches(run)}) for run in runs]
    rows = [(_set_in(run, branch), row) for run, varied in found for branch, row in varied.items()]
    for name in names:
        values = _of_one_kind([known.get(name) for known, _ in rows])
        column = f"parameter {name}" if name in TAKEN else name
        for (_, row), value in zip(rows, values, strict=True):
            row[column] = value
    return [varied for _, varied in found]


def _branches(run: Run) -> Iterable[str]:
    """The trunk, and all branches that something of a run is of."""
    of = (*(turn.branch for turn in run.turns), *(metric.branch or "" for metric in run.metrics))
    return dict.fromkeys(["", *of])


def _set_in(run: Run, branch: str) -> Mapping[str, Any]:
    """The parameters of a run in a branch of it: each fork on the way there sets some."""
    known, left = dict(run.header.parameters), list(run.header.source.get("phases", ()))
    for name in filter(None, branch.split("/")):
        found = [(place, fork[name]) for place, fork in _next_forks(left) if name in fork]
        for parameter in {each for _, values in found for each in values}:
            values = [fork.get(parameter, known.get(parameter)) for _, fork in found]
            # Of two forks with a branch of this name nobody knows which one took place.
            known[parameter] = values[0] if values.count(values[0]) == len(values) else None
        left = left[found[0][0] + 1 :] if found else []
    return known


def _next_forks(phases: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The forks of `phases`, with their places, of which one is the first that takes place."""
    for place, phase in enumerate(phases):
        if fork := phase.get("fork"):
            yield place, fork
            if not phase.get("when"):
                return


def _of_one_kind(values: Sequence[Any]) -> list[Any]:
    """Values as they are, or where they are of several kinds, as texts: in quotes where these would
    not tell 1 from "1"."""
    kinds = {float if type(value) is int else type(value) for value in values} - {type(None)}
    if len(kinds) < 2:
        return list(values)
    alike = len(set(map(str, values))) < len(set(map(repr, values)))
    return [None if value is None else (repr if alike else str)(value) for value in values]


def _flat(value: Any) -> Any:
    if isinstance(value, Mapping):
        return json.dumps(dict(value), ensure_ascii=False)
    if isinstance(value, tuple):
        return json.dumps(value, ensure_ascii=False)
    return round(value, DIGITS) if isinstance(value, float) else value


def _interval(metric: Metric) -> Interval | None:
    if metric.name not in SHARES:
        return None
    return wilson(round(metric.value * metric.count), metric.count)


def _bounds(interval: Interval | None) -> Row:
    low, high = interval or (None, None)
    return {"low": low, "high": high}


def write_csv(rows: Iterable[Row], path: Path) -> Path:
    """As pandas reads it, packed where the name ends with .gz: the same rows are the same bytes. A
    table without rows is empty."""
    text = StringIO(newline="")
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(text, list(row))
            writer.writeheader()
        writer.writerow(row)
    table = text.getvalue().encode()
    path.write_bytes(gzip.compress(table, mtime=0) if path.suffix == ".gz" else table)
    return path
