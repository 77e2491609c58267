"""Pictures are whole and say what they show, whatever things are called."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from runs import make_run, make_turn, probe

from kvactors.actors.scenarios.journal.records import Metric
from kvactors.actors.scenarios.results.write import write_results

pytestmark = pytest.mark.usefixtures("drawn")


def test_pictures_are_whole_and_a_name_is_no_formula(tmp_path: Path) -> None:
    odd = make_run(make_turn(1, "$x_$", heard_by=("$\\frac{$", "<&>")))

    for svg in (path for path in write_results([odd], tmp_path) if path.suffix == ".svg"):
        ElementTree.parse(svg)

    assert "$x_$" in (tmp_path / "figures" / "timeline.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("seeds", "caption"), [((1,), "gain."), ((1, 2), "gain, with 95 % intervals.")]
)
def test_a_caption_promises_intervals_where_there_are_some(
    seeds: Sequence[int], caption: str, tmp_path: Path
) -> None:
    own = (Metric("gain", 3.0, 1),)

    write_results([make_run(make_turn(1), seed=seed, own=own) for seed in seeds], tmp_path)

    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<figcaption>{caption} <code>figures/metric-gain.svg" in page


def test_each_own_metric_has_a_picture_of_its_own(tmp_path: Path) -> None:
    files = {
        "信頼": "metric-信頼",
        "協力": "metric-協力",
        "trust (mean)": "metric-trust--mean-",
        "trust [mean]": "metric-trust--mean--2",
        "Trust (mean)": "metric-Trust--mean--3",
        "a" * 60: "metric-" + "a" * 50,
    }
    own = tuple(Metric(name, 1.0, 1) for name in files)

    written = write_results([make_run(own=own)], tmp_path)

    assert [path.stem for path in written if path.suffix == ".png"] == list(files.values())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for name, file in files.items():
        assert f"<figcaption>{name}. <code>figures/{file}.svg" in page


def test_what_a_font_cannot_show_is_no_warning(tmp_path: Path) -> None:
    varied = [make_run(probe(1, right=True), parameters={"mood": mood}) for mood in ("落着", "怒")]

    written = write_results(varied, tmp_path)

    assert "怒" in next(path for path in written if path.name == "shares.svg").read_text()


def test_many_agents_and_many_turns_make_no_huge_picture(tmp_path: Path) -> None:
    turns = [
        make_turn(step, f"agent {step % 300}", heard_by=(f"agent {(7 * step) % 300}",))
        for step in range(4000)
    ]

    write_results([make_run(*turns)], tmp_path)

    sizes = [path.stat().st_size for path in (tmp_path / "figures").glob("*.svg")]
    assert len(sizes) == 4
    assert max(sizes) < 1_000_000
