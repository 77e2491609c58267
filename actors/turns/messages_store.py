"""The messages that the persistence actor takes: immutable, a line under each field."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvactors.actors.runtime.dispatcher import send
from kvactors.actors.turns.messages_gpu import Restored, Saved
from kvactors.actors.turns.ticket import Ticket
from kvactors.persistence.commit.save import Save
from kvactors.persistence.store.store import Store

__all__ = [
    "CountStored",
    "Flush",
    "ForgetStored",
    "LoadKV",
    "OpenStore",
    "ReadLedger",
    "Retry",
    "SaveTurn",
    "WithStore",
]


@dataclass(frozen=True, slots=True)
class OpenStore:
    """To the persistence actor, by ask: open the store, and so learn what is wrong with it."""


@dataclass(frozen=True, slots=True)
class SaveTurn:
    """To the persistence actor: a finished turn to write."""

    save: Save
    """Ledger records and KV segments."""
    ticket: Ticket
    """Whose `durable` and `cached` to settle."""
    nbytes: int
    """Bytes of KV in it."""
    gpu: Any
    """Who counts these bytes until they are saved."""

    def reject(self, _error: BaseException | None = None) -> None:
        """The persistence actor stopped first: nobody will save them."""
        send(self.gpu, Saved(self.save.agent_id, self.nbytes, limit=0))


@dataclass(frozen=True, slots=True)
class Flush:
    """The persistence actor to itself: commit what has gathered."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The persistence actor to itself: write again what the disk has refused."""


@dataclass(frozen=True, slots=True)
class LoadKV:
    """To the persistence actor: read an agent's KV and send it to the GPU actor."""

    agent_id: str
    """Whose."""
    fingerprint: str
    """Of which model."""
    gpu: Any
    """Who is answered."""

    def reject(self, _error: BaseException | None = None) -> None:
        """The persistence actor stopped first: the turn that waits for it goes on without."""
        send(self.gpu, Restored(self.agent_id, self.fingerprint, ()))


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """To the persistence actor, by ask: an agent's ledger records, or None."""

    agent_id: str
    """Whose."""


@dataclass(frozen=True, slots=True)
class ForgetStored:
    """To the persistence actor, by ask: delete an agent's ledger and KV. Answered with whether
    there was anything of it."""

    agent_id: str
    """Whose."""


@dataclass(frozen=True, slots=True)
class CountStored:
    """To the persistence actor, by ask: what is stored, and what of agents not in memory."""

    fingerprint: str
    """Of the model whose KV counts."""
    in_memory: frozenset[str]
    """Agents that do not count."""


@dataclass(frozen=True, slots=True)
class WithStore:
    """To the persistence actor, by ask: do something with the store, all saves written before.

    For what is long and rare (import and export); answers what `work` returns.
    """

    work: Callable[[Store], Any]
    """Runs on the persistence actor's thread."""
    agent_id: str = ""
    """Who must be in the store with all turns; SaveFailed if the disk refuses some."""
