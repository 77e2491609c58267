"""`kvactors top`: its screen, live and once, and what it says where nothing runs."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem
from monitored import Held, top

from kvactors.actors import AgentSystem, Sampling
from kvactors.actors.system.observe.monitor import socket_path
from kvactors.core.testing.models import PlainTokenizer, endless_grid, snap_to_grid, tiny_model

WAIT = 60
CHILD = """
import signal, sys
from kvactors.core import blas
blas.preload()
from kvactors.actors import AgentSystem
from kvactors.core.testing.models import tiny_llama
with AgentSystem(tiny_llama(), store=sys.argv[1]):
    print("ready", flush=True)
    signal.pause()
"""
HOLDER = """
import sys
from kvactors.persistence.store.store import Store
store = Store(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


# -- the command ---------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
def test_once_prints_one_screen(
    open_system: OpenSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    held = Held(open_system)
    for name in ("bob", "car\x1b[2Jol"):
        held.system.spawn(name).ask([1] * 50, sampling=Sampling(max_tokens=3)).get(timeout=WAIT)
    held.system.wait_idle(WAIT)
    stats = held.system.stats()

    result = top(tmp_path / "store", "--once")

    assert result.exit_code == 0
    assert f"process {os.getpid()}" in result.stdout
    assert "\x1b" not in result.stdout
    (hot,) = [line for line in result.stdout.splitlines() if line.startswith("hot ")]
    assert hot.split()[:3] == ["hot", "2", str(stats["hot_tokens"])]
    for word in ("active", "warm", "cold", "on disk", "tokens/s", "in mailboxes", "░ "):
        assert word in result.stdout
    assert (stats["generated_tokens"], stats["prefilled_tokens"]) == (6, 2 * 49)


def test_a_running_turn_is_shown_with_its_progress(open_system: OpenSystem, tmp_path: Path) -> None:
    system = open_system(endless_grid)
    stream = system.spawn("alice").stream([5] * 40, sampling=Sampling(max_tokens=3000))
    next(stream)

    result = top(tmp_path / "store", "--once")
    stream.close()

    (turn,) = [line for line in result.stdout.splitlines() if line.startswith("alice ")]
    assert "decode" in turn
    assert turn.endswith("of 3,000")


def test_live_it_goes_on_until_the_system_ends(
    open_system: OpenSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, seen = open_system(), threading.Event()
    # It is rich's own; the command has no way to say that it shows something.
    monkeypatch.setattr(
        "kvactors.actors.frontends.cli.top.Live.update", lambda *_, **__: seen.set()
    )
    results: list[Any] = []
    watcher = threading.Thread(target=lambda: results.append(top(tmp_path / "store")))
    watcher.start()
    assert seen.wait(WAIT)

    system.stop(timeout=WAIT)
    watcher.join(WAIT)

    assert results[0].exit_code == 0
    assert "The system has ended." in results[0].stdout


@pytest.mark.parametrize("made", [True, False])
def test_without_a_running_system_one_line_says_so(tmp_path: Path, made: bool) -> None:
    store = tmp_path / "store"
    if made:
        AgentSystem(lambda: (snap_to_grid(tiny_model()), PlainTokenizer()), store, model_name="m")
        store.mkdir()

    result = top(store, "--once")

    assert result.exit_code == 2
    assert result.stderr == f"error: no system is running with the store {store}\n"
    assert store.exists() == made


@pytest.mark.parametrize("stale", [True, False], ids=["stale socket", "no socket"])
def test_a_process_that_has_the_store_and_shows_nothing_yet_is_named(
    tmp_path: Path, stale: bool
) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        if stale:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
                left.bind(str(socket_path(tmp_path)))
        result = top(tmp_path, "--once")
        process.communicate()

    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: process {process.pid} has the store {tmp_path} open")
    assert "it is loading" in result.stderr
    assert "no system is running" in top(tmp_path, "--once").stderr


@pytest.mark.slow
def test_the_socket_of_a_killed_process_is_removed_and_used_again(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-c", CHILD, str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        running = top(store, "--once")
        process.send_signal(signal.SIGKILL)
    path = socket_path(store)
    assert running.exit_code == 0
    assert path.exists()

    killed = top(store, "--once")
    assert (killed.exit_code, path.exists()) == (2, False)
    assert "no system is running" in killed.stderr

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(path))
    system = open_system()
    assert top(store, "--once").exit_code == 0
    system.stop(timeout=WAIT)
