"""Rows of a branch have the parameters that it has."""

import csv
import gzip
from pathlib import Path

import pytest
from runs import make_run, probe

from kvactors.actors.scenarios.journal.records import Run
from kvactors.actors.scenarios.results.write import write_results

PHASES = (
    {"name": "before"},
    {"name": "parted", "fork": {"cheap": {"price": 10}, "same": {}}},
    {"name": "again", "fork": {"same": {"price": 20}, "words": {"price": "none"}}},
)


def parted(*branches: str, price: int = 50) -> Run:
    turns = [probe(step, right=True, branch=branch) for step, branch in enumerate(branches)]
    return make_run(*turns, parameters={"price": price}, source={"phases": PHASES})


@pytest.mark.parametrize("table", ["turns.csv.gz", "metrics.csv", "summary.csv"])
def test_what_a_fork_sets_stands_in_the_rows_of_its_branches(table: str, tmp_path: Path) -> None:
    write_results([parted("", "cheap", "same", "cheap/same", "same/same")], tmp_path)

    data = (tmp_path / table).read_bytes()
    text = gzip.decompress(data) if table.endswith(".gz") else data
    found = {(row["branch"], row["price"]) for row in csv.DictReader(text.decode().splitlines())}
    trunk = {("", "50")} if table == "turns.csv.gz" else {("", "50"), ("(trunk)", "50")}
    branches = {("cheap", "10"), ("same", "50"), ("cheap/same", "20"), ("same/same", "20")}
    assert found == trunk | branches


def test_a_column_has_values_of_one_kind_whatever_a_fork_sets(tmp_path: Path) -> None:
    write_results([parted("", "same/words"), parted("", price=60)], tmp_path)

    data = gzip.decompress((tmp_path / "turns.csv.gz").read_bytes()).decode()
    assert [row["price"] for row in csv.DictReader(data.splitlines())] == ["50", "none", "60"]


@pytest.mark.parametrize(("first", "price"), [(10, ""), (20, "20")])
def test_where_two_forks_call_a_branch_alike_nothing_is_guessed(
    first: int, price: str, tmp_path: Path
) -> None:
    phases = (
        {"name": "one", "when": "early", "fork": {"cheap": {"price": first}}},
        {"name": "other", "fork": {"cheap": {"price": 20}}},
    )
    run = make_run(
        probe(1, right=True, branch="cheap"), parameters={"price": 50}, source={"phases": phases}
    )
    write_results([run], tmp_path)

    data = gzip.decompress((tmp_path / "turns.csv.gz").read_bytes()).decode()
    assert [row["price"] for row in csv.DictReader(data.splitlines())] == [price]
