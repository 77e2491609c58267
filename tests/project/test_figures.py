"""What pages say was measured is what the files of results have; and how such a file is kept."""

import json
import re
from copy import deepcopy
from datetime import datetime
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from children import run_child
from house import ROOT

from kvactors.bench.regime import ANYWHERE
from kvactors.bench.setup import QUICK
from kvactors.bench.setup import TABLE as SCALE
from kvactors.bench.table.curves import CURVES
from kvactors.bench.table.figures import Figures
from kvactors.bench.table.pages import MISSING, NO_CURVE, filled
from kvactors.bench.table.suite import REGIMES, run_suite
from kvactors.core.errors import InvalidConfig

RESULTS = ROOT / "bench/results"
PAGES = ("bench/README.md", "README.md")
TABLE = json.loads((RESULTS / "cpu-x86.json").read_text(encoding="utf-8"))
GROWTH = json.loads((RESULTS / "cpu-x86-growth.json").read_text(encoding="utf-8"))
BY_NAME = {regime.name: regime for regime in REGIMES}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("found", [TABLE, GROWTH], ids=["table", "growth"])
def test_pages_show_what_the_files_have(page: str, found: dict[str, Any]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")

    assert filled(text, found) == text


def test_another_figure_on_a_page_would_be_seen() -> None:
    page, first = ((ROOT / name).read_text(encoding="utf-8") for name in PAGES)
    better = deepcopy(TABLE)
    better["rows"] = [row | {"ratio": row["ratio"] / 2} for row in better["rows"]]
    flatter = deepcopy(GROWTH)
    flatter["curves"][0]["orders"] = [0.0, 0.0]

    assert filled(page, better) != page
    assert filled(first, better) != first
    assert filled(page, flatter) != page
    assert filled(page, TABLE | {"rows": TABLE["rows"][1:]}) != page


def test_a_page_shows_each_line_and_each_curve_or_says_that_it_was_not_measured() -> None:
    page = (ROOT / PAGES[0]).read_text(encoding="utf-8")
    rows = [row["name"] for row in TABLE["rows"]]
    curves = [f"{curve['value']} over {curve['over']}" for curve in GROWTH["curves"]]

    assert sorted(rows + named(page, MISSING)) == sorted(BY_NAME)
    assert sorted(curves + named(page, NO_CURVE)) == sorted(
        f"{c.value} over {c.size}" for c in CURVES
    )


def named(page: str, said: str) -> list[str]:
    """The names that stand behind what is said."""
    [line] = (line for line in page.splitlines() if line.startswith(said))
    return re.findall("`([^`]+)`", line)


@pytest.mark.parametrize("row", TABLE["rows"], ids=[row["name"] for row in TABLE["rows"]])
def test_a_row_says_of_what_it_was_measured_and_when(row: dict[str, Any]) -> None:
    regime = BY_NAME[row["name"]]
    order = list(islice(cycle(("ours", "theirs")), row["runs"]))

    assert datetime.fromisoformat(row["date"]).tzinfo is not None
    assert re.fullmatch("[0-9a-f]{7,}", row["commit"]), "measured of changed modules"
    assert len(row["load"]) == 2
    assert row["order"] == order
    assert (row["target"], row["target_gpu"]) == (regime.target, regime.gpu)
    assert (row["against"], row["compared"]) == (regime.against, regime.described)
    assert row["holds_on"] == regime.holds_on


@pytest.mark.parametrize("row", TABLE["rows"], ids=[row["name"] for row in TABLE["rows"]])
def test_a_row_is_met_where_its_worse_quartile_is_of_as_many_runs_as_the_command_makes(
    row: dict[str, Any],
) -> None:
    low, high = row["spread"]
    met = low >= row["target"] if row["better"] == "higher" else high <= row["target"]

    assert row["runs"] == (BY_NAME[row["name"]].runs or SCALE.runs)
    assert low <= row["ratio"] <= high
    assert row["met"] is met
    assert (row["verdict"] == "yes") is met
    assert met or row["holds_on"] != ANYWHERE, "it does not hold here"


def test_a_row_is_replaced_and_the_others_stay_in_the_order_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    for name, value in (("b", 1), ("a", 2), ("b", 3), ("gone", 4)):
        Figures(path, "model", QUICK).keep_row({"name": name, "value": value}, ["a", "b"])

    rows = json.loads(path.read_text())["rows"]

    assert rows == [{"name": "a", "value": 2}, {"name": "b", "value": 3}]


def test_figures_of_another_model_or_scale_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    Figures(path, "model", QUICK).keep()

    for model, scale in (("other", QUICK), ("model", SCALE)):
        with pytest.raises(InvalidConfig, match="name another file"):
            Figures(path, model, scale)


@pytest.mark.parametrize("content", ["", "no JSON", "[]", "\x80"])
def test_a_file_of_something_else_is_refused_and_stays(tmp_path: Path, content: str) -> None:
    path = tmp_path / "found.json"
    path.write_text(content, encoding="latin-1")

    with pytest.raises(InvalidConfig, match="no figures of a bench: name another file"):
        run_suite(QUICK, only=["tell-rate"], json=path)

    assert path.read_text(encoding="latin-1") == content


def test_a_folder_for_plots_that_cannot_be_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()

    for plot in (tmp_path / "file", tmp_path / "file" / "in it"):
        with pytest.raises(InvalidConfig, match=r"--plot .*file.*: name a folder"):
            run_suite(QUICK, only=["tell-rate"], plot=plot)

    assert capsys.readouterr().out == ""


def test_plots_without_matplotlib_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    ended = run_child(
        """
        import sys
        sys.modules["matplotlib"] = None
        from kvactors.actors.cli import main
        main()
        """,
        *("bench", "--quick", "--only", "tell-rate", "--plot", str(tmp_path)),
    )

    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--plot needs matplotlib: pip install 'kvactors[plot]'" in ended.stderr
