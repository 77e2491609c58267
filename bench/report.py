"""How a benchmark says what it found: a table for people, one JSON line for programs."""

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from subprocess import DEVNULL, PIPE, run
from typing import Any

__all__ = ["Origin", "aligned", "machine", "origin", "print_json", "print_table"]


@dataclass(frozen=True, slots=True)
class Origin:
    """When a figure was measured, of which commit (with a + where modules were changed since; a
    version where there is no repository), and how many programs wanted to run before and after."""

    date: str
    commit: str
    load: tuple[float, ...]

    def ended(self) -> "Origin":
        """The same with the load as it is now beside that of before."""
        return replace(self, load=(*self.load, _load()))

    def as_json(self) -> dict[str, Any]:
        """The fields of a row."""
        return {**asdict(self), "load": list(self.load)}


def origin() -> Origin:
    """Of what is measured from now on."""
    return Origin(datetime.now(UTC).isoformat(timespec="minutes"), _commit(), (_load(),))


def _load() -> float:
    return round(os.getloadavg()[0], 2)


def _commit() -> str:
    head = _git("rev-parse", "--short", "HEAD")
    if not head:
        return version("kvactors")
    return head + (
        "+" if _git("status", "--porcelain", "--untracked-files=no", "--", "*.py") else ""
    )


def _git(*arguments: str) -> str:
    here = Path(__file__).resolve().parents[1]
    try:
        ended = run(["git", "-C", here, *arguments], stdout=PIPE, stderr=DEVNULL, text=True)
    except OSError:
        return ""
    return ended.stdout.strip()


def machine() -> dict[str, Any]:
    """What the numbers depend on. Imports MLX."""
    import mlx.core as mx

    from kvactors.core import blas

    return {
        "device": str(mx.default_device()),
        "device_name": str(mx.device_info().get("device_name", "")),
        "machine": platform.machine(),
        "system": platform.system(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "openblas": blas.preload(),
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "kvactors": version("kvactors"),
    }


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A `title`, and `rows` in aligned columns; floats with three digits."""
    print(f"\n{title}\n\n{aligned(columns, rows)}")


def aligned(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lines of `rows` below their `columns`."""
    cells = [list(columns), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(columns))]
    padded = (zip(row, widths, strict=True) for row in cells)
    return "\n".join("  ".join(cell.rjust(width) for cell, width in row) for row in padded)


def print_json(bench: str, **payload: Any) -> None:
    """The last line of a benchmark's output."""
    print(json.dumps({"bench": bench, **machine(), **payload}), flush=True)


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
