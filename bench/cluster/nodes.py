"""A cluster of Ray on this host for one measurement, and an AgentSystem beside it to compare."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvactors.actors import AgentSystem
from kvactors.actors.cluster.cluster import Cluster
from kvactors.actors.cluster.member.member import MemberOptions
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.bench.cluster.model import write_model
from kvactors.bench.regime import CannotRun
from kvactors.bench.setup import Setup

__all__ = ["LEASE", "Nodes", "a_cluster"]

LEASE = Settings().lease
HOST = "127.0.0.1"
PATIENCE = 120.0
AGAIN = 0.1
_MAIN = "from kvactors.bench.cluster.node import main; main()"


class Nodes:
    """Nodes by their names, each a process with a store of its own in `folder`; the first is the
    head. A turn is kept on "one" or "two" of them (`durable`); all have `engine`, parameters of
    AgentSystem."""

    def __init__(self, folder: Path, names: tuple[str, ...], durable: str, engine: Any) -> None:
        self._folder, self._engine = folder, engine
        self._settings = Settings(durable=durable)
        self._port = _free_port()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        write_model(folder / "model")
        with ExitStack() as ending:
            ending.callback(self._end)
            for name in names:
                self._start(name)
            self.cluster = Cluster.connect(f"{HOST}:{self._port}", patience=PATIENCE)
            ending.callback(self.cluster.close)
            for name in names:
                self.wait_for(name)
            self._ending = ending.pop_all()

    @property
    def settings(self) -> Settings:
        """Of the cluster."""
        return self._settings

    def local(self) -> AgentSystem:
        """The same model with the same parameters in this process, over a store."""
        model, store = self._folder / "model", self._folder / "local"
        return AgentSystem(str(model), store, **self._engine)

    def ledgers(self, name: str) -> int:
        """Of how many agents a node has something on its disk."""
        return len(list((self._folder / name / "agents").glob("*")))

    def lose(self, name: str) -> None:
        """Kill a node at once: the process with its agents, and all of Ray beside it."""
        import ray

        from kvactors.actors.cluster.protocol.wire import answered
        from kvactors.actors.cluster.ray.lookup import NAMESPACE

        actor = ray.get_actor(name, namespace=NAMESPACE)
        pid = answered(ray.get(actor.ready.remote()))["pid"]
        os.kill(pid, signal.SIGKILL)
        with self._running.pop(name) as process:
            process.kill()

    def join(self, name: str) -> None:
        """Start a node, or one that was lost, over its store; returns when it takes agents."""
        self._start(name)
        self.wait_for(name)

    def wait_for(self, name: str) -> None:
        """Return when a node has joined, in its last incarnation."""
        self.eventually(lambda: self._alive(name), f"{name} to join")

    def eventually(self, so: Callable[[], object], what: str) -> None:
        """Return when it is `so`: what is waited for. Raises RuntimeError with what nodes said."""
        until = time.monotonic() + PATIENCE
        while not so():
            if time.monotonic() > until:
                said = {log.stem: log.read_text()[-500:] for log in self._folder.glob("*.log")}
                raise RuntimeError(f"waited {PATIENCE} s for {what}: {said}")
            time.sleep(AGAIN)

    def close(self) -> None:
        """Leave the cluster, and end its nodes."""
        self._ending.close()

    def _end(self) -> None:
        # The head is the first, and the last to end.
        for process in reversed(self._running.values()):
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str) -> None:
        store = self._folder / name
        member = MemberOptions(name, str(store), str(self._folder / "model"), self._engine)
        told: dict[str, Any] = {"member": asdict(member), "settings": asdict(self._settings)}
        told |= {"host": HOST, "port": self._port}
        told["joins"] = f"{HOST}:{self._port}" if self._running else None
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-c", _MAIN, json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        if told["joins"] is None:
            self.eventually(lambda: "is a node" in self._said(name), f"the head {name}")

    def _said(self, name: str) -> str:
        assert self._running[name].poll() is None, f"{name} ended"
        return (self._folder / f"{name}.log").read_text()

    def _alive(self, name: str) -> bool:
        node = self.cluster.stats()["nodes"].get(name)
        return node is not None and bool(node["alive"])


@contextmanager
def a_cluster(setup: Setup, *names: str, durable: str = "one") -> Iterator[Nodes]:
    """Nodes of these `names` on this host, with KV as `setup` has it, each turn kept on so many
    (`durable`), until the context ends. Raises CannotRun where there is no Ray."""
    if find_spec("ray") is None:
        raise CannotRun("Ray is not installed: pip install 'kvactors[ray]'")
    # Of this process and of all nodes that it starts.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(16))
    engine = {"kv_bits": setup.kv_bits, "speculation": "off"}
    with TemporaryDirectory(prefix="kvactors-bench-") as folder:
        nodes = Nodes(Path(folder), names, durable, engine)
        try:
            yield nodes
        finally:
            nodes.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port
