"""The persistence actor: owns the store, writes off the hot path, reads on demand.

Saves that arrive while one group is being written gather for the next: one set of syncs for
all of them. Nothing is dropped: ledger records that could not be written are written again.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict
from shutil import disk_usage
from time import perf_counter
from traceback import format_exception
from typing import Any

from kvactors.actors.errors import public, public_errors
from kvactors.actors.runtime.dispatcher import Dispatcher, SystemActor, handles, send
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.messages_gpu import Restored, Saved
from kvactors.actors.turns.messages_store import (
    CountStored,
    Flush,
    ForgetStored,
    LoadKV,
    OpenStore,
    ReadLedger,
    Retry,
    SaveTurn,
    WithStore,
)
from kvactors.actors.turns.outstanding import Outstanding
from kvactors.actors.workers.pacing import Pace
from kvactors.actors.workers.save_group import Ended, SaveGroup
from kvactors.actors.workers.unwritten import Unwritten
from kvactors.core.trace import Evicted, Fault, SaveBegan, SaveEnded, Tracer
from kvactors.persistence.commit.save import Save
from kvactors.persistence.store.store import Store

__all__ = ["PersistenceActor"]

logger = logging.getLogger(__name__)


class PersistenceActor(SystemActor):
    """Runs on a thread of `dispatcher`, its own; `open_store` and the store's end happen there.

    `gpu` is told what became of KV, `outstanding` when saves end, `tracer` what happens. `after`
    calls back in so many seconds; `streaming` says whether somebody reads tokens as they come, and
    `pace` makes what a group of saves rests by then.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        open_store: Callable[[], Store],
        gpu: Any,
        outstanding: Outstanding,
        *,
        after: Callable[[float, Callable[[], object]], object],
        tracer: Tracer,
        streaming: Callable[[], bool],
        pace: Callable[[Callable[[], bool]], Callable[[], object]] = Pace,
    ) -> None:
        super().__init__()
        self.dispatcher = dispatcher
        self._open_store = open_store
        self._gpu = gpu
        self._outstanding = outstanding
        self._tracer = tracer
        self._streaming = streaming
        self._pace = pace
        self._store: Store | None = None
        self._gathered: dict[str, list[SaveTurn]] = {}
        self._ended: list[Ended] = []
        self._refused = False
        self._unwritten = Unwritten(
            outstanding.unsaved.hold_back,
            outstanding.unsaved.accepted,
            lambda seconds: after(seconds, lambda: send(self.actor_ref, Retry())),
        )

    def on_stop(self) -> None:
        """Write what is left and close the store."""
        try:
            self._write_gathered()
            if self._store is not None and self._unwritten:
                self._unwritten.write(self._store)
        finally:
            if self._store is not None:
                self._store.close()

    def on_failure(self, kind: Any, error: Any, traceback: Any) -> None:
        """A defect in this actor, the `error` of this `kind` with its `traceback`: nothing is saved
        any more, and everybody is told."""
        failure = public(error)
        self._outstanding.refuse(failure)
        for turns in self._gathered.values():
            for turn in turns:
                turn.reject()
        self._outstanding.fail_saves(failure)
        if self._store is not None:
            self._store.close()

    # -- reading -----------------------------------------------------------------------

    @handles(OpenStore)
    def _open(self, _message: OpenStore) -> None:
        self._opened()

    def _opened(self) -> Store:
        """The store. The first to want it opens it and so learns what is wrong."""
        if self._store is None:
            with public_errors():
                self._store = self._open_store()
            self._store.limit.evicted = self._evicted
            self._store.limit.busy = self._outstanding.agents
        return self._store

    @handles(ReadLedger)
    def _read(self, message: ReadLedger) -> tuple[dict[str, Any], ...] | None:
        self._write_gathered()
        self._unwritten.settle(message.agent_id, self._opened)
        with public_errors():
            return self._opened().read_ledger(message.agent_id)

    @handles(LoadKV)
    def _load(self, message: LoadKV) -> None:
        try:
            stored = tuple(self._opened().read_kv(message.agent_id, message.fingerprint))
        except Exception:
            logger.exception("the KV of %r cannot be read; it is re-prefilled", message.agent_id)
            stored = ()
        send(message.gpu, Restored(message.agent_id, message.fingerprint, stored))

    @handles(CountStored)
    def _count(self, message: CountStored) -> dict[str, int]:
        return asdict(self._opened().counts(message.fingerprint, message.in_memory))

    @handles(ForgetStored)
    def _forget(self, message: ForgetStored) -> bool:
        self._write_gathered()
        with public_errors():
            known = self._opened().has(message.agent_id)
            try:
                self._opened().forget(message.agent_id)
            finally:
                # Where the disk refuses that, it belongs to what still stands.
                if not self._opened().has(message.agent_id):
                    self._unwritten.drop(message.agent_id)
        return known

    @handles(WithStore)
    def _work(self, message: WithStore) -> Any:
        self._write_gathered()
        self._unwritten.settle(message.agent_id, self._opened)
        try:
            return message.work(self._opened())
        except Exception:
            raise
        except BaseException as error:
            # Of whoever watches the work, and cancels it so: it ends that, and not the store.
            ended: ReplyFuture[Any] = ReplyFuture()
            ended.reject(error)
            return ended

    # -- writing -----------------------------------------------------------------------

    @handles(SaveTurn)
    def _gather(self, message: SaveTurn) -> None:
        if not self._gathered:
            self.actor_ref.tell(Flush())
        self._gathered.setdefault(message.save.agent_id, []).append(message)

    @handles(Flush)
    def _flush(self, _message: Flush) -> None:
        self._write_gathered(self._pace(self._hurried))

    @handles(Retry)
    def _retry(self, _message: Retry) -> None:
        self._unwritten.retry(self._opened)

    def _hurried(self) -> bool:
        """Whether somebody waits for the store, or nobody minds that it takes the processors."""
        awaited = self._outstanding.pressing or not self.actor_inbox.empty()
        return awaited or not self._streaming()

    def _write_gathered(self, pace: Callable[[], object] = bool) -> None:
        if not self._gathered:
            return
        self._refused = False
        try:
            self._commit(pace)
        finally:
            if not self._refused:
                self._outstanding.unsaved.accepted()
            ended, self._ended = self._ended, []
            for save in ended:
                save.settle(self._gpu, self._outstanding)
        self._unwritten.group_ended()

    def _commit(self, pace: Callable[[], object]) -> None:
        """Write what was gathered. When it returns, nothing holds the KV that was written."""
        group = SaveGroup(self._gathered, self._unwritten, self._end)
        gathered, self._gathered = self._gathered, {}
        if self._tracer.on:
            now = perf_counter()
            for agent_id, turns in gathered.items():
                self._tracer.tell(SaveBegan(now, agent_id, _nbytes(turns)))
        del gathered
        try:
            self._opened().commit(
                group.saves,
                durable=group.durable,
                cached=group.cached,
                failed=group.failed,
                pace=pace,
            )
        except Exception as error:
            # As text: a record's own traceback holds the saves.
            logger.error("a group of saves failed: %s", "".join(format_exception(error)))
            group.fail(error)

    def _evicted(self, agent_id: str, fingerprint: str) -> None:
        if self._tracer.on:
            self._tracer.tell(Evicted(perf_counter(), agent_id, 0, "disk"))
        # The engine may hold this KV and think it is on disk: its next save is of all.
        send(self._gpu, Saved(agent_id, 0, limit=0, fingerprint=fingerprint))

    def _end(self, turns: list[SaveTurn], error: BaseException | None) -> None:
        """A save ended. A failure is told at once: what the agent saves next begins before it."""
        save, nbytes = turns[-1].save, _nbytes(turns)
        tickets = [turn.ticket for turn in turns]
        if self._tracer.on:
            self._tell_saved(save.agent_id, nbytes, error)
        if error is not None:
            reason = public(error)
            logger.warning("saving %r failed: %s", save.agent_id, reason)
            if isinstance(error, OSError):
                self._refused = True
                self._outstanding.unsaved.refusal = _with_place(error, self._store)
            # What is stored from where these were to begin is what they should have replaced.
            starts = [part.start for turn in turns for part in turn.save.segments]
            send(self._gpu, Saved(save.agent_id, 0, limit=min([self._extent(save), *starts])))
            for ticket in tickets:
                self._outstanding.drop_bytes(ticket)
                ticket.durable.reject(reason)
                ticket.cached.reject(reason)
        self._ended.append(Ended(save.agent_id, nbytes, tickets))

    def _tell_saved(self, agent_id: str, nbytes: int, error: BaseException | None) -> None:
        now = perf_counter()
        self._tracer.tell(SaveEnded(now, agent_id, nbytes, error is None))
        if error is not None:
            self._tracer.tell(Fault(now, "disk", agent_id, type(error).__name__))

    def _extent(self, save: Save) -> int:
        """Tokens of KV that the store has; 0 if it cannot even tell."""
        if save.fingerprint is None:
            return 0
        try:
            return self._opened().kv_extent(save.agent_id, save.fingerprint)
        except Exception:
            return 0


def _nbytes(turns: list[SaveTurn]) -> int:
    return sum(turn.nbytes for turn in turns)


def _with_place(error: OSError, store: Store | None) -> str:
    """What the disk refused, where, and how much is free there."""
    if store is None:
        return str(error)
    try:
        return f"{error}: {disk_usage(store.root).free} bytes are free at {store.root}"
    except OSError:
        return f"{error}: {store.root} cannot be read either"
