"""Who waits: every accepted turn, pending save and message, until it is settled. Any thread.

It answers two questions: is the system idle, and whom to tell when the engine dies.
"""

import threading
import time

from kvactors.actors.errors import SaveQueueFull
from kvactors.actors.futures import check_outside_of_actors, drive, runs_actors
from kvactors.actors.reply import turn_ended
from kvactors.actors.ticket import Ticket
from kvactors.core.errors import KvactorsError
from kvactors.core.trace import Tracer, TurnQueued

__all__ = ["MAX_UNSAVED", "Outstanding"]

MAX_UNSAVED = 512 * 2**20


class Outstanding:
    """The tickets of turns and saves that are not settled yet."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer or Tracer()
        self._changed = threading.Condition()
        self._turns: dict[int, Ticket] = {}
        self._saves: dict[int, Ticket] = {}
        self._work = 0
        self._refusal: KvactorsError | None = None
        self.max_unsaved = MAX_UNSAVED
        self._saving: dict[int, int] = {}
        self._saving_bytes = 0
        self._unwritten = 0

    def begin_work(self) -> None:
        """A message was accepted, or is to be sent later."""
        with self._changed:
            self._work += 1

    def end_work(self) -> None:
        """A message was handled, or never will be; what it led to has begun before."""
        with self._changed:
            self._work -= 1
            assert self._work >= 0
            if not self._work:
                self._changed.notify_all()

    def begin_turn(self, ticket: Ticket) -> None:
        """Accept a turn. Raises what `refuse` was given, if it was."""
        ticket.on_end = self._end_turn
        with self._changed:
            if self._refusal is not None:
                raise self._refusal.with_traceback(None)
            if self.unsaved > self.max_unsaved:
                raise SaveQueueFull(
                    f"{self.unsaved} bytes wait for the disk, more than max_unsaved "
                    f"{self.max_unsaved}: turns are taken again when it has written them"
                )
            if self._tracer.on:
                queued = TurnQueued(time.perf_counter(), ticket.agent_id, ticket.serial)
                self._tracer.tell(queued)
            self._turns[ticket.serial] = ticket

    def _end_turn(self, ticket: Ticket) -> None:
        # Told before it counts as ended: who waits for that has heard of it all.
        if self._tracer.on:
            self._tracer.tell(turn_ended(ticket))
        with self._changed:
            self._turns.pop(ticket.serial, None)
            self._changed.notify_all()

    def begin_save(self, ticket: Ticket, nbytes: int) -> None:
        """A finished turn with so many bytes of KV goes to the store; to be called before its
        turn ends."""
        with self._changed:
            self._saves[ticket.serial] = ticket
            self._saving[ticket.serial] = nbytes
            self._saving_bytes += nbytes

    def drop_bytes(self, ticket: Ticket) -> None:
        """The KV of a save no longer waits for the disk; the save itself may not have ended."""
        with self._changed:
            self._saving_bytes -= self._saving.pop(ticket.serial, 0)

    def end_save(self, ticket: Ticket) -> None:
        """A save succeeded or failed."""
        with self._changed:
            self.drop_bytes(ticket)
            self._saves.pop(ticket.serial, None)
            self._changed.notify_all()

    def hold_back(self, nbytes: int) -> None:
        """So many bytes of turns could not be written and wait for the disk to come back."""
        self._unwritten = nbytes

    @property
    def disk_fails(self) -> bool:
        """Whether turns wait in memory that the disk has refused."""
        return self._unwritten > 0

    @property
    def unsaved(self) -> int:
        """Bytes that wait for the disk."""
        return self._unwritten + self._saving_bytes

    @property
    def pressing(self) -> bool:
        """Whether the saves are waited for: the system ends, or takes no turn before."""
        return self._refusal is not None or self.unsaved > self.max_unsaved

    @property
    def refusal(self) -> KvactorsError | None:
        """Why no turn is accepted any more, if so."""
        return self._refusal

    def refuse(self, error: KvactorsError) -> None:
        """Accept no further turn; `begin_turn` raises this error."""
        with self._changed:
            self._refusal = self._refusal or error

    def abandon(self, error: KvactorsError) -> None:
        """In a forked child: whoever held the lock is gone, and so is all that was awaited."""
        self._changed, self._refusal = threading.Condition(), error
        self._turns, self._saves, self._saving, self._work = {}, {}, {}, 0

    @property
    def idle(self) -> bool:
        """Whether nothing is outstanding."""
        return not (self._turns or self._saves or self._work)

    def catch_up(self) -> None:
        """Wait until every turn whose asker has its answer counts as ended. Not where actors
        run: the callback of an answer comes before its turn's end."""
        if runs_actors():
            return
        with self._changed:
            while any(ticket.reply.done for ticket in self._turns.values()):
                self._changed.wait(1.0)

    def turns(self) -> list[Ticket]:
        """The turns that wait or run."""
        with self._changed:
            return list(self._turns.values())

    def agents(self) -> set[str]:
        """Ids of the agents that have a turn or a save pending."""
        with self._changed:
            return {t.agent_id for t in (*self._turns.values(), *self._saves.values())}

    def fail_turns(self, error: BaseException) -> None:
        """Settle every turn with an error."""
        for ticket in self.turns():
            ticket.reject(error)

    def fail_saves(self, error: BaseException) -> None:
        """Settle every pending save with an error."""
        with self._changed:
            tickets = list(self._saves.values())
        for ticket in tickets:
            ticket.durable.reject(error)
            ticket.cached.reject(error)
            self.end_save(ticket)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is outstanding; False if `timeout` seconds pass first.

        Raises BlockingCall on a thread that runs actors.
        """
        check_outside_of_actors()
        drive(lambda: self.idle, timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self.idle:
                # A bounded wait lets Ctrl-C through on every platform.
                left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True
