"""The persistence actor: owns the store, writes off the hot path, reads on demand.

Saves that arrive while one group is being written gather for the next: one set of syncs for
all of them. Nothing is dropped: ledger records that could not be written are written again,
with the agent's next save or by themselves when the disk is back.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from traceback import format_exception
from typing import Any

from kvactors.actors.dispatcher import Dispatcher, SystemActor, send
from kvactors.actors.errors import SaveFailed, public, public_errors
from kvactors.actors.messages import (
    CountStored,
    Flush,
    ForgetStored,
    LoadKV,
    OpenStore,
    ReadLedger,
    Restored,
    Saved,
    SaveTurn,
    WithStore,
)
from kvactors.actors.outstanding import Outstanding
from kvactors.actors.pace import Pace
from kvactors.actors.saving import Ended, coalesce
from kvactors.core.events import ExportedKV
from kvactors.core.trace import Evicted, Fault, SaveBegan, SaveEnded, Tracer
from kvactors.persistence.errors import untraced
from kvactors.persistence.save import Save
from kvactors.persistence.store import Store

__all__ = ["PersistenceActor"]

logger = logging.getLogger(__name__)

# Seconds until the disk is tried again; twice as long each time.
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class Retry:
    """To itself: write again what the disk has refused."""


class PersistenceActor(SystemActor):
    """Runs on a thread of its own; the store is opened and closed there."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        open_store: Callable[[], Store],
        gpu: Any,
        outstanding: Outstanding,
        after: Callable[[float, Callable[[], object]], None],
        tracer: Tracer,
        watched: Callable[[], bool],
    ) -> None:
        super().__init__()
        self.dispatcher = dispatcher
        self._open_store = open_store
        self._gpu = gpu
        self._outstanding = outstanding
        self._store: Store | None = None
        self._gathered: dict[str, list[SaveTurn]] = {}
        self._ended: list[Ended] = []
        self._unwritten: dict[str, tuple[dict[str, Any], ...]] = {}
        self._after = after
        self._tracer = tracer
        self._pause = 0.0
        self._watched = watched

    def on_receive(self, message: Any) -> Any:
        """Handle one message. The first ask opens the store and so learns what is wrong."""
        if isinstance(message, SaveTurn):
            self._gather(message)
        elif isinstance(message, Flush):
            self._flush(Pace(self._hurried))
        elif isinstance(message, Retry):
            self._retry()
        elif isinstance(message, LoadKV):
            self._load(message)
        elif isinstance(message, ReadLedger):
            return self._read(message.agent_id)
        elif isinstance(message, ForgetStored):
            self._forget(message.agent_id)
        elif isinstance(message, OpenStore):
            self._opened()
        elif isinstance(message, CountStored):
            return asdict(self._opened().counts(message.fingerprint, message.in_memory))
        elif isinstance(message, WithStore):
            return self._work(message)
        return None

    def on_stop(self) -> None:
        """Write what is left and close the store."""
        self._flush()
        if self._unwritten and self._store is not None:
            self._retry_unwritten()
        if self._store is not None:
            self._store.close()

    def on_failure(self, kind: Any, error: Any, traceback: Any) -> None:
        """A defect in this actor: nothing is saved any more, and everybody is told."""
        failure = public(error)
        self._outstanding.refuse(failure)
        for turns in self._gathered.values():
            for turn in turns:
                turn.reject()
        self._outstanding.fail_saves(failure)
        if self._store is not None:
            self._store.close()

    def _opened(self) -> Store:
        if self._store is None:
            with public_errors():
                self._store = self._open_store()
        return self._store

    def _read(self, agent_id: str) -> tuple[dict[str, Any], ...] | None:
        with public_errors():
            return self._opened().read_ledger(agent_id)

    def _load(self, message: LoadKV) -> None:
        try:
            segments = self._opened().read_kv(message.agent_id, message.fingerprint)
        except Exception:
            logger.exception("the KV of %r cannot be read; it is re-prefilled", message.agent_id)
            segments = ()
        stored = tuple(
            ExportedKV(part.start, part.end, part.tokens_hash, part.layout, part.tensors)
            for part in segments
        )
        self._tell_gpu(Restored(message.agent_id, message.fingerprint, stored))

    def _forget(self, agent_id: str) -> None:
        self._flush()
        self._unwritten.pop(agent_id, None)
        with public_errors():
            self._opened().forget(agent_id)

    def _work(self, message: WithStore) -> Any:
        self._flush()
        if message.agent_id in self._unwritten:
            self._retry_unwritten()
            self._tell_unwritten()
        if message.agent_id in self._unwritten:
            raise SaveFailed(f"the disk has refused turns of {message.agent_id!r}")
        return message.work(self._opened())

    # -- writing -----------------------------------------------------------------------

    def _gather(self, message: SaveTurn) -> None:
        if not self._gathered:
            self.actor_ref.tell(Flush())
        self._gathered.setdefault(message.save.agent_id, []).append(message)

    def _hurried(self) -> bool:
        """Whether somebody waits for the store, or nobody minds that it takes the processors."""
        awaited = self._outstanding.pressing or not self.actor_inbox.empty()
        return awaited or not self._watched()

    def _flush(self, pace: Callable[[], object] = bool) -> None:
        if not self._gathered:
            return
        try:
            self._commit(pace)
        finally:
            ended, self._ended = self._ended, []
            for save in ended:
                save.settle(self._gpu, self._outstanding)
        self._try_again()

    def _commit(self, pace: Callable[[], object]) -> None:
        """Write what was gathered. When it returns, nothing holds the KV that was written."""
        saves = [
            coalesce(turns, self._unwritten.pop(agent_id, ()))
            for agent_id, turns in self._gathered.items()
        ]
        gathered, self._gathered = self._gathered, {}

        if self._tracer.on:
            now = perf_counter()
            for agent_id, turns in gathered.items():
                nbytes = sum(turn.nbytes for turn in turns)
                self._tracer.tell(SaveBegan(now, agent_id, nbytes))
        unwritten, open_saves = {save.agent_id for save in saves}, dict(gathered)

        def durable(save: Save) -> None:
            unwritten.discard(save.agent_id)
            for turn in gathered[save.agent_id]:
                turn.ticket.durable.resolve(True)

        def cached(save: Save) -> None:
            self._end(open_saves.pop(save.agent_id), None)

        def failed(save: Save, _stage: str, error: BaseException) -> None:
            if save.agent_id in unwritten:
                self._unwritten[save.agent_id] = save.records
                self._tell_unwritten()
            self._end(open_saves.pop(save.agent_id), error)

        def evicted(agent_id: str, fingerprint: str) -> None:
            if self._tracer.on:
                self._tracer.tell(Evicted(perf_counter(), agent_id, 0, "disk"))
            # The engine may hold this KV and think it is on disk: its next save is of all.
            if any(save.fingerprint == fingerprint for save in saves):
                self._tell_gpu(Saved(agent_id, 0, limit=0))

        try:
            self._opened().commit(
                saves,
                durable=durable,
                cached=cached,
                failed=failed,
                evicted=evicted,
                busy=self._outstanding.agents,
                pace=pace,
            )
        except Exception as error:
            # As text: a record's own traceback holds the saves.
            logger.error("a group of saves failed: %s", "".join(format_exception(error)))
            for save in saves:
                if save.agent_id in open_saves:
                    failed(save, "", untraced(error))

    def _end(self, turns: list[SaveTurn], error: BaseException | None) -> None:
        """A save ended. A failure is told at once: what the agent saves next begins before it."""
        save, nbytes = turns[-1].save, sum(turn.nbytes for turn in turns)
        tickets = [turn.ticket for turn in turns]
        if self._tracer.on:
            self._tell_saved(save.agent_id, nbytes, error)
        if error is not None:
            reason = public(error)
            logger.warning("saving %r failed: %s", save.agent_id, reason)
            # What is stored from where these were to begin is what they should have replaced.
            starts = [part.start for turn in turns for part in turn.save.segments]
            self._tell_gpu(Saved(save.agent_id, 0, limit=min([self._extent(save), *starts])))
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

    # -- what the disk refused ---------------------------------------------------------

    def _try_again(self) -> None:
        """Write what could not be written again later, sooner at first; until then it waits."""
        self._tell_unwritten()
        if not self._unwritten:
            self._pause = 0.0
        elif not self._pause:
            self._pause = FIRST_PAUSE
            self._after(self._pause, self._wake)

    def _wake(self) -> None:
        send(self.actor_ref, Retry())

    def _retry(self) -> None:
        if self._unwritten:
            try:
                self._retry_unwritten()
            except Exception as error:
                logger.error("the disk is still not there: %s", error)
        self._tell_unwritten()
        if self._unwritten:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._after(self._pause, self._wake)
        elif self._pause:
            self._pause = 0.0
            logger.warning("the disk writes again: nothing of what was said is missing")

    def _retry_unwritten(self) -> None:
        saves = [Save(agent, records, None, ()) for agent, records in self._unwritten.items()]
        self._opened().commit(
            saves,
            durable=self._written,
            cached=lambda save: None,
            failed=lambda save, stage, error: logger.error(
                "turns of %r were not written: %s", save.agent_id, error
            ),
        )

    def _tell_unwritten(self) -> None:
        self._outstanding.hold_back(sum(map(_size, self._unwritten.values())))

    def _written(self, save: Save) -> None:
        self._unwritten.pop(save.agent_id, None)

    def _tell_gpu(self, message: Any) -> None:
        send(self._gpu, message)


def _size(records: tuple[dict[str, Any], ...]) -> int:
    """Bytes of ledger records, about."""
    turns = [turn for record in records for turn in record["turns"]]
    return sum(len(turn["tokens"]) + len(turn["text"]) for turn in turns)
