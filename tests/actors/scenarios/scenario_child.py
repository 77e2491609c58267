"""A process that runs a scenario, or goes on with it, and may be killed at a moment on purpose.

Usage: scenario_child.py SCENARIO OUT KIND N. KIND "record": SIGKILL behind the N-th new record;
"disk": before the N-th operation on the store, a write half done; "none": it ends well.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from kvactors.core import blas

blas.preload()

from kvactors.actors import AgentSystem  # noqa: E402
from kvactors.actors.scenarios.journal.reading import read_journal  # noqa: E402
from kvactors.actors.scenarios.scenario import Scenario, resume_run  # noqa: E402
from kvactors.actors.testing import KillAt, use_disk  # noqa: E402
from kvactors.core.testing.models import PlainTokenizer, tiny_model  # noqa: E402


def small_model() -> tuple[Any, PlainTokenizer]:
    """A turn takes milliseconds."""
    return tiny_model(seed=1, num_hidden_layers=1), PlainTokenizer()


def main() -> None:
    scenario, out, kind, at = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    begun = (out / "runs").exists()
    old = sum(len(read_journal(path)[1]) for path in (out / "runs").glob("*")) if begun else 0
    records = 0

    def watch(most: int, record: object) -> None:
        nonlocal records
        records += 1
        if kind == "record" and records == old + at:
            os.kill(os.getpid(), signal.SIGKILL)

    system = AgentSystem(small_model, out.parent / f"{out.name}-store", deterministic=True)
    if kind == "disk":
        use_disk(system, KillAt(at))
    with system:
        if begun:
            resume_run(out, system, watch=watch)
        else:
            Scenario.load(scenario).run(system, out=out, watch=watch)


if __name__ == "__main__":
    main()
