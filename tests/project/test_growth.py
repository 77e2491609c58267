"""How things grow: what a curve says, and which curves a file keeps."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from house import ROOT

from kvactors.bench.random_model import DESCRIPTION, SMALL
from kvactors.bench.report import origin
from kvactors.bench.setup import QUICK, Setup
from kvactors.bench.table.curves import CURVES, Curve
from kvactors.bench.table.figures import Figures
from kvactors.bench.table.growth import GROWTH, Growth, draw, main
from kvactors.core.testing.models import tiny_llama

RESULTS = (ROOT / "bench/results/cpu-x86-growth.json").read_text(encoding="utf-8")


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

    growth = Growth(curve, (1, 2, 4, 8), values, origin())

    assert growth.orders == pytest.approx(orders)
    assert growth.breaks_at == breaks_at


@pytest.mark.slow
def test_memory_grows_with_tokens_and_operations_do_not_grow_with_rows(tmp_path: Path) -> None:
    setup, found = Setup(QUICK, tiny_llama()), []
    for curve in CURVES:
        if (curve.value, curve.size) in {("memory", "tokens"), ("operations", "agents")}:
            sizes, values = zip(*curve.measure(setup, curve.sizes[:3]), strict=True)
            found.append(Growth(curve, sizes, values, origin()))

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


def test_a_directory_is_measured_by_the_agents_that_it_knows() -> None:
    curves = {curve.value: curve for curve in CURVES if curve.size == "known agents"}

    seconds = list(curves["directory: a look-up"].measure(Setup(QUICK), (100, 1000)))
    [empty, *held] = [
        found for _, found in curves["directory: bytes"].measure(Setup(QUICK), (0, 1000, 2000))
    ]

    assert [size for size, _ in seconds] == [100, 1000]
    assert all(each > 0 for _, each in seconds)
    assert held[1] - empty == pytest.approx(2 * (held[0] - empty), rel=0.5)


def test_a_curve_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    for value, over, point in (("a", "x", 1), ("a", "y", 2), ("a", "x", 3)):
        curve = {"value": value, "over": over, "points": [point]}
        Figures(path, "model", QUICK, "growth").keep_curves([curve])

    assert [curve["points"] for curve in json.loads(path.read_text())["curves"]] == [[3], [2]]


def test_the_curves_that_were_measured_can_be_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    path.write_text(RESULTS)

    Figures(path, DESCRIPTION, GROWTH, "growth").keep_curves([])

    assert json.loads(path.read_text())["curves"] == json.loads(RESULTS)["curves"]


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        (RESULTS.replace(DESCRIPTION, SMALL), ["--quick"], "has figures of the scale"),
        (RESULTS, ["--model", "other"], "has figures of the model"),
        (RESULTS.replace("growth", "suite", 1), [], "has figures of the bench suite"),
        ("no JSON", [], "has no figures of a bench"),
    ],
    ids=["scale", "model", "bench", "no JSON"],
)
def test_curves_of_others_are_refused_before_any_is_measured(
    content: str,
    options: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "found.json"
    path.write_text(content)

    with pytest.raises(SystemExit):
        main(["--only", "memory", "--json", str(path), *options])

    found = capsys.readouterr()
    assert said in " ".join(found.err.split())
    assert (found.out, path.read_text()) == ("", content)
