"""Every example runs, in a process of its own as a reader would start it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_remember() -> None:
    out = run("remember.py")

    assert "Your cat is called Biscuit.  (warm" in out
    assert "Marta lives in Lisbon." in out


def test_many_agents() -> None:
    out = run("many_agents.py", "--agents", "6")

    assert "6 agents knew their own code" in out


def test_staggered() -> None:
    out = run("staggered.py", "--busy", "2", "--turns", "3", "--arrivals", "3", "--long", "20")

    assert "newcomer 0" in out
    assert "reader 1" in out


def test_mlx_lm_batch() -> None:
    out = run("mlx_lm_batch.py")

    for answer in ("called Biscuit.", "is on Friday.", "lives in Lisbon."):
        assert answer in out


@pytest.mark.parametrize("bench", ["cascade", "decode", "prefix", "recall", "restore", "storage"])
@pytest.mark.slow
def test_benches_end_with_one_json_line(bench: str) -> None:
    command = [sys.executable, "-m", f"kvactors.bench.{bench}", "--quick"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)

    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["bench"] == bench
    assert found["rows"]
