"""A process killed with SIGKILL at random moments under load keeps every promise it made."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from crash_child import AGENTS, crash_model
from samples import sample_of

from kvactors.actors import AgentSystem, Sampling

KILLS = sample_of(range(50), 5, "kills of systems")


def run_and_kill(store: Path, seed: int) -> list[dict[str, Any]]:
    """Start the child, kill it after a random while; what it had said until then."""
    child = [
        sys.executable,
        str(Path(__file__).parents[2] / "support" / "crash_child.py"),
        str(store),
        f"{seed}",
    ]
    with subprocess.Popen(child, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert json.loads(ready) == {"what": "ready"}
        time.sleep(random.Random(seed).uniform(0.05, 1.5))
        process.kill()
        lines = process.stdout.read().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def most(said: list[dict[str, Any]], what: str, agent: str, field: str) -> int:
    return max((s[field] for s in said if s["what"] == what and s["agent"] == agent), default=0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_promised_turn_is_there_and_warm_after_a_kill(tmp_path: Path) -> None:
    promises: dict[str, dict[str, int]] = {f"agent {i}": {} for i in range(AGENTS)}
    kept = 0
    for seed in KILLS:
        said = run_and_kill(tmp_path / "store", seed)
        for agent, promise in promises.items():
            for what, field in (("durable", "turns"), ("cached", "tokens")):
                value = most(said, what, agent, field)
                promise[what] = max(promise.get(what, 0), value)
        with AgentSystem(crash_model, store=tmp_path / "store") as system:
            for agent_id, promise in promises.items():
                restored = system.spawn(agent_id)
                assert len(restored.transcript().turns) >= promise["durable"]
                reply = restored.ask([5], sampling=Sampling(max_tokens=2)).get(timeout=60)
                if promise["cached"]:
                    kept += 1
                    assert reply.cache == "warm"
                    assert reply.usage.reused_tokens >= promise["cached"] - 1
        # Each agent's folders were swept when it was spawned.
        assert [p for p in (tmp_path / "store").rglob("*") if "tmp" in p.name] == []
    assert kept >= len(KILLS)
