"""A recording as a Chrome trace (JSON trace event format), which Perfetto and about:tracing show.

One process for each process traced; in it one track for each agent (its turns, and in them
queued, restore, prefill chunks and decode), one for the engine's steps, one for saves. Spans of a
track never overlap unless one lies within the other.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvactors.actors.system.observe.recorder import Recorder
from kvactors.actors.system.observe.tracks import Span, agent_tracks, faults, saves, steps
from kvactors.core.trace import TraceEvent

__all__ = ["Trace", "chrome_trace", "merge", "write"]

ENGINE, SAVES, FIRST_AGENT = 1, 2, 3
MICRO = 1e6

Record = dict[str, Any]
Trace = dict[str, Any]
"""The whole file: `traceEvents`, and in `otherData` when it began and what it lacks."""


def chrome_trace(recorder: Recorder) -> Trace:
    """The trace of one process, from its first event on."""
    events = recorder.events
    begin = min((_began(event) for event in events), default=0.0)
    records: list[Record] = [_meta("process_name", 0, f"kvactors (process {recorder.pid})")]
    records += _track(ENGINE, "GPU actor: steps", steps(events), begin)
    records += _batch_sizes(events, begin)
    records += _track(SAVES, "saves", saves(events), begin)
    for number, (agent_id, spans) in enumerate(sorted(agent_tracks(events).items())):
        records += _track(FIRST_AGENT + number, agent_id, spans, begin)
    records += [_instant(fault, begin) for fault in faults(events)]
    return {
        "traceEvents": [{"pid": 1, **record} for record in records],
        "displayTimeUnit": "ms",
        "otherData": {"began_at": recorder.epoch + begin, "dropped_events": recorder.dropped},
    }


def merge(traces: Mapping[str, Trace]) -> Trace:
    """Traces of several processes, by the names that they get, as one on one time axis."""
    began = min(trace["otherData"]["began_at"] for trace in traces.values())
    records: list[Record] = []
    for number, (name, trace) in enumerate(traces.items(), start=1):
        records.append({**_meta("process_name", 0, name), "pid": number})
        shift = (trace["otherData"]["began_at"] - began) * MICRO
        for record in trace["traceEvents"]:
            if record["name"] == "process_name":
                continue
            moved = {"ts": record["ts"] + shift} if "ts" in record else {}
            records.append({**record, **moved, "pid": number})
    dropped = sum(trace["otherData"]["dropped_events"] for trace in traces.values())
    return {
        "traceEvents": records,
        "displayTimeUnit": "ms",
        "otherData": {"began_at": began, "dropped_events": dropped},
    }


def write(trace: Trace, path: Path) -> None:
    """Write a trace. Raises OSError."""
    path.write_text(json.dumps(trace, separators=(",", ":")), encoding="utf-8")


def _track(track: int, name: str, spans: Iterable[Span], begin: float) -> list[Record]:
    records = [_meta("thread_name", track, name), _meta("thread_sort_index", track, track)]
    # Of two that begin together the longer one is outside.
    ordered = sorted(spans, key=lambda span: (span.start, -span.end))
    return [*records, *(_complete(track, span, begin) for span in ordered)]


def _complete(track: int, span: Span, begin: float) -> Record:
    start, end = _micro(span.start - begin), _micro(span.end - begin)
    return {
        "ph": "X",
        "cat": "kvactors",
        "name": span.name,
        "tid": track,
        "ts": start,
        "dur": end - start,
        "args": span.args,
    }


def _batch_sizes(events: Iterable[TraceEvent], begin: float) -> list[Record]:
    """A counter beside the steps: how many rows ran."""
    records = []
    for span in steps(events):
        for at, rows in ((span.start, span.args["batch"]), (span.end, 0)):
            records.append(
                {
                    "ph": "C",
                    "name": "batch size",
                    "tid": ENGINE,
                    "ts": _micro(at - begin),
                    "args": {"rows": rows},
                }
            )
    return records


def _meta(kind: str, track: int, value: str | int) -> Record:
    key = "sort_index" if kind == "thread_sort_index" else "name"
    return {"ph": "M", "name": kind, "tid": track, "args": {key: value}}


def _instant(span: Span, begin: float) -> Record:
    return {
        "ph": "i",
        "s": "p",
        "cat": "kvactors",
        "name": span.name,
        "tid": ENGINE,
        "ts": _micro(span.start - begin),
        "args": span.args,
    }


def _micro(seconds: float) -> float:
    return round(seconds * MICRO, 1)


def _began(event: TraceEvent) -> float:
    return getattr(event, "began", event.at)
