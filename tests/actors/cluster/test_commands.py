"""The commands of a cluster, as far as they go without one."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from children import ends, run_child

NO_RAY = """
import sys
sys.modules["ray"] = None
from kvactors.actors.cli import main
sys.argv[0] = "kvactors"
main()
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--head", "--join", "127.0.0.1:1"], "a node is --head, or it takes --join HOST:PORT"),
        ([], "a node is --head, or it takes --join HOST:PORT"),
        (["--head", "--durable", "three"], 'durable is "one" or "two", not \'three\''),
        (["--head", "--lease", "inf"], "--lease must be above 0 seconds, not inf"),
        (["--head"], "pip install 'kvactors[ray]'"),
    ],
)
def test_a_node_that_cannot_begin_says_what_to_do(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = run_child(NO_RAY, "node", "--store", str(tmp_path / "store"), *arguments)

    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("arguments", [["status"], ["backup", "file:///nowhere"]])
def test_the_state_of_a_cluster_and_its_backup_need_ray_too(arguments: list[str]) -> None:
    done = run_child(NO_RAY, "cluster", *arguments)

    assert done.returncode == 2
    assert "ray is missing: pip install 'kvactors[ray]'" in done.stderr


def test_nodes_of_tests_that_do_not_end_are_killed_each() -> None:
    quick = subprocess.Popen([sys.executable, "-c", ""])
    stuck = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]

    late = [process for process in [*stuck, quick] if not ends(process, 60 * (process is quick))]

    assert late == stuck
    assert [process.returncode for process in stuck] == [-signal.SIGKILL] * 2
