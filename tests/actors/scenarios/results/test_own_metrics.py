"""Metrics of somebody's own: beside the others, or a failure in the report."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from puppet_talk import TALK, open_system

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.scenario import Scenario

Write = Callable[..., Path]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[AgentSystem]:
    """Puppets."""
    with open_system(tmp_path / "store") as opened:
        yield opened


def test_own_functions_are_metrics(
    write: Write, tmp_path: Path, system: AgentSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        "from kvactors.actors.scenarios.journal.records import Metric\n"
        "def words(run):\n"
        "    return [Metric('words', float(sum(len(t.answer) for t in run.turns)), 1)]\n",
        "own_metrics.py",
    )
    monkeypatch.syspath_prepend(tmp_path)

    [run] = Scenario.load(write(TALK + "metrics: own_metrics:words\n")).run(
        system, out=tmp_path / "out"
    )

    assert next(m.value for m in run.metrics if m.name == "words") > 20


@pytest.mark.parametrize(
    ("made", "error"),
    [
        ("1 // 0", "ZeroDivisionError"),
        ("[None]", "InvalidScenario"),
        ("[Metric('w', None, 1)]", "InvalidScenario"),
        ("[Metric('recall', 4.0, 3)]", "InvalidScenario"),
        ("[Metric('tokens_prefilled', 4.0, 3, 'anna')]", "InvalidScenario"),
        ("[Metric('w', 1.0, 1, agent=['anna'])]", "InvalidScenario"),
        ("[Metric('w', 1.0, 1, phase=1)]", "InvalidScenario"),
        ("[Metric('w', 1.0, 1, distance='far')]", "InvalidScenario"),
        ("[Metric('w', 1.0, 'one')]", "InvalidScenario"),
        ("[Metric('w', 1.0, 1, 'anna'), Metric('w', 2.0, 1, 'anna')]", "InvalidScenario"),
        ("[Metric('w', True, 1)]", "InvalidScenario"),
        ("[Metric(None, 1.0, 1)]", "InvalidScenario"),
    ],
)
def test_an_own_metric_that_is_wrong_is_a_failure_in_the_report(
    write: Write,
    tmp_path: Path,
    system: AgentSystem,
    monkeypatch: pytest.MonkeyPatch,
    made: str,
    error: str,
) -> None:
    head = "from kvactors.actors.scenarios.journal.records import Metric\n"
    name = f"own_{abs(hash(made))}"
    write(f"{head}def words(run):\n    return {made}\n", f"{name}.py")
    monkeypatch.syspath_prepend(tmp_path)

    [run] = Scenario.load(write(f"{TALK}metrics: {name}:words\n")).run(system, out=tmp_path / "out")

    assert run.failures[0].error == error
    assert run.failures[0].text.startswith(f"metric {name}:words ({name}.py:2): ")
    assert f"metric {name}:words" in (tmp_path / "out/report.html").read_text()


def test_an_own_metric_may_be_a_number_of_numpys(
    write: Write, tmp_path: Path, system: AgentSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = "[Metric('a', np.int64(6), 1), Metric('b', np.float32(0.5), 1)]"
    head = "import numpy as np\nfrom kvactors.actors.scenarios.journal.records import Metric\n"
    write(f"{head}def words(run):\n    return {made}\n", "own_of_numpy.py")
    monkeypatch.syspath_prepend(tmp_path)
    text = f"{TALK}metrics: own_of_numpy:words\n"

    [run] = Scenario.load(write(text)).run(system, out=tmp_path / "out")

    assert not run.failures
    assert [(m.name, m.value) for m in run.metrics if m.name in "ab"] == [("a", 6), ("b", 0.5)]
