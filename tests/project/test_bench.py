"""The performance table: what a regime says of its measurements, and the command."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf, nan
from pathlib import Path
from subprocess import run as run_process
from typing import Any, Literal

import pytest
from children import run_child
from seeded import bug, seeded
from typer.testing import CliRunner

from kvactors.actors.frontends.cli.app import app
from kvactors.bench.check.suite import run_checks
from kvactors.bench.peer_process import PeerFailed
from kvactors.bench.regime import CannotRun, Outcome, Regime, Side, Sides, run
from kvactors.bench.setup import QUICK, Setup
from kvactors.bench.table import suite
from kvactors.bench.table.figures import draw as draw_ratios
from kvactors.bench.table.suite import REGIMES, run_suite
from kvactors.core.errors import ContextExceeded, InvalidConfig


def taking_turns(*pairs: tuple[float, float], tokens: tuple[int, int] = (7, 7)) -> Any:
    """A measurement that gives these pairs, and one token a side."""

    @contextmanager
    def measure(_setup: Setup) -> Iterator[Sides]:
        """Numbers that nobody measured."""
        ours, theirs = (iter(values) for values in zip(*pairs, strict=True))
        yield lambda: Side(next(ours), [tokens[0]]), lambda: Side(next(theirs), [tokens[1]])

    return measure


@contextmanager
def impossible(_setup: Setup) -> Iterator[Sides]:
    """Something that the peer lacks."""
    raise CannotRun("the peer has no batch")
    yield


# Ours over theirs: 2, 1 and 4.
THREE = taking_turns((2.0, 1.0), (3.0, 3.0), (4.0, 1.0))


def test_a_ratio_is_the_median_of_the_ratios_of_neighbouring_runs() -> None:
    outcome = run(Regime("three", "nothing", 3.0, THREE, runs=3), Setup(QUICK))

    assert (outcome.ratio, outcome.ours, outcome.theirs) == (2.0, 3.0, 1.0)
    assert outcome.spread == (1.5, 3.0)
    assert outcome.met


@pytest.mark.parametrize(
    ("better", "target", "verdict"),
    [
        ("lower", 3.0, "yes"),
        ("lower", 2.0, "median only"),
        ("lower", 1.9, "no"),
        ("higher", 1.5, "yes"),
        ("higher", 2.0, "median only"),
        ("higher", 2.1, "no"),
    ],
)
def test_a_target_is_met_where_the_worse_quartile_meets_it(
    better: Literal["lower", "higher"], target: float, verdict: str
) -> None:
    outcome = run(Regime("three", "nothing", target, THREE, better, runs=3), Setup(QUICK))

    assert outcome.row()[-1] == verdict
    assert outcome.met is (verdict == "yes")


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize(
    ("ours", "theirs"), [(-3504.0, 2048.0), (-1.0, -2.0), (0.0, 1.0), (nan, 1.0), (1.0, inf)]
)
def test_what_is_not_a_positive_number_was_not_measured_and_meets_nothing(
    better: Literal["lower", "higher"], ours: float, theirs: float
) -> None:
    pairs = taking_turns((1.0, 1.0), (ours, theirs))
    outcome = run(Regime("two", "nothing", 1.0, pairs, better, runs=2), Setup(QUICK))

    assert "not a positive number" in outcome.row()[-1]
    assert not outcome.met
    assert json.loads(json.dumps(outcome.as_json(), allow_nan=False))["ratio"] is None


def test_sides_that_decode_other_tokens_count_for_nothing_unless_it_is_said_why() -> None:
    differing = taking_turns((1.0, 1.0), tokens=(7, 8))

    strict = run(Regime("one", "nothing", 1.0, differing, runs=1), Setup(QUICK))
    said = run(Regime("one", "nothing", 1.0, differing, runs=1, differ="because"), Setup(QUICK))

    assert strict.row()[-1] == "invalid: the tokens of both sides differ"
    assert said.met


def test_sides_take_turns_in_who_begins() -> None:
    begun = []

    @contextmanager
    def measure(_setup: Setup) -> Iterator[Sides]:
        """Who is asked, in order."""

        def side(name: str) -> Side:
            begun.append(name)
            return Side(1.0, [7])

        yield lambda: side("ours"), lambda: side("theirs")

    outcome = run(Regime("order", "nothing", 1.0, measure, runs=3), Setup(QUICK))

    assert begun == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert outcome.order == ("ours", "theirs", "ours")


def test_a_row_says_when_and_where_it_was_measured() -> None:
    row = run(Regime("three", "nothing", 3.0, THREE, runs=3), Setup(QUICK)).as_json()

    assert datetime.fromisoformat(row["date"]) <= datetime.now(UTC)
    assert row["commit"]
    assert len(row["load"]) == 2
    assert row["holds_on"] == "x86 CPU build"


def test_a_regime_that_a_peer_cannot_run_says_so() -> None:
    outcome = run(Regime("none", "nothing", 2.0, impossible), Setup(QUICK))

    assert outcome.met is None
    assert outcome.row()[-1] == "the peer has no batch"


def test_every_regime_says_what_is_compared() -> None:
    names = [regime.name for regime in REGIMES]

    assert len(set(names)) == len(names)
    assert all(len(regime.described) > 40 for regime in REGIMES)


@pytest.mark.slow
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


def test_a_name_that_matches_no_regime_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="is no regular expression"):
        run_suite(QUICK, only=["("], json=tmp_path / "found.json")
    with pytest.raises(InvalidConfig, match="is no regular expression"):
        run_checks(["*"])
    with pytest.raises(InvalidConfig, match="no regime is called nonsense: there are prefill-4k, "):
        run_suite(QUICK, only=["tell-rate", "nonsense"], json=tmp_path / "found.json")

    assert list(tmp_path.iterdir()) == []


def test_one_regime_is_measured_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_suite(QUICK, only=["tell-rate"], json=tmp_path / "found.json", growth=True)

    found = json.loads((tmp_path / "found.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["tell-rate"]
    assert not {"bounds", "growth"} & found.keys()
    assert "What this machine does" not in capsys.readouterr().out


def raising(error: Exception) -> Any:
    """What cannot be measured, since this is raised."""

    @contextmanager
    def measure(_setup: Setup) -> Iterator[Sides]:
        """Nothing."""
        raise error
        yield

    return measure


@bug(suite, "REGIMES")
def two_lines_fail(_true: Any) -> Any:
    lines = {
        "peerless": raising(PeerFailed("Traceback:\n  File\nValueError: no such peer\n")),
        "too-long": raising(ContextExceeded("2 tokens of 1")),
        "three": THREE,
    }
    return tuple(Regime(name, "nothing", 4.0, line, runs=3) for name, line in lines.items())


def test_a_line_that_fails_says_why_and_those_behind_it_are_measured() -> None:
    names = [option for name in ("peerless", "too-long", "three") for option in ("--only", name)]

    with seeded(two_lines_fail):
        ended = CliRunner().invoke(app, ["bench", *names])

    peerless, long, three = ended.stdout.splitlines()[-3:]
    assert peerless.endswith("PeerFailed: ValueError: no such peer")
    assert long.endswith("ContextExceeded: 2 tokens of 1")
    assert three.endswith("yes")
    assert ended.exit_code == 1


@pytest.mark.parametrize(("stopped", "status"), [(KeyboardInterrupt, 130), (OSError, 2)])
def test_what_ends_it_early_leaves_the_table_of_what_was_measured(
    stopped: type[BaseException], status: int
) -> None:
    @bug(suite, "run")
    def the_second_regime_is_the_last(true: Any) -> Any:
        def measure(regime: Regime, setup: Setup) -> Outcome:
            if regime.name == "tell-rate":
                raise stopped
            return true(regime, setup)  # type: ignore[no-any-return]

        return measure

    names = ["--only", "kv-bytes-per-token", "--only", "tell-rate"]
    with seeded(the_second_regime_is_the_last):
        ended = CliRunner().invoke(app, ["bench", "--quick", *names])

    assert ended.exit_code == status
    assert ended.stdout.splitlines()[-1].split()[0] == "kv-bytes-per-token"


def test_without_the_extra_for_grammars_their_line_says_so() -> None:
    ended = run_child(
        """
        import sys
        sys.modules["llguidance"] = None
        from kvactors.actors.cli import main
        main()
        """,
        *("bench", "--quick", "--only", "decode-grammar"),
    )

    assert ended.returncode == 0
    assert "pip install 'kvactors[grammar]'" in ended.stdout.splitlines()[-1]


def test_ratios_are_drawn_with_plain_ticks_and_without_what_is_invalid(tmp_path: Path) -> None:
    sound = run(Regime("three", "nothing", 3.0, THREE, runs=3), Setup(QUICK))
    negative = run(Regime("bad", "nothing", 3.0, taking_turns((-1.0, 1.0)), runs=1), Setup(QUICK))

    draw_ratios([each.as_json() for each in (sound, negative)], tmp_path / "found.svg")

    texts = re.findall("<!-- (.*?) -->", (tmp_path / "found.svg").read_text())
    assert {"0.1", "0.5", "1", "2", "three"} <= set(texts)
    assert "bad" not in texts
    assert not any("mathdefault" in text for text in texts)
