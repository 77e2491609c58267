"""How a benchmark says what it found: a table for people, one JSON line for programs."""

import json
import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

__all__ = ["machine", "print_json", "print_table"]


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
    cells = [list(columns), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(columns))]
    print(f"\n{title}\n")
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def print_json(bench: str, **payload: Any) -> None:
    """The last line of a benchmark's output."""
    print(json.dumps({"bench": bench, **machine(), **payload}), flush=True)


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
