"""Mailbox: the two lanes of an actor that shares its threads, and what a full lane does.

The system lane is never full and goes first. The prompt lane is bounded and can be shut while
a turn runs. A closed mailbox answers everything it still holds, and everything that comes
later, with an error: nothing is left waiting.
"""

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from pykka import ActorDeadError, Timeout
from pykka._envelope import Envelope
from pykka.messages import _ActorStop as ActorStop

from kvactors.actors.runtime.blocking import must_not_wait
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.core.errors import InvalidConfig, MailboxFull
from kvactors.core.numbers import number, whole

__all__ = ["DEFAULT_LANE", "ActorStop", "Envelope", "LanePolicy", "Mailbox", "Runnable", "refuse"]

WhenFull = Literal["refuse", "block", "drop_oldest"]


class Runnable(Protocol):
    """What a dispatcher's thread runs."""

    def run_batch(self) -> None:
        """Handle some messages."""


class Scheduler(Protocol):
    """Whose threads run it."""

    def schedule(self, actor: Runnable, /) -> None:
        """Queue what has messages and is not queued yet. Any thread."""


class Reader(Runnable, Protocol):
    """Who reads a mailbox."""

    @property
    def dispatcher(self) -> Scheduler:
        """Who runs it when there is something to read."""


@dataclass(frozen=True, slots=True)
class LanePolicy:
    """How many prompts may wait for one agent, and what becomes of one more.

    `when_full`: "refuse" raises MailboxFull; "block" lets the sender wait for room, `timeout`
    seconds at most, then raises MailboxFull (at once on a thread that agents share, where a
    behaviour awaits its `send` instead, and on one that runs asyncio); "drop_oldest" fails
    the prompt that waits longest with MailboxFull and counts it. Raises InvalidConfig.
    """

    capacity: int = 1000
    when_full: WhenFull = "refuse"
    timeout: float | None = None

    def __post_init__(self) -> None:
        capacity = whole(self.capacity)
        if capacity is None or capacity < 1:
            raise InvalidConfig(f"a lane holds at least 1 prompt, not {self.capacity!r}")
        object.__setattr__(self, "capacity", capacity)
        if self.when_full not in get_args(WhenFull):
            raise InvalidConfig(
                f"when_full is one of {', '.join(get_args(WhenFull))}, not {self.when_full!r}"
            )
        if self.timeout is None:
            return
        timeout = number(self.timeout)
        if timeout is None or not 0 < timeout <= threading.TIMEOUT_MAX:
            raise InvalidConfig(f"timeout must be above 0 seconds and finite, not {self.timeout!r}")
        object.__setattr__(self, "timeout", timeout)


DEFAULT_LANE = LanePolicy()


class Mailbox:
    """Two lanes of envelopes; satisfies pykka's inbox protocol. Any thread may `put`.

    A message belongs to the prompt lane if it has a true `in_prompt_lane` attribute.
    `dropped` counts prompts that gave way to newer ones.
    """

    __slots__ = (
        "_actor",
        "_closed",
        "_lock",
        "_prompts",
        "_scheduled",
        "_senders",
        "_system",
        "dropped",
        "lane",
        "open_to_prompts",
    )

    def __init__(self) -> None:
        self._actor: Reader | None = None
        # Whoever holds it may be collecting garbage, such as a stream that cancels its turn here.
        self._lock = threading.RLock()
        self._system: deque[Any] = deque()
        self._prompts: deque[Any] = deque()
        # Senders that wait for room, in order, with the future that tells them.
        self._senders: deque[tuple[Any, ReplyFuture[None]]] | None = None
        self._scheduled = False
        self._closed = False
        self.lane = DEFAULT_LANE
        self.open_to_prompts = True
        self.dropped = 0

    def bind(self, actor: Reader) -> None:
        """Start delivering to an actor; its start is the first thing it handles."""
        with self._lock:
            # Together: between the two a put would queue the actor once more.
            self._actor, self._scheduled = actor, True
        actor.dispatcher.schedule(actor)

    def put(self, envelope: Any, /, within: float | None = None) -> None:
        """Accept a message, or answer it at once if the actor is dead. Raises MailboxFull, after
        `within` seconds at the latest."""
        if getattr(envelope.message, "in_prompt_lane", False):
            accepted = self.offer(envelope)
            if accepted is not None:
                self._wait_for_room(accepted, within)
            return
        # Without the lock: whoever clears the flag looks at the lane again after that.
        self._system.append(envelope)
        if not self._scheduled:
            self._wake()

    def offer(self, envelope: Any) -> ReplyFuture[None] | None:
        """Put a prompt as the lane's policy says. Raises MailboxFull.

        Returns None if it was accepted (or answered, if the actor is dead); else a future
        that resolves once there is room and the prompt is in.
        """
        oldest = None
        with self._lock:
            closed = self._closed
            if not closed:
                if len(self._prompts) >= self.lane.capacity or self._senders:
                    if self.lane.when_full == "refuse":
                        raise self._full()
                    if self.lane.when_full == "block":
                        return self._queue_sender(envelope)
                    oldest = self._prompts.popleft()
                    self.dropped += 1
                self._prompts.append(envelope)
            wake = self._wakes()
        if closed:
            refuse(envelope)
        elif wake is not None:
            wake.dispatcher.schedule(wake)
        if oldest is not None:
            refuse(oldest, MailboxFull("this prompt gave way to newer ones: the lane was full"))
        return None

    def withdraw(self, accepted: ReplyFuture[None]) -> bool:
        """A sender that waits for room gives up; False if its prompt is in already."""
        with self._lock:
            waiting = self._senders or deque()
            sender = next((one for one in waiting if one[1] is accepted), None)
            if sender is None:
                return False
            waiting.remove(sender)
        # Without the lock: whoever hears of it may put something in here.
        return accepted.reject(self._full())

    def get(self) -> Any:
        """The next deliverable envelope, or None and the actor is off the queue. Called by the
        thread that runs the actor."""
        if self._system:
            return self._system.popleft()
        # Without the lock: whoever puts after this sees that it must wake the actor.
        self._scheduled = False
        if not self._system and not self._prompts:
            return None
        with self._lock:
            # Unless somebody has woken it already, and another thread runs it now.
            if self._scheduled or not self._keeps_its_turn():
                return None
            if self._system:
                return self._system.popleft()
            envelope = self._prompts.popleft()
            sender = self._senders.popleft() if self._senders else None
            if sender is not None:
                self._prompts.append(sender[0])
        if sender is not None:
            sender[1].resolve(None)
        return envelope

    @property
    def prompts(self) -> int:
        """Prompts that wait."""
        return len(self._prompts)

    def yield_turn(self) -> bool:
        """After a full batch: whether to go to the end of the dispatcher's queue."""
        with self._lock:
            return self._keeps_its_turn()

    def empty(self) -> bool:
        """Whether neither lane holds a message."""
        return not self._system and not self._prompts

    def close(self) -> None:
        """Accept nothing more; what was never handled is answered."""
        with self._lock:
            self._closed = True
            # Before the lane is emptied: whoever puts after that closes it once more.
            self._scheduled = False
            senders = self._senders or ()
            rest = []
            while self._system:
                rest.append(self._system.popleft())
            rest += [*self._prompts, *(envelope for envelope, _ in senders)]
            self._prompts.clear()
            self._senders = None
        for envelope in rest:
            refuse(envelope)
        for _, accepted in senders:
            accepted.resolve(None)

    def _wait_for_room(self, accepted: ReplyFuture[None], within: float | None) -> None:
        if must_not_wait():
            if self.withdraw(accepted):
                raise self._full()
            return
        try:
            bounds = [bound for bound in (self.lane.timeout, within) if bound is not None]
            accepted.get(timeout=min(bounds, default=None))
        except Timeout:
            if self.withdraw(accepted):
                raise self._full() from None
        except BaseException:
            # Ctrl-C: nobody would hear of what is put in later.
            self.withdraw(accepted)
            raise

    def _queue_sender(self, envelope: Any) -> ReplyFuture[None]:
        accepted: ReplyFuture[None] = ReplyFuture()
        if self._senders is None:
            self._senders = deque()
        self._senders.append((envelope, accepted))
        return accepted

    def _full(self) -> MailboxFull:
        return MailboxFull(f"{len(self._prompts)} prompts wait for this agent, the most allowed")

    def _wake(self) -> None:
        """After a put: schedule the actor if it waits; answer what came too late."""
        with self._lock:
            closed, actor = self._closed, self._actor
            if actor is None or (self._scheduled and not closed):
                return
            self._scheduled = not closed
        if closed:
            self.close()
        else:
            actor.dispatcher.schedule(actor)

    def _keeps_its_turn(self) -> bool:
        """Whether there is something to deliver; else the next put schedules the actor again.
        Called with the lock held."""
        self._scheduled = False
        keeps = bool(self._system or (self._prompts and self.open_to_prompts))
        if self._scheduled:
            # Garbage was collected just now and put something in: another thread runs the actor.
            return False
        self._scheduled = keeps
        return keeps

    def _wakes(self) -> Reader | None:
        """The actor, if it is to be scheduled now. Called with the lock held."""
        if self._closed or self._scheduled or self._actor is None or not self.open_to_prompts:
            return None
        self._scheduled = True
        return self._actor


def refuse(envelope: Any, error: BaseException | None = None) -> None:
    """Answer an envelope that will not be handled: with `error`, or that the actor is dead."""
    if envelope.reply_to is None:
        reject = getattr(envelope.message, "reject", None)
        if reject is not None:
            reject(error)
    elif isinstance(envelope.message, ActorStop):
        envelope.reply_to.set(None)
    else:
        error = error or ActorDeadError("the actor stopped before handling the message")
        envelope.reply_to.set_exception((type(error), error, None))
