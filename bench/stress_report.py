"""Reports of `kvactors stress --report FILE` as one Markdown table.

python -m kvactors.bench.stress_report 1.json 2.json … > bench/results/stress.md
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvactors.bench.report import machine

__all__ = ["main", "table"]

FAULTS = ("fault_model", "fault_device", "fault_disk", "fault_restart")
ENDS = ("stop", "length", "cancelled", "TurnTimeout", "TurnFailed")


def table(reports: Sequence[dict[str, Any]]) -> str:
    """One column for each report."""
    rows: dict[str, list[object]] = {
        "minutes": [report["minutes"] for report in reports],
        "agents": [report["agents"] for report in reports],
        "asked and observed": [_count(report, "ask", "observe") for report in reports],
        **{f"ended: {end}": [_count(report, end) for report in reports] for end in ENDS},
        "processes killed": [report["kills"] for report in reports],
        **{
            fault.replace("fault_", "fault: "): [_count(report, fault) for report in reports]
            for fault in FAULTS
        },
        "engines built anew": [_count(report, "rebuilds") for report in reports],
        "turns taken again alone": [report["replayed_turns"] for report in reports],
        "most of the budget": [report["most_memory"] for report in reports],
        "worst wait, s": [round(report["worst_wait"], 1) for report in reports],
        "**violations**": [len(report["violations"]) for report in reports],
    }
    seeds = " | ".join(str(report["seed"]) for report in reports)
    lines = [f"| seed | {seeds} |", "| --- " * (len(reports) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(map(str, values))} |" for name, values in rows.items()]
    return "\n".join(lines)


def _count(report: dict[str, Any], *names: str) -> int:
    return sum(report["counts"].get(name, 0) for name in names)


def main(paths: Sequence[str]) -> None:
    """Print the table of these reports, and what ran them."""
    reports = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    on = machine()
    print("# Stress\n\n`kvactors stress --faults all`: random work on a small budget while the")
    print("model, the device and the disk fail, systems restart and processes are killed. A wait")
    print("counts until its turn has ended, restarts included.\n")
    print(f"{on['system']}, {on['machine']}, {on['cpus']} cores, MLX {on['mlx']}.\n")
    print(table(reports))


if __name__ == "__main__":
    main(sys.argv[1:])
