"""Who waits: every accepted turn, pending save and message, until it is settled. Any thread.

It answers two questions: is the system idle, and whom to tell when the engine dies.
"""

import threading
import time
from dataclasses import dataclass

from kvactors.actors.errors import SaveQueueFull
from kvactors.actors.runtime.blocking import HEARS, check_outside_of_actors, drive, runs_actors
from kvactors.actors.turns.reply import turn_ended
from kvactors.actors.turns.ticket import Ticket
from kvactors.actors.turns.unsaved import UnsavedBytes
from kvactors.core.errors import KvactorsError
from kvactors.core.trace import Tracer, TurnQueued

__all__ = ["Outstanding"]

# How many agents a line of the log names.
NAMED = 5


@dataclass(slots=True)
class PendingSave:
    """A save that has not ended. `nbytes` of KV wait for the disk."""

    ticket: Ticket
    nbytes: int


class Outstanding:
    """The tickets of turns and saves that are not settled yet."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer or Tracer()
        self._changed = threading.Condition()
        self._turns: dict[int, Ticket] = {}
        self._saves: dict[int, PendingSave] = {}
        self._work = 0
        self._refusal: KvactorsError | None = None
        self.unsaved = UnsavedBytes()

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
            if self.unsaved.over:
                raise SaveQueueFull(
                    f"{self.unsaved.total} bytes wait for the disk, more than max_unsaved "
                    f"{self.unsaved.limit}: turns are taken again when it has written them"
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
            self._saves[ticket.serial] = PendingSave(ticket, nbytes)
            self.unsaved.save(nbytes)

    def drop_bytes(self, ticket: Ticket) -> None:
        """The KV of a save no longer waits for the disk; the save itself may not have ended."""
        with self._changed:
            save = self._saves.get(ticket.serial)
            if save is not None:
                self.unsaved.save(-save.nbytes)
                save.nbytes = 0

    def end_save(self, ticket: Ticket) -> None:
        """A save succeeded or failed."""
        with self._changed:
            self.drop_bytes(ticket)
            self._saves.pop(ticket.serial, None)
            self._changed.notify_all()

    @property
    def pressing(self) -> bool:
        """Whether the saves are waited for: the system ends, or takes no turn before."""
        return self._refusal is not None or self.unsaved.over

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
        self._turns, self._saves, self._work = {}, {}, 0

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
            saving = (save.ticket for save in self._saves.values())
            return {ticket.agent_id for ticket in (*self._turns.values(), *saving)}

    def described(self) -> str:
        """What is outstanding, for people: numbers, and the ids of a few agents."""
        with self._changed:
            counts = (
                (len(self._turns), "turns"),
                (len(self._saves), "saves"),
                (self._work, "messages"),
            )
        named = sorted(self.agents())
        ids = ", ".join(map(repr, named[:NAMED])) + (", ..." if len(named) > NAMED else "")
        what = ", ".join(f"{count} {kind}" for count, kind in counts if count)
        return f"{what} ({ids})" if named else what

    def fail_turns(self, error: BaseException) -> None:
        """Settle every turn with an error."""
        for ticket in self.turns():
            ticket.reject(error)

    def fail_saves(self, error: BaseException) -> None:
        """Settle every pending save with an error."""
        with self._changed:
            tickets = [save.ticket for save in self._saves.values()]
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
                left = HEARS if deadline is None else min(HEARS, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True
