"""The performance table: what a regime says of its measurements, and the command."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import run as run_process

import pytest

from kvactors.bench.setup import QUICK, Setup
from kvactors.bench.table.curves import CURVES, Curve
from kvactors.bench.table.growth import Growth, draw
from kvactors.bench.table.regime import CannotRun, Regime, run
from kvactors.bench.table.suite import REGIMES
from kvactors.core.testing.models import tiny_llama


def three_pairs(_setup: Setup) -> Iterator[tuple[float, float]]:
    """Ours over theirs: 2, 1 and 4."""
    yield from [(2.0, 1.0), (3.0, 3.0), (4.0, 1.0)]


def impossible(_setup: Setup) -> Iterator[tuple[float, float]]:
    """Something that the peer lacks."""
    raise CannotRun("the peer has no batch")
    yield 1.0, 1.0


def test_a_ratio_is_the_median_of_the_ratios_of_neighbouring_runs() -> None:
    regime = Regime("three", "nothing", 2.0, three_pairs, runs=3)

    outcome = run(regime, Setup(QUICK))

    assert (outcome.ratio, outcome.ours, outcome.theirs) == (2.0, 3.0, 1.0)
    assert outcome.spread == (1.5, 3.0)
    assert outcome.met


@pytest.mark.parametrize(("better", "met"), [("lower", False), ("higher", True)])
def test_a_target_is_a_bound_on_the_side_that_is_better(better: str, met: bool) -> None:
    regime = Regime("three", "nothing", 1.5, three_pairs, better, runs=3)  # type: ignore[arg-type]

    assert run(regime, Setup(QUICK)).met is met


def test_a_regime_that_a_peer_cannot_run_says_so() -> None:
    outcome = run(Regime("none", "nothing", 2.0, impossible), Setup(QUICK))

    assert outcome.met is None
    assert outcome.row()[-1] == "the peer has no batch"


def test_every_regime_says_what_is_compared() -> None:
    names = [regime.name for regime in REGIMES]

    assert len(set(names)) == len(names)
    assert all(len(regime.described) > 40 for regime in REGIMES)


def points(_setup: Setup, _sizes: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Nobody asks."""
    raise AssertionError


@pytest.mark.parametrize(
    ("values", "orders", "breaks_at"),
    [
        ((3.0, 6.0, 12.0, 24.0), (1.0, 1.0), None),
        ((5.0, 5.0, 5.0, 5.0), (0.0, 0.0), None),
        ((1.0, 1.0, 1.0, 4.0), (0.6, 2.0), 4),
    ],
    ids=["linear", "flat", "flat, then quadratic"],
)
def test_growth_has_an_order_and_a_place_where_it_breaks(
    values: tuple[float, ...], orders: tuple[float, float], breaks_at: int | None
) -> None:
    curve = Curve("time", "ms", "tokens", (1, 2, 4, 8), points)

    growth = Growth(curve, (1, 2, 4, 8), values)

    assert growth.orders == pytest.approx(orders)
    assert growth.breaks_at == breaks_at


def test_memory_grows_with_tokens_and_operations_do_not_grow_with_rows(tmp_path: Path) -> None:
    setup, found = Setup(QUICK, tiny_llama()), []
    for curve in CURVES:
        if (curve.value, curve.size) in {("memory", "tokens"), ("operations", "agents")}:
            sizes, values = zip(*curve.measure(setup, curve.sizes[:3]), strict=True)
            found.append(Growth(curve, sizes, values))

    draw(found, tmp_path / "growth.png")

    operations, memory = found
    assert memory.orders[0] == pytest.approx(1.0, abs=0.01)
    assert operations.orders[0] < 0.2
    assert (tmp_path / "growth.png").stat().st_size > 1000


def test_a_step_is_measured_of_agents_that_share_their_beginning() -> None:
    [curve] = [curve for curve in CURVES if curve.value == "step, one beginning"]

    found = list(curve.measure(Setup(QUICK, tiny_llama()), (1, 3)))

    assert [size for size, _ in found] == [1, 3]
    assert all(seconds > 0 for _, seconds in found)


def test_the_command_measures_plots_and_writes_figures(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvactors.actors.cli", "bench", "--quick"]
    command += ["--only", "tell-rate", "--only", "decode-overhead"]
    command += ["--plot", str(tmp_path), "--json", str(tmp_path / "found.json")]

    ended = run_process(command, capture_output=True, text=True, timeout=240)

    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["decode-overhead", "tell-rate"]
    assert all(row["ours"] > 0 and row["runs"] == QUICK.runs for row in found["rows"])
    assert (tmp_path / "regimes.png").stat().st_size > 1000


def test_a_name_that_matches_no_regime_is_refused() -> None:
    command = [sys.executable, "-m", "kvactors.actors.cli", "bench", "--only", "nonsense"]

    ended = run_process(command, capture_output=True, text=True, timeout=120)

    assert ended.returncode == 2
    assert "nonsense" in ended.stderr
