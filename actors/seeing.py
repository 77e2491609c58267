"""What AgentSystem offers to watch its work: a recording of events, a trace file of it,
OpenTelemetry, and the socket that `kvactors top` reads."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvactors.actors.chrome_trace import chrome_trace, write
from kvactors.actors.monitor import Monitor, socket_path
from kvactors.actors.recorder import DEFAULT_CAPACITY, Recorder
from kvactors.actors.snapshot import take_snapshot
from kvactors.actors.society import Society
from kvactors.actors.turn_checks import check_count

__all__ = ["Seeing"]

logger = logging.getLogger(__name__)


class Seeing(Society):
    """The part of AgentSystem that shows what happens."""

    _monitor: Monitor | None = None

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
        self._require_running()
        recorder = Recorder(capacity)
        self._crew.tracer.listen(recorder)
        try:
            yield recorder
        finally:
            self._crew.outstanding.catch_up()
            self._crew.tracer.leave(recorder)
            if path is not None:
                write(chrome_trace(recorder), Path(path))

    def _begin_telemetry(self) -> None:
        """Tell OpenTelemetry of turns, if its API is installed: until the program sets a
        provider up it does nothing, in 10 us a turn."""
        vitals = self._crew.vitals
        try:
            from kvactors.actors.telemetry import Telemetry

            telemetry = Telemetry(lambda: self.info.name, lambda: vitals.hot_bytes)
        except (ImportError, AttributeError) as error:
            # Not installed, or older than what is needed.
            logger.debug("OpenTelemetry is told nothing: %s", error)
            return
        except Exception:
            # What the program, or its environment, sets up may raise anything.
            logger.exception("OpenTelemetry is told nothing")
            return
        self._crew.tracer.listen(telemetry, steps=False)

    def _open_monitor(self, store: Path | None) -> None:
        """Let `kvactors top` connect; where there can be no socket the log says so."""
        if store is None or self._crew.seed is not None or not hasattr(socket, "AF_UNIX"):
            return
        try:
            self._monitor = Monitor(socket_path(store), lambda: take_snapshot(self))
        except OSError as error:
            logger.info("`kvactors top` will not find this system: %s", error)

    def _close_monitor(self) -> None:
        if self._monitor is not None:
            self._monitor.close()

    def _abandon(self) -> None:
        super()._abandon()
        if self._monitor is not None:
            self._monitor.abandon()
