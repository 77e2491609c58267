"""A process forked while a system runs: it is refused with the reason, and never hangs."""

import subprocess
import sys
from pathlib import Path

FORKING = """
import os, sys
from kvactors.core import blas; blas.preload()
from kvactors.actors import AgentSystem, KvactorsError, Sampling
from kvactors.core.testing import tiny_llama

def refused(call):
    try:
        call()
    except KvactorsError as error:
        print(type(error).__name__, error, flush=True)

with AgentSystem(tiny_llama(), store=sys.argv[1]) as system:
    alice = system.spawn("alice")
    alice.ask([1, 2, 3], sampling=Sampling(max_tokens=4)).get(timeout=60)
    child = os.fork()
    if child == 0:
        refused(lambda: alice.ask([1]).get(timeout=60))
        refused(lambda: system.spawn("bob"))
        refused(AgentSystem(tiny_llama(), store=False).start)
        print("idle", system.wait_idle(60), len(alice.transcript().turns), flush=True)
        sys.exit(0)
    print("child", os.waitpid(child, 0)[1])
    print(alice.ask([4], sampling=Sampling(max_tokens=4)).get(timeout=60).cache)
"""


def test_a_forked_child_is_told_and_its_parent_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    asked, spawned, started, idle, *rest = done.stdout.splitlines()
    assert asked.startswith("SystemStopped the system is left to the process")
    assert spawned.startswith("SystemStopped the system is left to the process")
    assert started.startswith("ModelError MLX cannot be used in a process forked from")
    assert idle == "idle True 2"
    assert rest == ["child 0", "hot"]
