"""Every example runs, in a process of its own as a reader would start it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from house import files, module

from kvactors.bench.micro import memory

EXAMPLES = Path(__file__).parents[2] / "examples"
DRAWN = ("experiments.", "micro.memory", "micro.storage")


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def shown(command: str) -> list[str]:
    """The lines that a page shows of what a command prints; what it leaves out is left out."""
    page = (EXAMPLES.parent / "actors" / "README.md").read_text(encoding="utf-8")
    block = page.split(f"`python {command}`")[1].split("```\n")[1]
    return [line for line in block.splitlines() if line != "..."]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "examples/prisoners_dilemma.py",
        "examples/gossip.py --plot gossip.png",
        "examples/stress_custom.py",
    ],
)
def test_what_the_page_shows_is_what_is_printed(tmp_path: Path, command: str) -> None:
    name, *options = command.removeprefix("examples/").split()
    printed = iter(
        run(name, *(str(tmp_path / o) if o.endswith("png") else o for o in options)).splitlines()
    )

    lines = shown(command)

    assert len(lines) > 1
    # In this order: what was printed before a line is used up by the search for it.
    assert [line for line in lines if line not in printed] == []


@pytest.mark.slow
def test_remember() -> None:
    out = run("remember.py")

    assert "Your cat is called Biscuit.  (warm" in out
    assert "Marta lives in Lisbon." in out


@pytest.mark.slow
def test_many_agents() -> None:
    out = run("many_agents.py", "--agents", "6")

    header, told, asked = (line.split() for line in out.splitlines()[:3])
    assert header[:4] == ["turns", "reused", "prefilled", "generated"]
    assert (told[:3], asked[:2]) == (["told", "6", "0"], ["asked", "6"])
    assert int(asked[2]) > 6
    assert "6 of 6 agents knew their own code" in out


@pytest.mark.slow
def test_staggered() -> None:
    out = run("staggered.py", "--busy", "2", "--turns", "3", "--arrivals", "3", "--long", "20")

    assert "newcomer 0" in out
    assert "reader 1" in out


@pytest.mark.slow
def test_long_life() -> None:
    out = run("long_life.py")

    lives = [line.split() for line in out.splitlines()[1:5]]
    assert [life[:2] for life in lives] == [[f"{n}", "10"] for n in (1, 2, 3, 4)]
    cold, evictions, prefilled = ([int(life[at]) for life in lives] for at in (4, 5, 7))
    # Only the first turn of all is cold, and what was evicted is not computed again.
    assert cold == [1, 0, 0, 0]
    assert evictions[-1] > 0
    assert max(prefilled) < 150
    assert lives[-1][-2:] == ["called", "Biscuit."]


@pytest.mark.slow
def test_prisoners_dilemma() -> None:
    out = run("prisoners_dilemma.py")

    again = out[out.index("4 again") :]
    assert "marco  says: The code of the garage is 4711.  (warm)" in again
    assert "emma   says: I do not know.  (warm)" in again
    assert out.count("chooses: ") == 4
    assert "the interrogator knows: The password of the office is falcon." in again


@pytest.mark.slow
def test_gossip(tmp_path: Path) -> None:
    plot = tmp_path / "gossip.png"

    out = run("gossip.py", "--agents", "4", "--hops", "1", "--plot", str(plot))

    rows = [line.split()[2:] for line in out.splitlines() if line.startswith("agent")]
    assert [row[n] for n, row in enumerate(rows)] == ["#"] * 4
    assert sum(row.count("#") + row.count(".") for row in rows) >= 14
    assert plot.stat().st_size > 1000


@pytest.mark.slow
def test_stress_custom() -> None:
    out = run("stress_custom.py", "--agents", "6", "--messages", "60")

    assert "nothing was made, nothing was lost" in out


def test_mlx_lm_batch() -> None:
    out = run("mlx_lm_batch.py")

    for answer in ("called Biscuit.", "is on Friday.", "lives in Lisbon."):
        assert answer in out


def test_own_loop() -> None:
    lines = run("own_loop.py").splitlines()
    texts = {line[:10].strip(): line[10:].strip() for line in lines if line[0] != " "}

    cat, friday, lisbon = (
        "Your cat is called Biscuit.",
        "The meeting is on Friday.",
        "Marta lives in Lisbon.",
    )
    assert texts["decode"] == cat
    for several in ("streams", "fork", "admit"):
        assert texts[several] == f"{cat} | {friday} | {lisbon}"
    assert texts["take back"] == " | ".join([friday] * 3)
    assert texts["speculate"] == lisbon
    tokens, forwards = (int(word) for word in lines[-2].split() if word.isdecimal())
    assert forwards <= tokens / 2
    assert lines[-1].endswith("the same as one by one: True")


def test_the_page_of_sessions_shows_what_the_example_has() -> None:
    page = (EXAMPLES.parent / "core/arena/sessions/README.md").read_text(encoding="utf-8")
    source = (EXAMPLES / "own_loop.py").read_text(encoding="utf-8")
    shown = re.findall(r"```python\n(def .*?)\n```", page, re.DOTALL)

    assert len(shown) >= 8
    assert [function for function in shown if f"{function}\n" not in source] == []


# Those that run as `python -m kvactors.bench.ROOM` or `ROOM.NAME`.
BENCHES = [
    "cluster.known",
    "experiments.chunks",
    "experiments.end_to_end",
    "experiments.full_size",
    "experiments.lengths",
    "experiments.matching",
    "experiments.multi_turn",
    "experiments.recovery",
    "experiments.restore",
    "experiments.retrieval",
    "experiments.shipped",
    "experiments.simulations",
    "experiments.staggered",
    "families",
    "micro.actors",
    "micro.memory",
    "micro.prefix",
    "micro.storage",
    "micro.tracing",
    "quality",
    "quality.recall",
]
# Takes minutes, however quick: test_bench.py measures its curves one by one.
CURVES = "table.growth"
# Writes what was measured into pages, as test_figures.py asks.
PAGES = "table.pages"


def test_every_bench_is_run() -> None:
    there = {
        module(path).removeprefix("kvactors.bench.").removesuffix(".__main__")
        for path in files("bench")
        if "__main__" in path.read_text(encoding="utf-8")
    }

    assert there == {*BENCHES, CURVES, PAGES}


@pytest.mark.parametrize("bench", BENCHES)
@pytest.mark.slow
def test_benches_end_with_one_json_line(tmp_path: Path, bench: str) -> None:
    plot, page = tmp_path / "out.png", tmp_path / "out.md"
    drawn, written = bench.startswith(DRAWN), bench.startswith("experiments.")
    command = [sys.executable, "-m", f"kvactors.bench.{bench}", "--quick"]
    if drawn:
        command += ["--plot", str(plot)]
    if written:
        of_before = f"## {bench.split('.')[-1]}\n\nof before\n\n"
        page.write_text(f"# Results\n\n{of_before}## other\n\nkept\n")
        command += ["--page", str(page)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)

    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["bench"] == bench.split(".")[-1]
    assert found["rows"]
    assert plot.exists() == drawn
    if written:
        results, ours, other = page.read_text().split("## ")
        assert (results, other) == ("# Results\n\n", "other\n\nkept\n")
        assert "of before" not in ours
        assert found["date"] in ours


def test_every_section_of_the_experiments_page_is_the_table_of_one() -> None:
    page = (EXAMPLES.parent / "bench/results/experiments.md").read_text(encoding="utf-8")

    table = r"^## (\w+)\n\n.+\n\n```text\n(?:.+\n){2,}```\n\n20\d\d-.+\n"
    sections = re.findall(table, page, re.M)
    assert len(sections) == page.count("\n## ") > 4
    assert {f"experiments.{name}" for name in sections} <= {*BENCHES}


@pytest.mark.parametrize(
    ("dtype", "ratio"), [("float16", 0.28125), ("float32", 0.15625)], ids=["float16", "float32"]
)
def test_kv_takes_the_memory_that_the_formula_says(dtype: str, ratio: float) -> None:
    row = memory.kv_row(dtype, 4, 512)

    assert row["formula_ratio"] == ratio
    assert row["measured_ratio"] == pytest.approx(ratio, rel=0.01)


@pytest.mark.slow
def test_an_idle_agent_takes_at_most_8_kb() -> None:
    command = [sys.executable, "-m", "kvactors.bench.micro.actors"]
    command += ["--only", "agents", "--agents", "20000"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)

    assert ended.returncode == 0, ended.stderr
    assert 0 < json.loads(ended.stdout.splitlines()[-1])["bytes"] <= 8192
