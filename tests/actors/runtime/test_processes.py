"""Systems in a process that is forked, and in one that ends without stopping them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvactors.core import blas
from kvactors.persistence.store.store import Store

FORKING = """
import os, sys
from kvactors.core import blas; blas.preload()
from kvactors.actors import AgentSystem, KvactorsError, Sampling
from kvactors.core.testing.models import tiny_llama

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

ABANDONING = """
import gc, sys
from kvactors.core import blas; blas.preload()
from kvactors.actors import AgentSystem, Sampling
from kvactors.core.testing.models import tiny_llama

system = AgentSystem(tiny_llama(), store=sys.argv[1])
system.start()
system.spawn("alice").ask([1, 2, 3], sampling=Sampling(max_tokens=4)).get(timeout=60)
system.spawn("alice").tell([4], sampling=Sampling(max_tokens=4000))
del system
gc.collect()
"""

USING_MLX = """
import sys
from kvactors.actors import AgentSystem, Sampling
from kvactors.actors.testing import FaultyModel

with AgentSystem(FaultyModel(), store=sys.argv[1]) as system:
    alice = system.spawn("alice")
    print(len(alice.ask("hello", sampling=Sampling(max_tokens=4)).get(timeout=60).token_ids) > 0)

    import ctypes
    import mlx.core as mx

    @mx.compile
    def doubled(x):
        return 2 * x

    print(doubled(mx.array(2.0)).item())
    # Some of mlx-lm's functions are never freed, either.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(doubled))
"""


def run(code: str, store: Path) -> list[str]:
    command = [sys.executable, "-c", code, str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines()


def test_a_forked_child_is_told_and_its_parent_goes_on(tmp_path: Path) -> None:
    asked, spawned, started, idle, *rest = run(FORKING, tmp_path)

    assert asked.startswith("SystemStopped the system is left to the process")
    assert spawned.startswith("SystemStopped the system is left to the process")
    assert started.startswith("ModelError MLX cannot be used in a process forked from")
    assert idle == "idle True 2"
    assert rest == ["child 0", "hot"]


def test_a_system_that_nobody_refers_to_any_more_ends_in_order(tmp_path: Path) -> None:
    run(ABANDONING, tmp_path)

    store = Store(tmp_path)
    assert len(store.read_ledger("alice") or ()) >= 1
    store.close()


@pytest.mark.skipif(not blas.preload() or sys.platform != "linux", reason="no OpenBLAS to load")
@pytest.mark.parametrize(
    ("first", "warned"),
    [
        ("import mlx.core", True),
        ("from kvactors.bench import peers", False),
        ("from kvactors import AgentSystem; import mlx.core", False),
    ],
)
def test_who_imports_mlx_too_early_is_told(first: str, warned: bool) -> None:
    """MLX would compute with the BLAS that it found, and nothing else would say so."""
    code = f"{first}; from kvactors.core import blas; blas.advise()"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert ("MLX was imported before OpenBLAS" in done.stderr) == warned


def test_a_program_that_uses_mlx_itself_ends_in_order(tmp_path: Path) -> None:
    assert run(USING_MLX, tmp_path) == ["True", "4.0"]


@pytest.mark.skipif(not blas.preload() or sys.platform != "linux", reason="no OpenBLAS to load")
def test_threads_that_have_no_product_to_do_sleep() -> None:
    """OpenBLAS's own would look for one for 2^26 cycles, and take those from everybody else."""
    code = """
import time
from kvactors.core import blas; blas.preload()
import mlx.core as mx
square = mx.ones((1024, 1024))
for _ in range(5):
    mx.eval(square @ square)
    begin = time.process_time()
    time.sleep(0.2)
    print(time.process_time() - begin)
"""
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_THREAD_TIMEOUT"}

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=120, env=environment
    )

    # Behind each product; but a slow machine has more to do for a process than what it asks for.
    assert min(map(float, done.stdout.split())) < 0.01
