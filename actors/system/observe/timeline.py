"""A trace drawn as a timeline: agents as rows, phases in colours, the engine and saves beneath.

Needs matplotlib (`kvactors[plot]`).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from kvactors.actors.system.observe.chrome_trace import ENGINE, FIRST_AGENT, SAVES, Trace

__all__ = ["draw_timeline"]

COLOURS = {
    "queued": "#d9d9d9",
    "restore": "#b07aa1",
    "prefill": "#4e79a7",
    "decode": "#59a14f",
    "save": "#f28e2b",
}
INK = "#333333"
MOST_ROWS = 40
ROW = 0.26
MICRO = 1e6


@dataclass(slots=True)
class _Bar:
    """A span of a track, in seconds."""

    name: str
    start: float
    length: float
    args: dict[str, Any]


@dataclass(slots=True)
class _Process:
    """What a trace has of one process: bars by track."""

    name: str = ""
    begin: float = float("inf")
    names: dict[int, str] = field(default_factory=dict)
    bars: defaultdict[int, list[_Bar]] = field(default_factory=lambda: defaultdict(list))

    @property
    def end(self) -> float:
        """When its last bar ends."""
        return max((bar.start + bar.length for bar in self._all()), default=0.0)

    def _all(self) -> Iterator[_Bar]:
        for bars in self.bars.values():
            yield from bars


def draw_timeline(trace: Trace, path: Path) -> None:
    """Draw a trace of one or several processes side by side. Raises OSError."""
    processes = _read(trace)
    agents = sorted({name for p in processes for t, name in p.names.items() if t >= FIRST_AGENT})
    shown = agents[:MOST_ROWS]
    figure = Figure(figsize=(11, 2.3 + ROW * len(shown)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    widths = [max(0.25, process.end - process.begin) for process in processes]
    # A short process stays readable beside a long one.
    widths = [max(width, 0.35 * max(widths)) for width in widths]
    grid = figure.subplots(
        3,
        len(processes),
        squeeze=False,
        sharex="col",
        sharey="row",
        gridspec_kw={"height_ratios": [ROW * len(shown) + 0.2, 0.8, 0.3], "width_ratios": widths},
    )
    for column, process in enumerate(processes):
        rows, engine, saves = (grid[row][column] for row in range(3))
        _draw_agents(rows, process, shown)
        _draw_steps(engine, process)
        _draw_saves(saves, process)
        rows.set_title(process.name, fontsize=9, color=INK, loc="left")
        saves.set_xlabel("seconds", fontsize=8, color=INK)
        saves.set_xlim(0, (process.end - process.begin) * 1.01)
        if column == 0:
            _label(rows, engine, saves, shown)
    if len(agents) > len(shown):
        figure.suptitle(f"the first {len(shown)} of {len(agents)} agents", fontsize=8)
    handles = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=len(COLOURS), frameon=False, fontsize=8
    )
    figure.savefig(path)


def _read(trace: Trace) -> list[_Process]:
    processes: defaultdict[int, _Process] = defaultdict(_Process)
    for record in trace["traceEvents"]:
        process, kind = processes[record["pid"]], record["ph"]
        if kind == "M" and record["name"] == "process_name":
            process.name = record["args"]["name"]
        elif kind == "M" and record["name"] == "thread_name":
            process.names[record["tid"]] = record["args"]["name"]
        elif kind == "X":
            start = record["ts"] / MICRO
            bar = _Bar(record["name"], start, record["dur"] / MICRO, record["args"])
            process.bars[record["tid"]].append(bar)
            process.begin = min(process.begin, start)
    return [processes[pid] for pid in sorted(processes) if processes[pid].bars]


def _draw_agents(axes: Axes, process: _Process, agents: Sequence[str]) -> None:
    rows = {agent_id: row for row, agent_id in enumerate(agents)}
    for track, name in process.names.items():
        if track < FIRST_AGENT or name not in rows:
            continue
        for phase in ("queued", "restore", "prefill", "decode"):
            _bars(axes, process, track, rows[name], phase)
    axes.set_ylim(len(agents) - 0.4, -0.6)
    axes.set_yticks(range(len(agents)))
    _plain(axes)


def _bars(axes: Axes, process: _Process, track: int, row: int, phase: str) -> None:
    found = [(b.start - process.begin, b.length) for b in process.bars[track] if b.name == phase]
    thin = phase == "queued"
    height = 0.24 if thin else 0.68
    axes.broken_barh(found, (row - height / 2, height), color=COLOURS[phase], linewidth=0)


def _draw_steps(axes: Axes, process: _Process) -> None:
    for kind in ("prefill", "decode"):
        bars = [bar for bar in process.bars[ENGINE] if bar.name == kind]
        axes.bar(
            [bar.start - process.begin for bar in bars],
            [bar.args["batch"] for bar in bars],
            [bar.length for bar in bars],
            align="edge",
            color=COLOURS[kind],
            linewidth=0,
        )
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    _plain(axes)


def _draw_saves(axes: Axes, process: _Process) -> None:
    spans = [(bar.start - process.begin, bar.length) for bar in process.bars[SAVES]]
    axes.broken_barh(spans, (0.1, 0.8), color=COLOURS["save"], alpha=0.6, linewidth=0)
    axes.set_ylim(0, 1)
    axes.set_yticks([0.5])
    _plain(axes)


def _label(rows: Axes, engine: Axes, saves: Axes, agents: Sequence[str]) -> None:
    rows.set_yticklabels([_short(agent_id) for agent_id in agents])
    engine.set_ylabel("batch size", fontsize=8, color=INK, rotation=0, ha="right", va="center")
    saves.set_yticklabels(["saves"])


def _short(agent_id: str) -> str:
    # Dollars would begin a formula.
    name = agent_id.replace("$", r"\$")
    return name if len(name) <= 24 else name[:23] + "…"


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")
    axes.tick_params(colors=INK, labelsize=8, length=0)
    axes.grid(axis="x", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
