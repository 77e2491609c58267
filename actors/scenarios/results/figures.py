"""Pictures of runs, as PNG for slides and SVG for papers and pages. Need matplotlib. Whoever calls
them may be on any thread: they share nothing with others, not even pyplot.

In an SVG that goes into a page, ink has the colour of the page's text.
"""

import itertools
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvactors.actors.scenarios.journal.records import Run
from kvactors.actors.scenarios.results.measure import COSTS, SHARES
from kvactors.actors.scenarios.results.tables import Row, point_of
from kvactors.actors.scenarios.results.talk import conversations, process_begins

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Picture", "draw_all", "plotting"]

INK = "#123457"
# Seen on white and on black.
BLUE = "#3f7fb5"
CACHES = {"hot": "#d1495b", "warm": "#edae49", "cold": BLUE}
TOKENS = {"reused": "#8fb8a8", "prefilled": BLUE, "generated": "#d1495b"}
# More names than these are not readable beside an axis, more arrows not in a circle, more marks
# not fast in a browser.
NAMES, CIRCLE, MARKS = 40, 24, 500
# Letters of a metric's name in a file's: a file system takes 255 bytes, of up to four a letter.
LETTERS = 50
INKED = (
    *("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"),
    *("xtick.color", "ytick.color", "legend.labelcolor"),
)
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    # Else ids are random, and two files of the same runs differ.
    "svg.hashsalt": "kvactors",
    # Names are names: no formula begins at a dollar.
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(INKED, INK),
}


class Picture(NamedTuple):
    """A drawn picture: `svg` is for a page."""

    name: str
    caption: str
    svg: str
    files: tuple[Path, ...]


def plotting() -> bool:
    """Whether there is something to draw with."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def draw_all(runs: Sequence[Run], rows: Sequence[Row], folder: Path) -> list[Picture]:
    """Every picture that these runs, and their `rows` over seeds, have something for, written into
    `folder`."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        # A browser has other fonts: what this one cannot show is in the SVG as text.
        warnings.filterwarnings("ignore", message="Glyph")
        return [
            Picture(name, caption, *_save(figure, folder / name))
            for name, caption, figure in _figures(runs, rows)
        ]


def _save(figure: "Figure", path: Path) -> tuple[str, tuple[Path, ...]]:
    """As PNG and SVG beside `path`, with ink on white; and the SVG for a page."""
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    figure.savefig(png, dpi=150, facecolor="white", metadata={"Software": None})
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    text = drawn.getvalue().decode()
    svg.write_text(text, encoding="utf-8")
    # Ids of groups are the same in every picture, and nothing refers to them.
    page = re.sub(r' id="[a-zA-Z0-9]+_\d+"', "", text[text.index("<svg") :])
    return page.replace(INK, "currentColor"), (png, svg)


def _figures(runs: Sequence[Run], rows: Sequence[Row]) -> Iterator[tuple[str, str, "Figure"]]:
    whole = [row for row in rows if all(row[of] is None for of in ("agent", "phase", "branch"))]
    if far := [row for row in whole if row["name"] == "recall" and row["distance"] is not None]:
        yield "recall", "Recall of facts of earlier phases, with 95 % intervals", _recall(far)
    if shares := [row for row in whole if row["name"] in SHARES and row["distance"] is None]:
        yield "shares", "Shares of answers, with 95 % intervals", _shares(shares)
    taken = set[str]()
    for name in dict.fromkeys(row["name"] for row in whole):
        if name not in SHARES and name not in COSTS:
            own = [row for row in whole if row["name"] == name]
            known = "" if _errors(own) is None else ", with 95 % intervals"
            yield _free(f"metric-{_plain(name)}", taken), name + known, _shares(own)
    if any(run.turns for run in runs):
        yield "tokens", "Tokens by phase, mean over the runs", _tokens(runs)
        yield "timeline", f"Turns over time, {runs[0].header.label}", _timeline(runs[0])
    if spoken := conversations(runs):
        yield "talk", "Who was heard by whom, in all runs", _talk(spoken)


def _plain(name: str) -> str:
    """A name as part of a file's, in letters of any script."""
    return "".join(letter if letter.isalnum() else "-" for letter in name[:LETTERS])


def _free(name: str, taken: set[str]) -> str:
    """A name that none of the `taken` is, nor is to who takes capitals for small letters: with a
    number where it must."""
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    free = next(each for each in itertools.chain([name], numbered) if each.casefold() not in taken)
    taken.add(free.casefold())
    return free


def _axes(width: float = 7.0, height: float = 3.2) -> tuple["Figure", "Axes"]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _of(row: Row) -> str:
    """The point of a sweep that a row is of."""
    return ", ".join(f"{name} {value}" for name, value in point_of(row).items())


def _errors(rows: Sequence[Row]) -> list[list[float]] | None:
    """How far the intervals reach below and above the means."""
    if any(row["low"] is None for row in rows):
        return None
    return [
        [max(0.0, row["mean"] - row["low"]) for row in rows],
        [max(0.0, row["high"] - row["mean"]) for row in rows],
    ]


def _recall(rows: Sequence[Row]) -> "Figure":
    figure, axes = _axes()
    points = list(dict.fromkeys(map(_of, rows)))
    for place, each in enumerate(points):
        line = sorted((r for r in rows if _of(r) == each), key=lambda row: row["distance"])
        # Side by side, or intervals would hide each other.
        apart = 0.06 * (place - (len(points) - 1) / 2)
        x = [row["distance"] + apart for row in line]
        y = [row["mean"] for row in line]
        axes.errorbar(x, y, _errors(line), marker="o", capsize=3, label=each or "recall")
    distances = sorted({row["distance"] for row in rows})
    axes.set(xlabel="phases ago", ylabel="share recalled", ylim=(-0.03, 1.03), xticks=distances)
    if len(points) > 1:
        axes.legend(frameon=False)
    return figure


def _shares(rows: Sequence[Row]) -> "Figure":
    """A dot for each metric and point of a sweep."""
    labels = [" ".join(filter(None, (row["name"], _of(row)))) for row in rows]
    figure, axes = _axes(height=min(12.0, 0.9 + 0.3 * len(rows)))
    places = range(len(rows))
    axes.errorbar(
        [r["mean"] for r in rows], places, xerr=_errors(rows), fmt="o", capsize=3, color=BLUE
    )
    axes.set(yticks=list(places), yticklabels=labels, ylim=(len(rows) - 0.5, -0.5))
    if all(row["name"] in SHARES for row in rows):
        axes.set_xlim(-0.03, 1.03)
    return figure


def _tokens(runs: Sequence[Run]) -> "Figure":
    phases = list(dict.fromkeys(phase for run in runs for phase in run.header.phases))
    figure, axes = _axes(height=min(12.0, 1.0 + 0.35 * len(phases)))
    begin = np.zeros(len(phases))
    for name, colour in TOKENS.items():
        sums: Counter[str] = Counter()
        for metric in (metric for run in runs for metric in run.metrics):
            if metric.name == f"tokens_{name}" and metric.phase is not None:
                sums[metric.phase] += int(metric.value)
        widths = np.array([sums[phase] / len(runs) for phase in phases])
        axes.barh(phases, widths, left=begin, color=colour, label=name)
        begin += widths
    axes.invert_yaxis()
    figure.legend(loc="outside upper right", ncols=3, frameon=False)
    return figure


def _timeline(run: Run) -> "Figure":
    """A row an agent, a line a turn, in the colour of where its memory was. Few turns lead to their
    transcripts."""
    from matplotlib.collections import LineCollection

    agents = list(dict.fromkeys([*run.header.agents, *(turn.agent for turn in run.turns)]))
    figure, axes = _axes(height=min(12.0, 1.2 + 0.22 * len(agents)))
    row = {agent: place for place, agent in enumerate(agents)}
    begins = process_begins(run)
    many = len(run.turns) > MARKS
    for cache, colour in CACHES.items():
        turns = [turn for turn in run.turns if turn.cache == cache]
        starts = [begins(turn) + turn.begun for turn in turns]
        lines = [
            [(start, row[turn.agent]), (start + turn.total, row[turn.agent])]
            for start, turn in zip(starts, turns, strict=True)
        ]
        urls = None if many else [f"#r0-{turn.step}" for turn in turns]
        width = max(1.0, min(8.0, 300 / len(agents)))
        marks = LineCollection(
            lines, colors=colour, linewidths=width, urls=urls, label=cache, rasterized=many
        )
        axes.add_collection(marks)
    axes.autoscale()
    axes.set(xlabel="s", ylim=(len(agents) - 0.5, -0.5))
    _name(axes.yaxis, agents)
    figure.legend(loc="outside upper right", ncols=3, frameon=False)
    return figure


def _name(axis: Any, agents: Sequence[str]) -> None:
    """Names beside an axis, where they are few enough to read."""
    if len(agents) <= NAMES:
        axis.set_ticks(range(len(agents)), labels=agents)


def _talk(spoken: Counter[tuple[str, str]]) -> "Figure":
    agents = list(dict.fromkeys(name for pair in spoken for name in pair))
    return _circle(spoken, agents) if len(agents) <= CIRCLE else _matrix(spoken, agents)


def _circle(spoken: Counter[tuple[str, str]], agents: Sequence[str]) -> "Figure":
    """Agents in a circle, arrows from who spoke to who heard, wider where that was more often."""
    figure, axes = _axes(6.0, 5.0)
    turn = np.linspace(0, 2 * np.pi, len(agents), endpoint=False)
    places = dict(zip(agents, zip(np.sin(turn), np.cos(turn), strict=True), strict=True))
    most = max(spoken.values())
    for (speaker, hearer), times in spoken.items():
        style = {
            "arrowstyle": "-|>",
            "connectionstyle": "arc3,rad=0.12",
            "color": BLUE,
            "alpha": 0.35 + 0.65 * times / most,
            "linewidth": 0.5 + 2.5 * times / most,
            "shrinkA": 12,
            "shrinkB": 12,
        }
        axes.annotate("", places[hearer], places[speaker], arrowprops=style)
    for name, (x, y) in places.items():
        side = "center" if abs(x) < 0.2 else "left" if x > 0 else "right"
        axes.text(1.1 * x, 1.1 * y, name, ha=side, va="center")
        axes.plot([x], [y], "o", color=INK, markersize=5)
    axes.set(xlim=(-1.4, 1.4), ylim=(-1.25, 1.25), aspect="equal")
    axes.set_axis_off()
    return figure


def _matrix(spoken: Counter[tuple[str, str]], agents: Sequence[str]) -> "Figure":
    """The same for many agents: how often who, a row, was heard by whom, a column."""
    figure, axes = _axes(6.0, 5.0)
    times = np.zeros((len(agents), len(agents)))
    row = {agent: place for place, agent in enumerate(agents)}
    for (speaker, hearer), count in spoken.items():
        times[row[speaker], row[hearer]] = count
    shown = axes.imshow(times, cmap="magma_r", interpolation="nearest")
    figure.colorbar(shown, ax=axes, label="times heard")
    _name(axes.yaxis, agents)
    axes.set(xlabel="heard by", ylabel="said by")
    return figure
