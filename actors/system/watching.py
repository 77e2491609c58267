"""Watching the work of a system: a recording of events, a trace file of it,
OpenTelemetry, and the socket that `kvactors top` reads."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvactors.actors.agents.host import AgentHost
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.system.observe.chrome_trace import chrome_trace, write
from kvactors.actors.system.observe.monitor import Monitor, socket_path
from kvactors.actors.system.observe.recorder import DEFAULT_CAPACITY, Recorder
from kvactors.actors.system.observe.snapshot import take_snapshot
from kvactors.actors.system.registry import AgentRegistry
from kvactors.actors.turns.checks import check_count, check_path

__all__ = ["Watching"]

# Seconds that an actor may be busy with something else when it is asked how it is.
PATIENCE = 1.0

logger = logging.getLogger(__name__)


class Watching:
    """Who is told of a system's work: `lifecycle` has the tracer, `host` the model, and `agents`
    says how many they are. `patience`: seconds that an actor may take to say how it is."""

    def __init__(self, lifecycle: Lifecycle, host: AgentHost, agents: AgentRegistry) -> None:
        self.monitor: Monitor | None = None
        self.patience = PATIENCE
        self._lifecycle = lifecycle
        self._host = host
        self._agents = agents

    def begin(self, store: Path | None) -> None:
        """The system runs: tell OpenTelemetry, and let `kvactors top` find it by its store."""
        self._begin_telemetry()
        self._open_monitor(store)

    def close(self) -> None:
        """It ends."""
        if self.monitor is not None:
            self.monitor.close()

    def abandon(self) -> None:
        """In a forked child: the socket is the parent's."""
        if self.monitor is not None:
            self.monitor.abandon()

    @contextmanager
    def trace(
        self, path: "str | Path | None" = None, *, capacity: int = DEFAULT_CAPACITY
    ) -> Iterator[Recorder]:
        """Record what happens inside the `with`; then write it to `path`, if one is given, as
        a Chrome trace, which https://ui.perfetto.dev shows.

        Gives the recorder: `events` (`kvactors.core.trace`), the latest `capacity` of them, and
        `dropped`, how many others there were. No event holds text. Any thread; several at once.
        Turns that still run at the end are cut; `wait_idle` first to have their saves too.
        Raises InvalidInput, SystemStopped, OSError.
        """
        check_count("capacity", capacity, 1)
        if path is not None:
            check_path("path", path)
        self._lifecycle.require_running()
        if path is not None:
            # What cannot be written is seen now, and not when the recording would be lost.
            with Path(path).open("ab"):
                pass
        recorder = Recorder(capacity)
        self._lifecycle.tracer.listen(recorder)
        try:
            yield recorder
        finally:
            self._lifecycle.outstanding.catch_up()
            self._lifecycle.tracer.leave(recorder)
            if path is not None:
                write(chrome_trace(recorder), Path(path))

    def _begin_telemetry(self) -> None:
        """Tell OpenTelemetry of turns, if its API is installed: until the program sets a
        provider up it does nothing, in 10 us a turn."""
        vitals = self._lifecycle.vitals
        try:
            from kvactors.actors.system.observe.telemetry import Telemetry

            telemetry = Telemetry(lambda: self._host.info.name, lambda: vitals.hot_bytes)
        except (ImportError, AttributeError) as error:
            # Not installed, or older than what is needed.
            logger.debug("OpenTelemetry is told nothing: %s", error)
            return
        except Exception:
            # What the program, or its environment, sets up may raise anything.
            logger.exception("OpenTelemetry is told nothing")
            return
        self._lifecycle.tracer.listen(telemetry, steps=False)

    def _open_monitor(self, store: Path | None) -> None:
        """Let `kvactors top` connect; where there can be no socket the log says so."""
        if store is None or self._lifecycle.deterministic or not hasattr(socket, "AF_UNIX"):
            return
        try:
            self.monitor = Monitor(socket_path(store), self.snapshot)
        except OSError as error:
            logger.info("`kvactors top` will not find this system: %s", error)

    def snapshot(self) -> dict[str, Any]:
        """How the system is, as JSON can hold it, without any text. Raises SystemStopped."""
        lifecycle, info = self._lifecycle, self._host.info
        known = {
            "model": info.name,
            "device": info.device,
            "health": asdict(lifecycle.health()),
            "agents": len(self._agents),
            "outstanding_turns": len(lifecycle.outstanding.turns()),
        }
        return take_snapshot(
            known,
            info.fingerprint,
            lambda message: lifecycle.gpu.ask(message, timeout=self.patience),
            lambda message: lifecycle.require_store("what is stored needs").ask(
                message, timeout=self.patience
            ),
        )
