"""One save of an agent: made of the turns that wait for the store, and told of when it ended."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvactors.actors.dispatcher import send
from kvactors.actors.messages import Saved, SaveTurn
from kvactors.actors.outstanding import Outstanding
from kvactors.actors.reply import Ticket
from kvactors.persistence.save import Save

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
    """A save that was written or has failed. It counts as ended when nothing holds the KV any
    more: for the engine, memory is free then."""

    agent_id: str
    nbytes: int
    tickets: Sequence[Ticket]

    def settle(self, gpu: Any, outstanding: Outstanding) -> None:
        """Tell the GPU actor, and settle the futures of the turns; those that failed are."""
        send(gpu, Saved(self.agent_id, self.nbytes))
        for ticket in self.tickets:
            ticket.cached.resolve(True)
            outstanding.end_save(ticket)
