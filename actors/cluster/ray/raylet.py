"""Ray's processes on this machine, as one child process that ends with this one.

The child runs `ray start --block`. It reads its standard input, which nobody writes to: where that
ends, its parent has, and Ray's processes end too. `ray stop` is never used: it ends every Ray of
the machine.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kvactors.actors.cluster.ray.errors import RayletFailed

__all__ = ["LOOPBACK", "NODE", "Raylet", "Started"]

LOOPBACK = "127.0.0.1"
NODE = "kvactors:"
"""Before a node's name: a resource that only its own raylet has, so that Ray starts it there."""
_READY = b"Ray runtime started"
# Ray keeps little in its own memory: what crosses are messages, KV comes in pieces.
_OBJECTS = 128 << 20


@dataclass(frozen=True, slots=True)
class Started:
    """What to start: the `name` of the node, the `host` it is reached at, the `port` of a head or
    whom it `joins`, and a `folder` for what Ray writes."""

    name: str
    host: str
    folder: Path
    port: int | None = None
    joins: str | None = None

    @property
    def arguments(self) -> list[str]:
        """Those of `ray start`."""
        own = json.dumps({f"{NODE}{self.name}": 1, **({} if self.joins else {NODE: 1})})
        common = f"--block --node-ip-address {self.host} --object-store-memory {_OBJECTS}".split()
        common += ["--temp-dir", str(self.folder), "--resources", own]
        common += ["--include-log-monitor", "false", "--disable-usage-stats"]
        if self.joins:
            return [*common, "--address", self.joins]
        return [*common, "--head", "--port", str(self.port), "--include-dashboard", "false"]


class Raylet:
    """Ray's processes of one node, started. A context manager."""

    def __init__(self, what: Started, timeout: float = 120.0) -> None:
        """Start `what`; returns when it runs. Raises RayletFailed, after `timeout` seconds too."""
        what.folder.mkdir(parents=True, exist_ok=True)
        self._log = what.folder / "ray.log"
        command = [sys.executable, "-m", "kvactors.actors.cluster.ray.ray_start", *what.arguments]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=_environment()
            )
        self._wait(time.monotonic() + timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the child, whose children Ray's processes are."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether all of Ray's processes are there: where one ends, the others are ended."""
        return self._process.poll() is None

    @property
    def said(self) -> str:
        """What they wrote last: the file goes with the folder."""
        return self._log.read_text(errors="replace").strip()[-1000:]

    def stop(self) -> None:
        """End them. Twice is as good as once."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait(self, until: float) -> None:
        while _READY not in self._log.read_bytes():
            if not self.running or time.monotonic() > until:
                self.stop()
                raise RayletFailed(f"Ray did not start: {self.said}")
            time.sleep(0.05)


def _environment() -> dict[str, str]:
    """Of Ray's processes, and so of the nodes that they start."""
    cores = str(os.cpu_count())
    quiet = {
        # Without it macOS joins no node; on Linux it changes nothing.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # An actor that asks for no CPUs would compute on one.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", cores),
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", cores),
    }
    return {**os.environ, **quiet}
