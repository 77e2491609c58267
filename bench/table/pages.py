"""Figures on pages: rows of tables as a file of results has them.

    python -m kvactors.bench.table.pages JSON PAGE... [--plot PNG]

writes what was measured into the tables of these pages, and draws it. The file is one of `kvactors
bench` or of `kvactors.bench.table.growth`. A test asks that this changes nothing.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from json import loads
from pathlib import Path
from typing import Any

from kvactors.bench.table.curves import CURVES
from kvactors.bench.table.figures import draw
from kvactors.bench.table.suite import REGIMES

__all__ = ["MISSING", "NO_CURVE", "filled", "main"]

Row = Mapping[str, Any]
SIGNS = {"lower": "≤", "higher": "≥"}
MISSING = "Not measured at full size since it or its peer was changed: "
NO_CURVE = "Curves that were not measured at full size: "


def filled(page: str, found: Mapping[str, Any]) -> str:
    """The text of a `page` with the figures that were `found` in its tables: that below
    "Performance" or "How it grows", and any row that names a line."""
    if "curves" in found:
        page = _with_table(page, "How it grows", [_curve(curve) for curve in found["curves"]])
        drawn = {f"{curve['value']} over {curve['over']}" for curve in found["curves"]}
        every = [f"{curve.value} over {curve.size}" for curve in CURVES]
        return _with_names(page, NO_CURVE, [name for name in every if name not in drawn])
    rows = {row["name"]: row for row in found["rows"]}
    page = _with_table(page, "Performance", [_row(row) for row in rows.values()])
    page = _with_names(page, MISSING, [each.name for each in REGIMES if each.name not in rows])

    def named(match: re.Match[str]) -> str:
        return match[1] + (_short(rows[match[2]]) if match[2] in rows else " | - | - | - |")

    return re.sub(
        r"^(\| [^|]+ \| `([^`|]+)`) \|[^|\n]+\|[^|\n]+\|[^|\n]+\|$", named, page, flags=re.M
    )


def _with_names(page: str, said: str, names: Sequence[str]) -> str:
    """The line that begins with what is `said`, if there is one, gives these names."""
    listed = ", ".join(f"`{name}`" for name in names) or "nothing"
    return re.sub(f"{said}.*", f"{said}{listed}.", page)


def _with_table(page: str, heading: str, rows: Sequence[str]) -> str:
    """The first table below a heading, if there is one, keeps its two first lines."""
    table = re.compile(rf"(^## {heading}\n(?:(?!## ).*\n)*?\|.*\n\|[ |-]+\n)(?:\|.*\n)*", re.M)
    return table.sub(lambda match: match[1] + "".join(f"{row}\n" for row in rows), page)


def _row(row: Row) -> str:
    target = f"{SIGNS[row['better']]} {row['target']:.4g}"
    if row["target_gpu"] is not None:
        target += f" (GPU: {row['target_gpu']:.4g})"
    ours, theirs, ratio = _figures(row)
    if ratio != "-":
        ratio += f" ({row['spread'][0]:.3g}-{row['spread'][1]:.3g})"
    verdict = row["verdict"] if row["met"] else f"**{row['verdict']}**"
    cells = (row["name"], row["against"], ours, theirs, ratio, target, verdict, row["holds_on"])
    return f"| {' | '.join(cells)} | {row['runs']} | {row['load'][0]:.1f} |"


def _short(row: Row) -> str:
    return f" | {' | '.join(_figures(row))} |"


def _figures(row: Row) -> tuple[str, str, str]:
    """Ours, theirs, and the ratio."""
    if row["ratio"] is None:
        return "-", "-", "-"
    ours, theirs = (_value(row[side], row["unit"]) for side in ("ours", "theirs"))
    return ours, theirs, f"{row['ratio']:.3g}"


def _curve(curve: Row) -> str:
    (first, begin), (last, end) = curve["points"][0], curve["points"][-1]
    units = {"ms": "s", "MB": "bytes", "": ""}
    begins, ends = (_value(value, units[curve["unit"]]) for value in (begin, end))
    orders = (f"{order:.2f}".replace("-0.00", "0.00") for order in curve["orders"])
    breaks = "" if curve["breaks_at"] is None else f"{curve['breaks_at']:,}"
    cells = (curve["value"], f"{first:,}-{last:,} {curve['over']}", begins, ends, *orders, breaks)
    return f"| {' | '.join(cells)} |"


def _value(value: float, unit: str) -> str:
    if unit == "s":
        value, unit = 1e3 * value, "ms"
    return (f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}").strip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a file's figures into pages; draw them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path)
    parser.add_argument("pages", type=Path, nargs="*")
    parser.add_argument("--plot", type=Path, help="write a PNG here (needs kvactors[plot])")
    options = parser.parse_args(arguments)
    found = loads(options.json.read_text(encoding="utf-8"))
    for page in options.pages:
        page.write_text(filled(page.read_text(encoding="utf-8"), found), encoding="utf-8")
    if options.plot is not None:
        draw(found["rows"], options.plot)


if __name__ == "__main__":
    main()
