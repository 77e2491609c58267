"""Tables that pandas reads, pictures, and a page: the same of the same runs, whatever was said."""

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas
import pytest
import runs
from runs import make_heard, make_run, make_turn, probe

from kvactors.actors.scenarios.journal.reading import run_of
from kvactors.actors.scenarios.journal.records import Event, Metric, Run, Turn
from kvactors.actors.scenarios.results.figures import draw_all
from kvactors.actors.scenarios.results.intervals import bootstrap, wilson
from kvactors.actors.scenarios.results.report import render
from kvactors.actors.scenarios.results.tables import over_seeds, summary
from kvactors.actors.scenarios.results.talk import conversations, process_begins, seconds_of
from kvactors.actors.scenarios.results.write import write_results

pytestmark = pytest.mark.usefixtures("drawn")


def rows(path: Path) -> list[dict[str, str]]:
    """Of a table, packed or not."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return list(csv.DictReader(io.StringIO(text.decode(), newline="")))


def contents(paths: Sequence[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths}


def test_each_turn_is_a_row_with_its_run_first_and_comes_back_as_it_was_said(
    sweep: list[Run], tmp_path: Path
) -> None:
    write_results(sweep, tmp_path)

    table = rows(tmp_path / "turns.csv.gz")

    assert list(table[0])[:4] == ["run", "seed", "reward", "step"]
    assert set(table[0]) == {"run", "seed", "reward"} | {field.name for field in fields(Turn)}
    turns = [turn for run in sweep for turn in run.turns]
    assert [row["answer"] for row in table] == [turn.answer for turn in turns]
    assert json.loads(table[0]["heard_by"]) == ["eve"]
    assert json.loads(table[0]["scores"]) == {"a": -0.5}
    assert (table[0]["total"], table[0]["expected"]) == ("0.5", "")


def test_pandas_reads_the_results_in_one_line(sweep: list[Run], tmp_path: Path) -> None:
    write_results(sweep, tmp_path)

    as_said: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
    turns = pandas.read_csv(tmp_path / "turns.csv.gz", **as_said)
    metrics = pandas.read_csv(tmp_path / "metrics.csv", **as_said)

    said = [turn.answer for run in sweep for turn in run.turns]
    assert list(turns["answer"]) == said
    right = [turn.right for run in sweep for turn in run.turns if turn.right is not None]
    assert list(turns["right"].dropna()) == right
    assert (turns["total"] == 0.5).all()
    assert set(metrics[metrics["name"] == "gain"]["value"]) == {4.0, 5.0, 7.0, 8.0}
    assert turns.groupby("reward")["generated_tokens"].sum().to_dict() == {1: 96, 2: 96}


def test_what_a_sweep_varies_takes_no_other_columns_place(tmp_path: Path) -> None:
    varied = [make_run(make_turn(1), parameters={"agent": value}) for value in (2, "many")]

    write_results(varied, tmp_path)

    table = rows(tmp_path / "turns.csv.gz")
    assert [(row["agent"], row["parameter agent"]) for row in table] == [
        ("ann", "2"),
        ("ann", "many"),
    ]


def test_a_column_has_values_of_one_kind(tmp_path: Path) -> None:
    varied = [make_run(make_turn(1), parameters={"open": value}) for value in (True, 2)]

    write_results(varied, tmp_path)

    assert [row["open"] for row in rows(tmp_path / "turns.csv.gz")] == ["True", "2"]


def test_a_text_that_looks_like_a_number_is_another_point_than_that_number(tmp_path: Path) -> None:
    varied = [make_run(make_turn(1), parameters={"open": value}) for value in ("1", 1, True)]

    write_results(varied, tmp_path)

    table = [row for row in rows(tmp_path / "summary.csv") if row["name"] == "tokens_reused"]
    assert [(row["open"], row["runs"]) for row in table if not row["agent"]] == [
        ("'1'", "1"),
        ("1", "1"),
        ("True", "1"),
    ]


def test_a_metric_of_one_run_has_the_interval_of_its_share(
    sweep: list[Run], tmp_path: Path
) -> None:
    write_results(sweep, tmp_path)

    table = rows(tmp_path / "metrics.csv")

    recall = next(row for row in table if row["name"] == "recall")
    # Of steps 10 to 15 those that are even are wrong.
    assert (recall["run"], float(recall["value"]), recall["count"]) == ("seed-1", 0.5, "6")
    assert (float(recall["low"]), float(recall["high"])) == wilson(3, 6)
    gain = next(row for row in table if row["name"] == "gain")
    assert (gain["value"], gain["low"], gain["high"]) == ("4.0", "", "")


@pytest.mark.parametrize("table", ["metrics.csv", "summary.csv"])
def test_no_two_rows_of_a_metric_are_of_all_where_a_run_has_branches(
    table: str, tmp_path: Path
) -> None:
    own = Metric("gain", 3.0, 1, branch="")
    forked = make_run(probe(1, right=True), probe(2, right=False, branch="left"), own=(own,))

    write_results([forked], tmp_path)

    of = ("name", "agent", "phase", "branch", "distance")
    found = [tuple(row[column] for column in of) for row in rows(tmp_path / table)]
    assert len(found) == len(set(found))
    branches = {
        name: [row[3] for row in found if row[0] == name and not any(row[1:3])]
        for name in ("recall", "tokens_reused", "gain")
    }
    assert branches == {
        "recall": ["", "(trunk)", "left"],
        "tokens_reused": ["", "(trunk)", "left"],
        "gain": ["(trunk)"],
    }


def test_points_of_a_sweep_are_told_apart_and_their_seeds_are_not(
    sweep: list[Run], tmp_path: Path
) -> None:
    write_results(sweep, tmp_path)

    gains = [row for row in rows(tmp_path / "summary.csv") if row["name"] == "gain"]

    assert [(row["reward"], row["mean"], row["runs"]) for row in gains] == [
        ("1", "4.5", "2"),
        ("2", "7.5", "2"),
    ]
    assert (float(gains[0]["low"]), float(gains[0]["high"])) == bootstrap([4.0, 5.0])


def test_runs_that_agree_are_no_certainty(tmp_path: Path) -> None:
    same = [make_run(probe(1, right=True), probe(2, right=True), seed=seed) for seed in (1, 2, 3)]

    write_results(same, tmp_path)

    recall = next(row for row in rows(tmp_path / "summary.csv") if row["name"] == "recall")
    assert (recall["runs"], recall["mean"]) == ("3", "1.0")
    assert (float(recall["low"]), float(recall["high"])) == wilson(2, 2)


def test_the_summary_has_a_line_for_each_metric_of_whole_runs(sweep: list[Run]) -> None:
    header, *lines = summary(over_seeds(sweep))

    assert header == ("reward", "metric", "mean", "95 %", "runs")
    assert ("2", "gain", "7.5", "7 to 8", "2") in lines
    assert [line[1] for line in lines if line[0] == "1"] == [
        *("recall", "consistency", "tokens_prefilled", "tokens_reused", "tokens_generated"),
        "gain",
    ]
    assert summary(over_seeds(sweep, whole=True)) == [header, *lines]


def test_page_and_pictures_draw_no_intervals_of_their_own(sweep: list[Run], tmp_path: Path) -> None:
    assert "Nothing was measured." in render(sweep, [], None)
    pictures = draw_all(sweep, [], tmp_path)
    assert [picture.name for picture in pictures] == ["tokens", "timeline", "talk"]


def test_the_same_runs_give_the_same_files(sweep: list[Run], tmp_path: Path) -> None:
    first, again = (contents(write_results(sweep, tmp_path / name)) for name in ("one", "two"))

    assert {name for name in first if "." in name} >= {
        *("turns.csv.gz", "metrics.csv", "summary.csv", "report.html"),
        *("recall.png", "recall.svg", "shares.png", "metric-gain.svg", "tokens.png"),
        *("timeline.svg", "talk.png", "talk.svg"),
    }
    assert first == again


@pytest.mark.parametrize(
    ("begun", "said"), [(1_700_000_000.0, "default, begun 2023-11-14 22:13 UTC"), (0.0, "default")]
)
def test_a_page_says_when_its_runs_began_if_they_know(
    begun: float, said: str, tmp_path: Path
) -> None:
    write_results([make_run(begun=begun)], tmp_path)

    assert f"<p>{said}\n" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_who_told_one_alone_talked_to_that_one() -> None:
    run = make_run(
        make_turn(1, heard_by=("bob", "eve")),
        heard=(
            make_heard(2, 1),
            make_heard(3, 3, "eve", text="Psst.", speaker="ann"),
            make_heard(4, 4, "ann", text="To myself.", speaker="ann"),
        ),
    )

    assert conversations([run, run]) == {("ann", "bob"): 2, ("ann", "eve"): 4}


def test_a_timeline_goes_on_where_the_next_process_began(tmp_path: Path) -> None:
    events = (Event(0, "process", "", 0.0), Event(5, "process", "", 60.0))
    run = make_run(make_turn(4, begun=9.0), make_turn(5, begun=1.0), events=events)

    assert seconds_of(run) == 61.5


def test_without_matplotlib_the_rest_is_written_and_the_page_says_so(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = sys.modules['pyarrow'] = None\n"
        "from pathlib import Path\n"
        "from runs import make_run, make_turn\n"
        "from kvactors.actors.scenarios.results.write import write_results\n"
        "print(*[p.name for p in write_results([make_run(make_turn(1))], Path(sys.argv[1]))])"
    )
    support = str(Path(runs.__file__).parent)

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": support},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.split() == ["turns.csv.gz", "metrics.csv", "summary.csv", "report.html"]
    assert "kvactors[plot]" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_run_in_which_nothing_happened_has_results_and_no_run_has_none(tmp_path: Path) -> None:
    assert write_results([], tmp_path) == ()
    assert rows(write_results([make_run(ended=False)], tmp_path)[0]) == []


def test_results_take_few_bytes_a_turn_beyond_the_text(tmp_path: Path) -> None:
    turns = [
        probe(step, right=True, begun=step / 3, total=1 / 7, first_token=1 / 11)
        for step in range(3000)
    ]
    text = sum(len(turn.prompt) + len(turn.answer) for turn in turns)

    written = contents(write_results([make_run(*turns)], tmp_path))

    # The page has the text once, and the table is packed.
    tables = sum(len(written[name]) for name in ("turns.csv.gz", "report.html")) - text
    assert tables / len(turns) < 180


def test_a_turn_is_dated_from_the_process_that_took_it_whatever_its_step() -> None:
    header = make_run().header
    # The first process got ahead with bob; the second one took what ann had left.
    first, ahead = Event(0, "process", "", 0.0), make_turn(9, "bob", begun=1.0)
    second, left = Event(10, "process", "", 60.0), make_turn(2, "ann", begun=2.0)

    run = run_of(header, [first, ahead, second, left])

    begins = process_begins(run)
    assert [(turn.agent, begins(turn)) for turn in run.turns] == [("ann", 60.0), ("bob", 0.0)]
    assert seconds_of(run) == 62.5
