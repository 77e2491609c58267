"""What the agents of a system share, and how what they finish gets to the store."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvactors.actors.dispatcher import Dispatcher, send
from kvactors.actors.errors import SaveFailed
from kvactors.actors.launch import ModelInfo
from kvactors.actors.messages import SaveTurn
from kvactors.actors.outstanding import Outstanding
from kvactors.actors.reply import Ticket
from kvactors.core.events import ExportedKV
from kvactors.persistence.save import Save
from kvactors.persistence.segment import Segment

__all__ = ["Wiring"]


@dataclass(frozen=True, slots=True)
class Wiring:
    """The other actors, the threads, and the model."""

    gpu: Any
    """ActorRef of the GPU actor."""
    persistence: Any
    """ActorRef of the persistence actor, or None when nothing is kept."""
    outstanding: Outstanding
    """Who waits, to be told if the engine dies."""
    model: ModelInfo
    """The model that is loaded."""
    pool: Dispatcher
    """The threads that agents share."""
    isolated: bool
    """Whether agents with the same system prompt hold its KV each for itself."""
    log_text: bool
    """Whether what is said may stand in the log."""

    def tell_gpu(self, message: Any) -> None:
        """Tell the GPU actor. A dead one has failed every ticket: there is nobody to tell."""
        send(self.gpu, message)

    def save(
        self, agent_id: str, record: dict[str, Any], ticket: Ticket, exported: Sequence[ExportedKV]
    ) -> None:
        """Have a ledger record and new KV written; settles the ticket's `durable` and `cached`."""
        if self.persistence is None:
            ticket.durable.resolve(False)
            ticket.cached.resolve(False)
            return
        segments = tuple(
            Segment(part.start, part.end, part.tokens_hash, part.layout, part.tensors)
            for part in exported
        )
        nbytes = sum(part.nbytes for part in exported)
        save = Save(agent_id, (record,), self.model.fingerprint, segments)
        self.outstanding.begin_save(ticket, nbytes)
        message = SaveTurn(save, ticket, nbytes, self.gpu)
        if not send(self.persistence, message):
            error = SaveFailed("the persistence actor is dead: nothing is saved any more")
            ticket.durable.reject(error)
            ticket.cached.reject(error)
            self.outstanding.end_save(ticket)
            message.reject()
