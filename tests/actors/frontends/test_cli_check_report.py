"""The report of `kvactors check`: whose lines are in it, its numbers, and what it warns of."""

import json
from pathlib import Path
from typing import Any

import pytest
from seeded import bug, seeded
from typer.testing import CliRunner

from kvactors.actors.frontends.cli.app import app
from kvactors.bench.check import device
from kvactors.bench.check.figures import LINES
from kvactors.bench.check.kinds import KINDS
from kvactors.bench.regime import matching
from kvactors.core.quant.device import on_cpu

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")


def check(*options: str) -> tuple[int, str]:
    """Status and output of the command."""
    result = CliRunner().invoke(app, ["check", *options])
    return result.exit_code, result.stdout or result.stderr


@bug(device, "NVIDIA")
def no_driver_is_there(true: Any) -> tuple[Path, ...]:
    return ()


@bug(device, "NVIDIA")
def a_driver_is_there(true: Any) -> tuple[Path, ...]:
    return (Path(__file__),)


@bug(device, "SECONDS")
def a_busy_machine_has_time(true: float) -> float:
    return 10 * true


@pytest.mark.slow
def test_the_report_as_json_has_the_numbers() -> None:
    with seeded(no_driver_is_there), seeded(a_busy_machine_has_time):
        status, text = check("--only", "products", "--only", "kv-bytes", "--json")

    found = json.loads(text)
    assert status == 0
    assert {"device", "mlx", "mlx_lm", "kvactors", "seconds"} <= set(found)
    assert (found["violated"], found["warnings"]) == ([], [])
    products, line = found["checks"]
    assert (products["name"], products["verdict"]) == ("quantized products", "held")
    assert 0 < products["numbers"]["worst"] < 1e-3
    assert products["numbers"]["shapes"] > 100
    assert line["verdict"] == "measured"
    assert line["numbers"]["ratio"] == pytest.approx(0.28125, abs=0.01)


@pytest.mark.skipif(not on_cpu(), reason="MLX computes on a GPU")
def test_a_cpu_that_is_checked_beside_a_gpu_is_warned_of_with_the_readme_s_command() -> None:
    with seeded(a_driver_is_there):
        status, text = check("--only", "kv-bytes")

    (warning,) = (line for line in text.splitlines() if line.startswith("warning: "))
    command = warning.rsplit(": ", 1)[1]
    assert status == 0
    assert f"\n{command}  #" in README


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["nonsense"], "no check is called nonsense: there are quantized products, full attention"),
        (["full", "nonsense"], "no check is called nonsense: there are"),
        (["latent (MLX"], "'latent (MLX' is no regular expression: "),
        (["a{99999999999}"], "is no regular expression: "),
    ],
)
def test_each_name_that_no_check_has_is_refused_with_those_that_there_are(
    names: list[str], told: str
) -> None:
    status, text = check(*(word for name in names for word in ("--only", name)))

    assert status == 2
    assert told in text


def test_a_name_is_taken_as_the_report_has_it_and_as_a_pattern() -> None:
    names = [*(kind.name for kind in KINDS), *LINES]

    assert [matching(names, [name], "check") for name in names] == [[name] for name in names]
    assert matching(names, ["latent (MLA"], "check") == ["latent (MLA)"]
    assert matching(names, ["^latent|bytes"], "check") == ["latent (MLA)", "kv-bytes-per-token"]
    assert matching(names, [], "check") == names
