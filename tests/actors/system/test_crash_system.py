"""A process killed with SIGKILL at random moments under load keeps every promise it made."""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from crash_child import crash_model
from samples import sample_of

from kvactors.actors import AgentSystem, Sampling

KILLS = sample_of(range(50), 5, "kills of systems")
# What of an agent is promised.
PROMISED = {"durable": "turns", "cached": "tokens"}


def run_and_kill(store: Path, seed: int) -> list[dict[str, Any]]:
    """Start the child, kill it a random while after its first promise; what it had promised."""
    child = [
        sys.executable,
        str(Path(__file__).parents[2] / "support" / "crash_child.py"),
        str(store),
        f"{seed}",
    ]
    with subprocess.Popen(child, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready, first = process.stdout.readline(), process.stdout.readline()
        assert json.loads(ready) == {"what": "ready"}
        time.sleep(random.Random(seed).uniform(0.0, 1.5))
        process.kill()
        lines = [first.strip(), *process.stdout.read().splitlines()]
    assert process.returncode == -signal.SIGKILL, "it ended by itself"
    return [json.loads(line) for line in lines if line.endswith("}")]


def most(said: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """The most that each agent was promised of each kind."""
    found = Counter[tuple[str, str]]()
    for line in said:
        found |= Counter({(line["agent"], line["what"]): line[PROMISED[line["what"]]]})
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_promised_turn_is_there_and_warm_after_a_kill(tmp_path: Path) -> None:
    promised = Counter[tuple[str, str]]()
    kept = 0
    for seed in KILLS:
        said = most(run_and_kill(tmp_path / "store", seed))
        assert said - promised, "it promised nothing new"
        promised |= said
        with AgentSystem(crash_model, store=tmp_path / "store") as system:
            for agent_id in sorted({agent for agent, _ in promised}):
                restored = system.spawn(agent_id)
                assert len(restored.transcript().turns) >= promised[agent_id, "durable"]
                reply = restored.ask([5], sampling=Sampling(max_tokens=2)).get(timeout=60)
                if promised[agent_id, "cached"]:
                    kept += 1
                    assert reply.cache == "warm"
                    assert reply.usage.reused_tokens >= promised[agent_id, "cached"] - 1
        # Each agent's folders were swept when it was spawned.
        assert [p for p in (tmp_path / "store").rglob("*") if "tmp" in p.name] == []
    assert kept >= len(KILLS)
