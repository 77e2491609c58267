"""A group of saves: each made of an agent's turns that wait, and told of when it has ended."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvactors.actors.runtime.dispatcher import send
from kvactors.actors.turns.messages_gpu import Saved
from kvactors.actors.turns.messages_store import SaveTurn
from kvactors.actors.turns.outstanding import Outstanding
from kvactors.actors.turns.ticket import Ticket
from kvactors.actors.workers.unwritten import Records, Unwritten
from kvactors.persistence.commit.save import Save
from kvactors.persistence.errors import untraced

__all__ = ["Ended", "SaveGroup", "coalesce"]


def coalesce(turns: Sequence[SaveTurn], unwritten: Records) -> Save:
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


class SaveGroup:
    """What one commit writes: the `turns` of each agent. `ended` is called once for each, with its
    turns, and the error if their save failed; records that the ledger refused are `unwritten`."""

    def __init__(
        self,
        turns: Mapping[str, list[SaveTurn]],
        unwritten: Unwritten,
        ended: Callable[[list[SaveTurn], BaseException | None], object],
    ) -> None:
        self.saves = [coalesce(own, unwritten.take(agent_id)) for agent_id, own in turns.items()]
        self._turns = dict(turns)
        self._unwritten = unwritten
        self._ended = ended
        self._in_ledger: set[str] = set()

    def durable(self, save: Save) -> None:
        """Its records are in the ledger."""
        self._in_ledger.add(save.agent_id)
        for turn in self._turns[save.agent_id]:
            turn.ticket.durable.resolve(True)

    def cached(self, save: Save) -> None:
        """Its KV is on disk."""
        self._ended(self._turns.pop(save.agent_id), None)

    def failed(self, save: Save, _stage: str, error: BaseException) -> None:
        """This `save` was not written, or not all of it; `error` says why."""
        if save.agent_id not in self._in_ledger:
            self._unwritten.keep(save)
        self._ended(self._turns.pop(save.agent_id), error)

    def fail(self, error: BaseException) -> None:
        """The commit itself failed: so has every save that had not ended."""
        for save in self.saves:
            if save.agent_id in self._turns:
                self.failed(save, "", untraced(error))


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
