"""Nodes of real clusters on this host: `kvactors node`, each in a process of its own."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from children import ends
from waiting import PATIENCE, eventually

from kvactors.actors.cluster.cluster import Cluster
from kvactors.actors.cluster.protocol.wire import answered
from kvactors.actors.cluster.ray.errors import ClusterUnreachable
from kvactors.actors.cluster.ray.lookup import NAMESPACE

__all__ = ["LEASE", "Nodes", "descendants"]

LEASE = 2.0
# Seconds after which Ray's processes end whose head is gone, in place of its sixty.
_ORPHANED = "10"
_MAIN = "from kvactors.actors.cli import main; main()"


class Nodes:
    """Several nodes, by their names; the first is the head. Their stores are in a folder, all with
    this `key`, if any."""

    def __init__(
        self, folder: Path, *names: str, durable: str = "two", key: bytes | None = None
    ) -> None:
        self.folder = folder
        self.head, self._durable, self._key = names[0], durable, key
        self.address = f"127.0.0.1:{_free_port()}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        # Actors of tests are found by those that run them.
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)
        try:
            self.cluster = self._begin(names)
        except BaseException:
            for process in self.running.values():
                process.kill()
                process.wait()
            raise

    def _begin(self, names: tuple[str, ...]) -> Cluster:
        self._start_head()
        self.cluster = self._connect()
        for name in names[1:]:
            self.join(name)
            # One by one: Ray gives its own processes half a minute to begin.
            eventually(lambda: len(self.alive()) == len(self.running))
        return self.cluster

    def _start_head(self) -> None:
        port, lease = self.address.rpartition(":")[2], str(LEASE)
        self._start(
            self.head, "--head", "--port", port, "--durable", self._durable, "--lease", lease
        )

    def kill_head(self) -> None:
        """Every process of the head, at once; and this process leaves."""
        for pid in [*descendants(self.running[self.head].pid), self.running[self.head].pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.running.pop(self.head).wait()
        self.cluster.close()

    def begin_again(self) -> None:
        """The head over its store, then the others over theirs, as a service manager does: each
        when what was left of it has ended."""
        self._start_head()
        self.cluster = self._connect()
        others = {name: self.running.pop(name) for name in list(self.running) if name != self.head}
        for name, process in others.items():
            process.wait(PATIENCE)
            self.join(name)
        eventually(lambda: len(self.alive()) == len(self.running))

    def alive(self) -> list[str]:
        """Names of the nodes that hold a lease."""
        return [name for name, node in self.cluster.stats()["nodes"].items() if node["alive"]]

    def join(self, name: str) -> None:
        """Start one more."""
        self._start(name, "--join", self.address)

    def pid(self, name: str) -> int:
        """Of the process that has the model and the store; "directory": that one's."""
        actor = ray.get_actor(name, namespace=NAMESPACE)
        return int(answered(ray.get(actor.ready.remote(), timeout=PATIENCE))["pid"])

    def raylet_pid(self, name: str) -> int:
        """Of the process of Ray that started that one."""
        asked = ["ps", "-o", "ppid=", "-p", str(self.pid(name))]
        return int(subprocess.run(asked, capture_output=True, check=True).stdout)

    def kill_past_lease(self, name: str) -> None:
        """The process is killed, and no other begun until its lease is over: a quick machine has
        one within it, which goes on with what is its own."""
        killed, raylet = self.pid(name), self.raylet_pid(name)
        os.kill(raylet, signal.SIGSTOP)
        try:
            os.kill(killed, signal.SIGKILL)
            eventually(lambda: name not in self.alive())
        finally:
            os.kill(raylet, signal.SIGCONT)

    def lose(self, name: str) -> None:
        """The machine is gone: its processes, without warning, and its disk."""
        os.kill(self.pid(name), signal.SIGKILL)
        process = self.running.pop(name)
        process.kill()
        process.wait()
        shutil.rmtree(self.folder / name)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What became of `kvactors` with these arguments."""
        return subprocess.run(
            [sys.executable, "-c", _MAIN, *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def read(self, *arguments: str) -> Any:
        """What a command prints as JSON."""
        done = self.command(*arguments, "--address", self.address, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def end(self) -> None:
        """End all of them, as Ctrl-C does."""
        self.cluster.close()
        for process in reversed(self.running.values()):
            process.send_signal(signal.SIGINT)
        late = [name for name, process in self.running.items() if not ends(process, PATIENCE)]
        assert not late, f"{late} did not end"

    def _start(self, name: str, *arguments: str) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        told = ["node", "--name", name, "--store", str(self.folder / name), "--reproducible"]
        env = {**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": _ORPHANED}
        if self._key is not None:
            file = self.folder / "key"
            # Once: others read it while one more is started.
            if not file.exists():
                file.write_bytes(self._key)
            env["KVACTORS_KEY_FILE"] = str(file)
        self.running[name] = subprocess.Popen(
            [sys.executable, "-c", _MAIN, *told, *arguments], stdout=log, stderr=log, env=env
        )
        log.close()

    def _connect(self) -> Cluster:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return Cluster.connect(self.address, patience=PATIENCE, encryption_key=self._key)
            except ClusterUnreachable:
                assert time.monotonic() < until, "no head"
                time.sleep(0.2)


def descendants(pid: int) -> list[int]:
    """The process's children, theirs, and so on."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    found = [pid]
    for above in found:
        found += [child for child, parent in pairs if parent == above]
    return found[1:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
