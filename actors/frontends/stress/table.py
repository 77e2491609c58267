"""A report of `kvactors stress` as a Markdown table."""

import os
import platform
from importlib.metadata import version
from typing import Any

__all__ = ["as_markdown"]

FAULTS = ("fault_model", "fault_device", "fault_disk", "fault_restart")
ENDS = ("stop", "length", "cancelled", "TurnTimeout", "TurnFailed")


def as_markdown(report: dict[str, Any]) -> str:
    """What was done, how it ended, and what ran it."""
    counts = report["counts"]
    rows: dict[str, object] = {
        "minutes": report["minutes"],
        "agents": report["agents"],
        "asked and observed": counts.get("ask", 0) + counts.get("observe", 0),
        **{f"ended: {end}": counts.get(end, 0) for end in ENDS},
        "processes killed": report["kills"],
        **{fault.replace("fault_", "fault: "): counts.get(fault, 0) for fault in FAULTS},
        "faults that never happened": ", ".join(report["never_happened"]) or "none",
        "engines built anew": counts.get("rebuilds", 0),
        "turns taken again alone": report["replayed_turns"],
        "most of the budget": report["most_memory"],
        "worst wait, s": round(report["worst_wait"], 1),
        "**violations**": len(report["violations"]),
    }
    machine = f"{platform.system()}, {platform.machine()}, {os.cpu_count()} cores"
    lines = [f"{machine}, MLX {version('mlx')}.", "", f"| seed | {report['seed']} |"]
    lines += ["| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())]
    return "\n".join(lines) + "\n"
