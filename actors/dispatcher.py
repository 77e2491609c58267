"""Many pykka actors on few threads.

A `Dispatcher` owns threads and a queue of actors that have messages; a `PooledActor` is on
that queue at most once, handles at most a batch of messages, then lets others go first. Its
mailbox has two lanes: the system lane is never full and goes first, the prompt lane is
bounded and can be shut while a turn runs. A stopped mailbox answers everything it still
holds, and everything that comes later, with ActorDeadError: nothing is left waiting.
"""

import logging
import sys
import threading
from collections import deque
from typing import Any

from pykka import Actor, ActorDeadError, ActorRef, ActorRegistry, messages

from kvactors.actors.futures import ReplyFuture, mark_pool_thread
from kvactors.core.errors import KvactorsError

__all__ = ["Dispatcher", "Mailbox", "MailboxFull", "PooledActor", "send"]

logger = logging.getLogger("kvactors")

BATCH = 32
PROMPT_LANE = 4096


class MailboxFull(KvactorsError):
    """The bounded prompt lane of an agent is full; wait for replies before asking more."""


class Dispatcher:
    """`threads` daemon threads that run whichever actor has messages, in order of arrival.

    Blocking on a future is refused on them.
    """

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self._ready: deque[PooledActor] = deque()
        self._wakeup = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def schedule(self, actor: "PooledActor") -> None:
        """Queue an actor that has messages and is not queued yet."""
        with self._wakeup:
            self._ready.append(actor)
            self._wakeup.notify()

    def close(self, timeout: float | None = None) -> None:
        """Let the threads end once the queue is empty, and wait for each `timeout` seconds."""
        with self._wakeup:
            self._closed = True
            self._wakeup.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout)

    def _work(self) -> None:
        mark_pool_thread()
        while True:
            with self._wakeup:
                while not self._ready:
                    if self._closed:
                        return
                    self._wakeup.wait()
                actor = self._ready.popleft()
            actor.run_batch()


class Mailbox:
    """Two lanes of envelopes; satisfies pykka's inbox protocol. Any thread may `put`.

    A message belongs to the prompt lane if it has a true `in_prompt_lane` attribute.
    """

    __slots__ = (
        "_actor",
        "_closed",
        "_lock",
        "_prompts",
        "_scheduled",
        "_system",
        "open_to_prompts",
    )

    def __init__(self) -> None:
        self._actor: PooledActor | None = None
        self._lock = threading.Lock()
        self._system: deque[Any] = deque()
        self._prompts: deque[Any] = deque()
        self._scheduled = False
        self._closed = False
        self.open_to_prompts = True

    def bind(self, actor: "PooledActor") -> None:
        """Start delivering to an actor; its start is the first thing it handles."""
        self._actor = actor
        with self._lock:
            self._scheduled = True
        actor.dispatcher.schedule(actor)

    def put(self, envelope: Any, /) -> None:
        """Accept a message, or answer it at once if the actor is dead. Raises MailboxFull."""
        wake = False
        with self._lock:
            closed = self._closed
            if not closed:
                prompt = getattr(envelope.message, "in_prompt_lane", False)
                if prompt and len(self._prompts) >= PROMPT_LANE:
                    raise MailboxFull(
                        f"{len(self._prompts)} prompts wait for this agent, the most allowed"
                    )
                (self._prompts if prompt else self._system).append(envelope)
                wake = self._actor is not None and not self._scheduled and self._deliverable()
                self._scheduled = self._scheduled or wake
        if closed:
            _answer_dead(envelope)
        elif wake and self._actor is not None:
            self._actor.dispatcher.schedule(self._actor)

    def get(self) -> Any:
        """The next deliverable envelope, or None and the actor is off the queue."""
        with self._lock:
            if self._system:
                return self._system.popleft()
            if self._prompts and self.open_to_prompts:
                return self._prompts.popleft()
            self._scheduled = False
            return None

    def yield_turn(self) -> bool:
        """After a full batch: whether to go to the end of the dispatcher's queue."""
        with self._lock:
            self._scheduled = self._deliverable()
            return self._scheduled

    def empty(self) -> bool:
        """Whether neither lane holds a message."""
        return not self._system and not self._prompts

    def close(self) -> list[Any]:
        """Accept nothing more; returns what was never handled."""
        with self._lock:
            self._closed = True
            rest = [*self._system, *self._prompts]
            self._system.clear()
            self._prompts.clear()
            return rest

    def _deliverable(self) -> bool:
        return bool(self._system or (self._prompts and self.open_to_prompts))


class PooledActor(Actor):
    """A pykka actor that shares the threads of a dispatcher. pykka's semantics otherwise.

    Subclasses set `dispatcher`, on the class or in `__init__`. `registered` False keeps it
    out of pykka's ActorRegistry, whose list makes a hundred thousand actors quadratic.
    """

    dispatcher: Dispatcher
    registered = True
    actor_inbox: Mailbox

    @classmethod
    def start(cls, *args: Any, **kwargs: Any) -> ActorRef[Any]:
        """Create the actor and let it run `on_start`; returns its reference."""
        return cls(*args, **kwargs).begin()

    def begin(self) -> ActorRef[Any]:
        """Start an actor that was constructed directly; returns its reference."""
        if self.registered:
            ActorRegistry.register(self.actor_ref)
        self._start_actor_loop()
        return self.actor_ref

    @staticmethod
    def _create_actor_inbox() -> Mailbox:
        return Mailbox()

    @staticmethod
    def _create_future() -> ReplyFuture[Any]:
        return ReplyFuture()

    def _start_actor_loop(self) -> None:
        self._started = False
        self.actor_inbox.bind(self)

    def run_batch(self) -> None:
        """Handle up to BATCH messages. Called by a dispatcher thread, never by two."""
        if not self._started:
            self._started = True
            self._guarded(self.on_start)
        for _ in range(BATCH):
            if self.actor_stopped.is_set():
                self._bury()
                return
            envelope = self.actor_inbox.get()
            if envelope is None:
                return
            self._handle(envelope)
        if self.actor_stopped.is_set():
            self._bury()
        elif self.actor_inbox.yield_turn():
            self.dispatcher.schedule(self)

    def _handle(self, envelope: Any) -> None:
        try:
            answer = self._handle_receive(envelope.message)
        except BaseException as error:
            if envelope.reply_to is not None:
                envelope.reply_to.set_exception()
            fatal = not isinstance(error, Exception)
            if fatal or envelope.reply_to is None:
                self._handle_failure(*sys.exc_info())
                info = sys.exc_info()
                self._guarded(lambda: self.on_failure(*info))
        else:
            if envelope.reply_to is not None:
                envelope.reply_to.set(answer)

    def _guarded(self, hook: Any) -> None:
        try:
            hook()
        except BaseException:
            self._handle_failure(*sys.exc_info())

    def _bury(self) -> None:
        for envelope in self.actor_inbox.close():
            _answer_dead(envelope)


def send(actor: Any, message: Any) -> bool:
    """Tell an actor that may be dead already; whether it was accepted."""
    try:
        actor.tell(message)
    except ActorDeadError:
        return False
    return True


def _answer_dead(envelope: Any) -> None:
    if envelope.reply_to is None:
        reject = getattr(envelope.message, "reject", None)
        if reject is not None:
            reject()
    elif isinstance(envelope.message, messages._ActorStop):
        envelope.reply_to.set(None)
    else:
        error = ActorDeadError("the actor stopped before handling the message")
        envelope.reply_to.set_exception((ActorDeadError, error, None))
