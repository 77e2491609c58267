"""Events as spans on tracks: each agent's turns with their phases, the engine's steps, saves.

An agent does one thing at a time, so that the spans of its track follow one another; a prompt
that waits behind the agent's own turn is shown from that turn's end on (`queued_ms` has it all).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvactors.core.trace import (
    DecodeStep,
    Evicted,
    Fault,
    PrefillStep,
    RestoreBegan,
    RestoreEnded,
    SaveBegan,
    SaveEnded,
    TraceEvent,
    TurnEnded,
    TurnQueued,
    TurnStarted,
)

__all__ = ["Span", "agent_tracks", "faults", "saves", "steps"]


@dataclass(slots=True)
class Span:
    """Something from `start` to `end`, in seconds."""

    name: str
    start: float
    end: float
    args: dict[str, Any] = field(default_factory=dict)


def steps(events: Iterable[TraceEvent]) -> list[Span]:
    """The engine's forwards, one after the other."""
    found = []
    for event in events:
        if isinstance(event, PrefillStep):
            tokens = sum(end - start for _, start, end in event.parts)
            args = {"batch": len(event.parts), "tokens": tokens, "drawn": len(event.agent_ids)}
            found.append(Span("prefill", event.began, event.at, args))
        elif isinstance(event, DecodeStep):
            args = {"batch": event.batch, "tokens": len(event.agent_ids)}
            found.append(Span("decode", event.began, event.at, args))
    return found


def saves(events: Iterable[TraceEvent]) -> list[Span]:
    """Each agent's saves. Those of a group begin at the same moment, so that they nest."""
    found, begun = [], dict[str, SaveBegan]()
    for event in events:
        if isinstance(event, SaveBegan):
            begun[event.agent_id] = event
        elif isinstance(event, SaveEnded) and event.agent_id in begun:
            start = begun.pop(event.agent_id).at
            args = {"bytes": event.nbytes, "ok": event.ok}
            found.append(Span(event.agent_id, start, event.at, args))
    return found


def faults(events: Iterable[TraceEvent]) -> list[Span]:
    """What failed, and who left memory or disk: moments."""
    found = []
    for event in events:
        if isinstance(event, Fault):
            args: dict[str, Any] = {"agent": event.agent_id, "error": event.error}
            found.append(Span(f"fault: {event.where}", event.at, event.at, args))
        elif isinstance(event, Evicted):
            args = {"agent": event.agent_id, "bytes": event.nbytes}
            found.append(Span(f"evicted from {event.tier}", event.at, event.at, args))
    return found


def agent_tracks(events: Iterable[TraceEvent]) -> dict[str, list[Span]]:
    """The spans of each agent: turns, and within them their phases."""
    tracks: dict[str, _Track] = {}

    def track(agent_id: str) -> _Track:
        return tracks.setdefault(agent_id, _Track())

    for event in events:
        if isinstance(event, PrefillStep):
            for agent_id, start, end in event.parts:
                args = {"from": start, "to": end}
                track(agent_id).phase("prefill", event.began, event.at, args)
        elif isinstance(event, DecodeStep):
            for agent_id in dict.fromkeys(event.agent_ids):
                tokens = event.agent_ids.count(agent_id)
                track(agent_id).decoded(event.began, event.at, tokens)
        elif isinstance(event, TurnQueued | TurnStarted | TurnEnded | RestoreBegan | RestoreEnded):
            track(event.agent_id).note(event)
    return {agent_id: track.spans for agent_id, track in tracks.items() if track.spans}


class _Track:
    """One agent's spans so far. Nothing begins before `_free`, where the last turn ended."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._free = 0.0
        self._asked: dict[int, float] = {}
        self._phases: list[Span] = []
        self._restoring: float | None = None
        self._running: TurnStarted | None = None

    def note(
        self, event: TurnQueued | TurnStarted | TurnEnded | RestoreBegan | RestoreEnded
    ) -> None:
        """Take the next event that is of this agent alone."""
        if isinstance(event, TurnQueued):
            self._asked[event.serial] = event.at
        elif isinstance(event, TurnStarted):
            self._running = self._running or event
        elif isinstance(event, RestoreBegan):
            self._restoring = event.at
        elif isinstance(event, RestoreEnded):
            self._restored(event.at, {"bytes": event.nbytes, "tier": event.tier})
        else:
            self._ended(event)

    def phase(self, name: str, start: float, end: float, args: dict[str, Any]) -> None:
        """Something was done for the agent; it began after what was done before."""
        last = self._phases[-1].end if self._phases else self._free
        start = max(start, last)
        if end > start:
            self._phases.append(Span(name, start, end, args))

    def decoded(self, start: float, end: float, tokens: int) -> None:
        """A step gave it tokens: steps in a row are one span."""
        last = self._phases[-1] if self._phases else None
        if last is not None and last.name == "decode":
            last.end = end
            last.args["tokens"] += tokens
        else:
            self.phase("decode", start, end, {"tokens": tokens})

    def _restored(self, at: float, args: dict[str, Any]) -> None:
        if self._restoring is not None:
            self.phase("restore", self._restoring, at, args)
            self._restoring = None

    def _ended(self, event: TurnEnded) -> None:
        asked = self._asked.pop(event.serial, event.at)
        running = self._running
        if running is not None and running.serial != event.serial:
            return  # It gave up waiting while another one ran: nothing was done for it.
        self._restored(event.at, {"ended": event.reason})
        phases, self._phases, self._running = self._phases, [], None
        begin = phases[0].start if phases else running.at if running else event.at
        waited = max(asked, self._free)
        args = {"serial": event.serial, "reason": event.reason, "cache": event.cache}
        args |= {**event.usage, "queued_ms": round(1000 * (begin - asked), 3)}
        if waited < begin:
            phases.insert(0, Span("queued", waited, begin))
        start = min(waited, begin) if phases else waited
        if event.at > start:
            self.spans += [Span("turn", start, event.at, args), *phases]
        self._free = max(self._free, event.at)
