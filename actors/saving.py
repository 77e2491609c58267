"""One save of an agent: made of the turns that wait for the store, and told of when it ended."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvactors.actors.messages import Saved, SaveTurn
from kvactors.actors.outstanding import Outstanding
from kvactors.actors.reply import Ticket
from kvactors.core.errors import KvactorsError
from kvactors.persistence.store import Save

__all__ = ["Ended", "coalesce"]


def coalesce(turns: Sequence[SaveTurn], unwritten: tuple[dict[str, Any], ...]) -> Save:
    """One save of one agent's turns, behind the records of it that the disk refused before: later
    segments supersede what they cover again."""
    first = turns[0].save
    records, segments = unwritten, first.segments
    for turn in turns:
        records += turn.save.records
    for turn in turns[1:]:
        new = turn.save.segments
        if new:
            segments = tuple(part for part in segments if part.start < new[0].start) + new
    return replace(first, records=records, segments=segments)


@dataclass(frozen=True, slots=True)
class Ended:
    """A save that was written, or failed for a reason. It is told of when nothing holds the KV
    any more: to the engine that memory is free then."""

    saved: Saved
    tickets: Sequence[Ticket]
    reason: KvactorsError | None

    def settle(self, outstanding: Outstanding) -> None:
        """Settle the futures of its turns."""
        for ticket in self.tickets:
            if self.reason is None:
                ticket.cached.resolve(True)
            else:
                ticket.durable.reject(self.reason)
                ticket.cached.reject(self.reason)
            outstanding.end_save(ticket)
