"""`kvactors stress`: runs the stress test in processes of its own, kills some, shows a table."""

import json
import logging
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.table import Table

from kvactors.actors.frontends.console.child import child_command
from kvactors.actors.frontends.console.console import err, out
from kvactors.actors.frontends.stress.table import as_markdown
from kvactors.actors.system.parameters import check_seconds
from kvactors.core.errors import InvalidConfig
from kvactors.persistence.files.home import expanded

__all__ = ["explore", "run_part", "run_stress"]

# Agents whose transcripts are replayed at the end.
SAMPLE = 6
# Seconds before the end in which no process is killed any more.
LAST_PART = 15
UNITS = {"minutes": " min", "worst_wait": " s"}
EXPLORED_AGENTS = 5
EXPLORED_ACTS = 40


def run_stress(
    agents: int,
    minutes: float,
    seed: int,
    faults: str,
    report: Path | None,
    store: Path | None,
) -> bool:
    """Run it with so many `agents` for some `minutes`, by `seed`, with these `faults`, and write a
    `report`; `store` is a new directory for them, None a temporary one. Whether nothing was
    violated. Raises InvalidConfig."""
    chosen, rng = _chosen(faults), random.Random(seed)
    end = time.monotonic() + check_seconds("--minutes", 60 * minutes)
    total: dict[str, Any] = {"agents": agents, "minutes": minutes, "seed": seed, "kills": 0}
    total |= {"faults": sorted(chosen), "counts": Counter(), "violations": []}
    part, kill = 0, True
    with (
        _folder(store) as folder,
        Live(console=err, refresh_per_second=4, transient=True) as live,
    ):
        while kill:
            left = end - time.monotonic()
            kill = "kill" in chosen and left > LAST_PART
            seconds = rng.uniform(4, min(12, left)) if kill else max(1.0, left)
            part += 1
            arguments = (agents, seconds, seed * 1000 + part, ",".join(chosen) or "none")
            _add(total, _run_process(arguments, folder, live, total, kill=kill))
    total["counts"] = dict(sorted(total["counts"].items()))
    total["never_happened"] = never_happened(total)
    out.print(_table(total))
    for violation in total["violations"]:
        out.print(f"violated: {violation}", style="bold red", soft_wrap=True)
    if report is not None:
        text = as_markdown(total) if report.suffix == ".md" else json.dumps(total, indent=2)
        report.write_text(text, encoding="utf-8")
    return not total["violations"]


@contextmanager
def _folder(store: Path | None) -> Iterator[Path]:
    if store is None:
        with tempfile.TemporaryDirectory(prefix="kvactors-stress-") as folder:
            yield Path(folder)
        return
    root = expanded(store)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InvalidConfig(f"--store {root} is not empty: faults are not let loose on it")
    root.mkdir(parents=True, exist_ok=True)
    yield root


def never_happened(total: dict[str, Any]) -> list[str]:
    """The faults that were asked for, and of which there is no trace in the counts."""
    counts = total["counts"]
    seen = {
        "model": counts.get("raised_model"),
        "device": counts.get("rebuilds"),
        "disk": counts.get("raised_disk"),
        "restart": counts.get("fault_restart"),
        "kill": total["kills"],
    }
    return [fault for fault in total["faults"] if not seen[fault]]


def _run_process(
    arguments: tuple[Any, ...], folder: Path, live: Live, total: dict[str, Any], *, kill: bool
) -> dict[str, Any]:
    """One part; its last state. With `kill` it is ended by SIGKILL once its time is up."""
    command = child_command("stress-part", "--", *arguments, folder)
    state: dict[str, Any] = {}
    killed = False
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                state = json.loads(line)
                live.update(_table({**total, **state}))
                if kill and state.get("time_is_up"):
                    process.send_signal(signal.SIGKILL)
                    killed = True
                    total["kills"] += 1
                    break
        except KeyboardInterrupt:
            # The terminal has interrupted the child too: what it has open is not taken away.
            process.communicate()
            raise
    if process.returncode and not killed:
        state.setdefault("violations", []).append(f"it ended with status {process.returncode}")
    return state


def _add(total: dict[str, Any], state: dict[str, Any]) -> None:
    total["counts"].update(state.get("counts", {}))
    total["violations"] += state.get("violations", [])
    for name in ("worst_wait", "most_memory"):
        total[name] = max(total.get(name, 0), state.get(name, 0))
    for name in ("replayed_turns", "evictions"):
        total[name] = total.get(name, 0) + state.get(name, 0)


def _table(state: dict[str, Any]) -> Table:
    table = Table("", "", show_header=False, box=None)
    for name, value in state.items():
        if name == "counts":
            for outcome, count in sorted(value.items()):
                table.add_row(f"  {outcome}", f"{count:,}")
        elif name == "violations":
            table.add_row(name, f"{len(value):,}", style="bold red" if value else "")
        elif name == "never_happened":
            table.add_row("never happened", ", ".join(value) or "-")
        else:
            table.add_row(name.replace("_", " "), _with_unit(name, value))
    return table


def _with_unit(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return str(value)
    if name == "most_memory":
        return f"{value:.0%} of the budget"
    return f"{value:,}{UNITS.get(name, '')}" if name != "seed" else str(value)


def _chosen(faults: str) -> frozenset[str]:
    from kvactors.actors.frontends.stress.workload import FAULTS

    named = [] if faults == "none" else FAULTS if faults == "all" else faults.split(",")
    unknown = set(named) - set(FAULTS)
    if unknown:
        raise InvalidConfig(f"faults are {', '.join(FAULTS)}, all or none, not {sorted(unknown)}")
    return frozenset(named)


# -- one process -----------------------------------------------------------------------


def run_part(agents: int, seconds: float, seed: int, faults: str, folder: Path) -> None:
    """One process of it: `agents` work in `folder` for some `seconds`, by `seed`, with these
    `faults`; say so, settle, prove everything."""
    from kvactors.actors.frontends.stress.oracle import replay_alone
    from kvactors.actors.frontends.stress.workload import Stress

    # This process has nothing else to log.
    logging.getLogger("kvactors").setLevel(logging.CRITICAL)
    log, chosen = folder / "durable.log", _chosen(faults)
    stress = Stress(seed, agents, chosen, folder / "store", log if "kill" in chosen else None)
    stress.check_log(log)
    end, shown = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        stress.act()
        if time.monotonic() > shown:
            shown = time.monotonic() + 0.5
            _say(stress.status())
    # Who is to be killed is killed here, in the middle of everything.
    _say({**stress.status(), "time_is_up": True})
    stress.settle()
    stress.check_transcripts()
    engine, transcripts = stress.system.stats(), stress.transcripts()
    state = stress.status()
    stress.close()
    sample = random.Random(seed).sample(transcripts, min(SAMPLE, len(transcripts)))
    replayed, wrong = replay_alone(sample)
    state["violations"] += wrong
    _say({**state, "replayed_turns": replayed, "evictions": engine["evictions"]})


def _say(state: dict[str, Any]) -> None:
    print(json.dumps(state), flush=True)


# -- interleavings ---------------------------------------------------------------------


def explore(seeds: str) -> bool:
    """Deterministic runs of many seeds; names the first that fails. Raises InvalidConfig."""
    first, dots, last = seeds.partition("..")
    ends = (first, last if dots else first)
    if not all(end.isdecimal() for end in ends) or int(ends[1]) < int(first):
        raise InvalidConfig(f"seeds are a number, or two such as 1..200, not {seeds!r}")
    begin = time.monotonic()
    for seed in range(int(first), int(ends[1]) + 1):
        try:
            wrong = _interleaving(seed)
        except Exception as error:
            wrong = [f"{type(error).__name__}: {error}"]
        if wrong:
            out.print(f"seed {seed}: {wrong[0]}", style="bold red", soft_wrap=True)
            out.print(f"again: kvactors stress --seeds {seed}", soft_wrap=True)
            return False
    out.print(f"seeds {seeds}: nothing violated, {time.monotonic() - begin:.0f} s")
    return True


@contextmanager
def _without_log() -> Iterator[None]:
    """What is injected would fill the log."""
    logger = logging.getLogger("kvactors")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _interleaving(seed: int) -> Sequence[str]:
    from kvactors.actors.frontends.stress.oracle import replay_alone
    from kvactors.actors.frontends.stress.workload import Stress

    with _without_log(), tempfile.TemporaryDirectory(prefix="kvactors-stress-") as folder:
        stress = Stress(
            seed,
            EXPLORED_AGENTS,
            frozenset({"model", "disk"}),
            Path(folder),
            deterministic=True,
        )
        try:
            for _ in range(EXPLORED_ACTS):
                stress.act()
            stress.settle()
            stress.check_transcripts()
            transcripts = stress.transcripts()
        finally:
            stress.close()
        _, wrong = replay_alone(transcripts)
        return [*stress.violations, *wrong]
