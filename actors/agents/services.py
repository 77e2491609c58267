"""What the agents of a system share, and how what they finish gets to the store."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pykka import ActorDeadError

from kvactors.actors.errors import SaveFailed
from kvactors.actors.runtime.dispatcher import Dispatcher, send
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.messages_gpu import Forget, ForkCache, Saved
from kvactors.actors.turns.messages_store import ForgetStored, SaveTurn, WithStore
from kvactors.actors.turns.outstanding import Outstanding
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.cache.segment import Segment
from kvactors.core.errors import SystemStopped
from kvactors.core.model.info import ModelInfo
from kvactors.persistence.commit.save import Save
from kvactors.persistence.store.store import Store

__all__ = ["AgentServices"]


@dataclass(frozen=True, slots=True)
class AgentServices:
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
    """Whether agents that were told the same hold its KV each for itself."""
    log_text: bool
    """Whether what is said may stand in the log."""

    def tell_gpu(self, message: Any) -> None:
        """Tell the GPU actor. A dead one has failed every ticket: there is nobody to tell."""
        send(self.gpu, message)

    def save(
        self, agent_id: str, record: dict[str, Any], ticket: Ticket, exported: Sequence[Segment]
    ) -> None:
        """Have a ledger `record` of `agent_id` and new KV, `exported`, written; settles the
        `durable` and `cached` of the `ticket`."""
        if self.persistence is None:
            ticket.keep_nothing()
            return
        nbytes = sum(part.nbytes for part in exported)
        save = Save(agent_id, (record,), self.model.fingerprint, tuple(exported))
        self.outstanding.begin_save(ticket, nbytes)
        message = SaveTurn(save, ticket, nbytes, self.gpu)
        if not send(self.persistence, message):
            error = SaveFailed("the persistence actor is dead: nothing is saved any more")
            ticket.durable.reject(error)
            ticket.cached.reject(error)
            self.outstanding.end_save(ticket)
            message.reject()

    def confirm(self, ticket: Ticket) -> None:
        """Settle `durable` and `cached` of a ticket whose turn was saved before, or whose save is
        under way: once all of its agent's turns are on disk, SaveFailed if it refuses them."""
        if self.persistence is None:
            ticket.keep_nothing()
            return

        def settle(done: ReplyFuture[bool]) -> None:
            ticket.durable.follow(done)
            ticket.cached.follow(done)

        work = WithStore(lambda store: _put_down(store, ticket.agent_id), ticket.agent_id)
        try:
            self.persistence.ask(work, block=False).on_done(settle)
        except ActorDeadError:
            error = SaveFailed("the persistence actor is dead: nothing is saved any more")
            ticket.durable.reject(error)
            ticket.cached.reject(error)

    def fork(self, parent: str, child: str, *, stored: bool) -> Any:
        """Let a new agent, `child`, begin with all that `parent` has; `stored`: in its ledger too,
        where there is a store. A future that resolves when that is done, or None. Raises
        SystemStopped.

        Both other actors are told at once: whatever comes later of the parent is not the child's.
        """

        def fork(store: Store) -> None:
            store.fork(parent, child)
            # The parent's KV may not have been saved, or there was no room for the child's.
            extent = store.kv_extent(child, self.model.fingerprint)
            self.tell_gpu(Saved(child, 0, limit=extent))

        self.tell_gpu(ForkCache(parent, child))
        if self.persistence is None or not stored:
            return None
        try:
            return self.persistence.ask(WithStore(fork, parent), block=False)
        except ActorDeadError:
            gone = "the persistence actor is dead: nothing can be forked"
            raise SystemStopped(gone) from None

    def undo_fork(self, child: str, stored: ReplyFuture[Any] | None) -> ReplyFuture[None]:
        """Leave nothing of `child`, which is not to be, in memory, or in the store once `stored`,
        which `fork` gave, has put it there. Resolves when nothing is left: whoever is made by that
        id before would be this one."""
        undone: ReplyFuture[None] = ReplyFuture()

        def forget(done: ReplyFuture[Any]) -> None:
            if done.error is not None:
                undone.resolve(None)
                return
            try:
                forgotten = self.persistence.ask(ForgetStored(child), block=False)
            except ActorDeadError:
                # Nothing is written any more.
                undone.resolve(None)
            else:
                forgotten.on_done(lambda _: undone.resolve(None))

        self.tell_gpu(Forget(child))
        if stored is None:
            undone.resolve(None)
        else:
            stored.on_done(forget)
        return undone


def _put_down(store: Store, agent_id: str) -> bool:
    """Sync what is in the ledger of `agent_id`: who wrote it may have been killed before that.
    Raises SaveFailed. Persistence thread."""
    failed: list[BaseException] = []
    store.commit(
        [Save(agent_id, (), None, ())],
        durable=lambda _: None,
        cached=lambda _: None,
        failed=lambda _, __, error: failed.append(error),
    )
    if failed:
        raise SaveFailed(f"what is stored of {agent_id!r} cannot be synced: {failed[0]}")
    return True
