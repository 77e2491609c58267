"""`kvactors bench` and `kvactors check`: what is measured, and what holds, on this machine. Imports
the benchmarks, and MLX, when it runs."""

import faulthandler
import sys
from collections.abc import Sequence
from pathlib import Path

from kvactors.core.errors import InvalidConfig

__all__ = ["run_bench", "run_check"]


def run_bench(
    model: str | None,
    *,
    quick: bool,
    full: bool,
    only: Sequence[str],
    plot: Path | None,
    json: Path | None,
) -> bool:
    """Measure and print: on this `model`, short (`quick`) or with growth too (`full`), `only` these
    regimes, with pictures in `plot` and results in the file `json`; whether none failed. Raises
    InvalidConfig for a name that no regime has."""
    if quick and full:
        raise InvalidConfig("--quick and --full exclude each other")
    from kvactors.bench.setup import FULL, QUICK, TABLE
    from kvactors.bench.table.suite import run_suite

    scale = QUICK if quick else FULL if full else TABLE
    outcomes = run_suite(scale, model, only, plot, json, growth=full)
    return not any(outcome.failed for outcome in outcomes)


def run_check(only: Sequence[str], *, as_json: bool) -> bool:
    """Check this machine, or `only` what has such names, and print a report; whether nothing was
    violated. Raises InvalidConfig for a name that no check has."""
    from kvactors.core import blas

    # A device's driver may end the process: then the last line says where.
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    # MLX must find OpenBLAS already loaded.
    blas.preload()
    from kvactors.bench.check.report import report
    from kvactors.bench.check.suite import run_checks

    return report(run_checks(only), as_json=as_json)
