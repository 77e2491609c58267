"""What AgentSystem offers to watch its work: a recording of events, and a trace file of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvactors.actors.chrome_trace import chrome_trace, write
from kvactors.actors.parameters import check_count
from kvactors.actors.recorder import DEFAULT_CAPACITY, Recorder
from kvactors.actors.society import Society

__all__ = ["Seeing"]


class Seeing(Society):
    """The part of AgentSystem that shows what happens."""

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
