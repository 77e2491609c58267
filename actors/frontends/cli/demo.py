"""`kvactors demo`: two processes, and a table of what the second still knew."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from kvactors.actors.frontends.console.child import child_command
from kvactors.actors.frontends.console.console import complain, err, out, printable
from kvactors.actors.system.observe.chrome_trace import Trace, merge, write
from kvactors.core.errors import InvalidConfig
from kvactors.persistence.files.home import expanded

__all__ = ["Ended", "run_demo", "run_phase"]


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ended well: its id, and what it printed on stdout."""

    pid: int
    output: str


def run_phase(phase: str, agents: int, store: Path, model: str, trace: Path | None) -> Ended:
    """Run a phase of the demo, of so many `agents`, as a process of its own: its `store`, `model`
    and the file of its `trace`, if any. Raises typer.Exit if it fails: it has said why."""
    options = [] if trace is None else ["--trace", trace]
    command = child_command(phase, *options, "--", agents, store, model)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            output, _ = process.communicate()
        except KeyboardInterrupt:
            # The terminal has interrupted the child too: it saves what is finished.
            process.communicate()
            raise
    if process.returncode < 0:
        complain(f"the process of {phase} was killed by signal {-process.returncode}")
    if process.returncode:
        raise typer.Exit(max(1, process.returncode))
    return Ended(process.pid, output)


def run_demo(
    agents: int,
    store: Path | None,
    model: str,
    trace: Path | None = None,
    plot: Path | None = None,
    *,
    as_json: bool,
    run: Callable[[str, int, Path, str, Path | None], Ended] = run_phase,
) -> int:
    """Run both processes with so many `agents` of a `store` under a `model`, and print, `as_json`
    if asked to; 0 if every agent was warm, else 1.

    `trace`, `plot`: files for what both did; `run` runs one of them. Raises typer.Exit with the
    status of a process that failed: it has said why; InvalidConfig if nothing can be drawn.
    """
    draw = None if plot is None else _painter(plot)
    traced = trace is not None or plot is not None
    with _folder(store) as folder, tempfile.TemporaryDirectory(prefix="kvactors-trace-") as parts:
        tells, asks = (Path(parts, name) if traced else None for name in ("tell", "ask"))
        told = run("demo-tell", agents, folder, model, tells)
        err.print(f"Agents told their facts: {agents:,}, in process {told.pid}, which has ended.")
        asked = run("demo-ask", agents, folder, model, asks)
        err.print(f"Restored and asked: {agents:,}, in process {asked.pid}.\n")
        if tells and asks:
            whole = merge(
                {
                    f"first process ({told.pid}): tells": json.loads(tells.read_bytes()),
                    f"second process ({asked.pid}): restores": json.loads(asks.read_bytes()),
                }
            )
    entries = json.loads(asked.output)
    if as_json:
        sys.stdout.write(json.dumps({"model": model, "agents": entries}) + "\n")
    else:
        out.print(_table(entries))
        out.print(_verdict(entries), soft_wrap=True)
        if store is not None:
            out.print(f"Look into it: kvactors agents --store {store}", soft_wrap=True)
    if trace is not None:
        write(whole, trace)
        err.print(f"The trace is in {trace}: open it at https://ui.perfetto.dev.", soft_wrap=True)
    if draw is not None and plot is not None:
        draw(whole, plot)
        err.print(f"The timeline is in {plot}.", soft_wrap=True)
    return 0 if all(entry["cache"] == "warm" for entry in entries) else 1


@contextmanager
def _folder(store: Path | None) -> Iterator[Path]:
    if store is not None:
        yield expanded(store)
        return
    with tempfile.TemporaryDirectory(prefix="kvactors-demo-") as folder:
        yield Path(folder)


def _painter(plot: Path) -> Callable[[Trace, Path], None]:
    """What draws a timeline into the file `plot`. Raises InvalidConfig, before any work, without
    matplotlib, and for a name that says no form of a picture."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase

        from kvactors.actors.system.observe.timeline import draw_timeline
    except ImportError:
        raise InvalidConfig("--plot needs matplotlib: pip install 'kvactors[plot]'") from None
    forms = FigureCanvasBase.get_supported_filetypes()
    if plot.suffix.removeprefix(".").lower() not in forms:
        raise InvalidConfig(
            f"--plot {plot}: the name's end says what is drawn, such as {plot.stem}.png; there are "
            + ", ".join(sorted(forms))
        )
    return draw_timeline


def _table(entries: list[dict[str, Any]]) -> Table:
    """Question, answer and expected answer share a column: 80 characters hold no more."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("agent", overflow="fold")
    table.add_column("question, answer, expected", overflow="fold", ratio=1)
    table.add_column("right")
    table.add_column("cache")
    for name in ("tokens\nreused", "warm\nms", "cold\nms"):
        table.add_column(name, justify="right")
    for entry in entries:
        texts = (printable(entry[name]) for name in ("question", "answer", "expected"))
        table.add_row(
            Text(printable(entry["agent"])),
            Text("\n").join(map(Text, texts)),
            Text("yes", "green") if entry["right"] else Text("no", "red"),
            Text(entry["cache"], "" if entry["cache"] == "warm" else "red"),
            f"{entry['reused_tokens']:,}",
            f"{entry['ttft_warm_ms']:.1f}",
            f"{entry['ttft_cold_ms']:.1f}\n",
        )
    return table


def _verdict(entries: list[dict[str, Any]]) -> str:
    count = len(entries)
    right = sum(entry["right"] for entry in entries)
    warm = sum(entry["cache"] == "warm" for entry in entries)
    reused = sum(entry["reused_tokens"] for entry in entries)
    prefilled = sum(entry["prefilled_tokens"] for entry in entries)
    fast = median(entry["ttft_warm_ms"] for entry in entries)
    slow = median(entry["ttft_cold_ms"] for entry in entries)
    return (
        f"\n{right} of {count} answers right, {warm} of {count} agents warm.\n"
        f"{reused:,} of {reused + prefilled:,} tokens were reused from disk, "
        f"{prefilled:,} prefilled.\n"
        f"Time to first token, medians: {fast:.1f} ms warm, {slow:.1f} ms cold "
        f"({slow / max(fast, 0.01):.1f} times sooner)."
    )
