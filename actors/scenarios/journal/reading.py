"""A run as a whole, read from its journal. Any thread."""

from pathlib import Path

from kvactors.actors.scenarios.journal.file import Record, read_frames
from kvactors.actors.scenarios.journal.records import (
    Event,
    Failure,
    Header,
    Heard,
    Metric,
    Run,
    Turn,
    place_of,
)
from kvactors.core.errors import InvalidInput

__all__ = ["read_journal", "read_run", "run_of"]


def read_journal(path: Path) -> tuple[Header, list[Record]]:
    """The header and the records, as they were written. Raises InvalidInput, OSError."""
    header, *records = read_frames(path)
    if not isinstance(header, Header):
        raise InvalidInput(f"{path} has no header")
    return header, [record for record in records if not isinstance(record, Header)]


def read_run(path: Path) -> Run:
    """The run of a journal, in the order of the file, without metrics: those are
    `metrics_of(run)`. Raises InvalidInput, OSError."""
    return run_of(*read_journal(path))


def run_of(header: Header, records: list[Record], metrics: tuple[Metric, ...] = ()) -> Run:
    """A run of a `header` and `records` in the order of the journal, with its `metrics`."""
    placed = sorted(records, key=place_of)
    events = tuple(record for record in records if isinstance(record, Event))
    at, process_at = 0.0, {}
    for record in records:
        if isinstance(record, Event) and record.kind == "process":
            at = record.at
        elif isinstance(record, Turn):
            process_at[record.step, record.part] = at
    return Run(
        header,
        tuple(record for record in placed if isinstance(record, Turn)),
        tuple(record for record in placed if isinstance(record, Heard)),
        tuple(record for record in placed if isinstance(record, Failure)),
        events,
        metrics,
        any(event.kind == "end" for event in events),
        process_at,
    )
