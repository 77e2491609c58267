"""Many pykka actors on few threads.

A `Dispatcher` owns threads and a queue of actors that have messages; a `PooledActor` is on
that queue at most once, handles at most a batch of messages, then lets others go first. Its
mailbox (`kvactors.actors.runtime.mailbox`) has a system lane and a bounded lane of prompts.
"""

import functools
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, ClassVar, Self, TypeVar

from pykka import Actor, ActorRef, ActorRegistry, Future

from kvactors.actors.runtime.blocking import check_may_block, mark_pool_thread
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.runtime.mailbox import ActorStop, Envelope, Mailbox, Runnable

__all__ = ["Dispatcher", "PooledActor", "SystemActor", "handles", "offer", "send", "send_stop"]

A = TypeVar("A")
M = TypeVar("M")
R = TypeVar("R")

BATCH = 32

# What pykka logs of its actors, ours log as well, where its users look for it.
logger = logging.getLogger("pykka")


class Dispatcher:
    """`threads` daemon threads, called after `name`, that run whichever actor has messages, in
    order of arrival, each for at most `batch` messages.

    Blocking on a future is refused on them unless `blocking`.
    """

    batch = BATCH

    def __init__(self, name: str, threads: int, *, blocking: bool = False) -> None:
        self.name = name
        self._blocking = blocking
        # None asks the threads to end, one after the other.
        self._ready: SimpleQueue[Runnable | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def idents(self) -> tuple[int, ...]:
        """Which threads they are, as `threading` counts them."""
        return tuple(thread.ident for thread in self._threads if thread.ident is not None)

    def schedule(self, actor: Runnable) -> None:
        """Queue an actor that has messages and is not queued yet. Any thread."""
        self._ready.put(actor)

    def close(self, timeout: float | None = None) -> None:
        """Let the threads end once the queue is empty, and wait for each `timeout` seconds."""
        self._ready.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout)

    def _work(self) -> None:
        mark_pool_thread(shared=not self._blocking)
        while True:
            actor = self._ready.get()
            if actor is not None:
                actor.run_batch()
            else:
                ended = self._ready.empty()
                self._ready.put(None)
                if ended:
                    return
            # Or the last actor to run would live until another one does.
            del actor


class StopFlag(threading.Event):
    """An event of 100 bytes instead of 1,100, until somebody waits for it."""

    __slots__ = ("_event", "_is_set")
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._is_set = False
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Set it, for good."""
        with self._lock:
            self._is_set = True
            event = self._event
        if event is not None:
            event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, `timeout` seconds at most; whether it is."""
        with self._lock:
            if self._is_set:
                return True
            event = self._event = self._event or threading.Event()
        return event.wait(timeout)


class PooledActor(Actor):
    """A pykka actor that shares the threads of a dispatcher, with pykka's semantics.

    Subclasses set `dispatcher`, on the class or in `__init__`. What differs from pykka's
    ThreadingActor: a blocking `get` on one of these threads raises BlockingCall, and no ask
    that races the actor's stop is left without an answer.
    """

    dispatcher: Dispatcher
    actor_inbox: Mailbox
    _started = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.actor_stopped = self.actor_ref.actor_stopped = StopFlag()

    @classmethod
    def start(cls, *args: Any, **kwargs: Any) -> "ActorRef[Self]":
        """Create the actor and let it run `on_start`; returns its reference."""
        return cls(*args, **kwargs).begin()

    def begin(self) -> "ActorRef[Self]":
        """Start an actor that was constructed directly; returns its reference."""
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
        self.actor_inbox.bind(self)

    def run_batch(self) -> None:
        """Handle up to BATCH messages. Called by a dispatcher thread, never by two."""
        if not self._started:
            self._started = True
            self._guarded(self.on_start)
        inbox, stopped = self.actor_inbox, self.actor_stopped.is_set
        for _ in range(self.dispatcher.batch):
            if stopped():
                inbox.close()
                return
            envelope = inbox.get()
            if envelope is None:
                return
            self._handle(envelope)
        if stopped():
            inbox.close()
        elif inbox.yield_turn():
            self.dispatcher.schedule(self)

    def _handle(self, envelope: Any) -> None:
        reply_to = envelope.reply_to
        try:
            answer = self._handle_receive(envelope.message)
        except BaseException as error:
            if reply_to is not None:
                if isinstance(error, Exception):
                    logger.info("Exception returned from %s to caller:", self, exc_info=error)
                reply_to.reject(error)
            if not isinstance(error, Exception):
                self._broke()
            elif reply_to is None:
                self._failed()
        else:
            if reply_to is not None:
                self._answer(reply_to, answer)

    def _answer(self, reply_to: Any, answer: Any) -> None:
        reply_to.resolve(answer)

    def _failed(self) -> None:
        """An exception that nobody asked for: this actor ends."""
        info = sys.exc_info()
        self._handle_failure(*info)
        self._guarded(lambda: self.on_failure(*info))

    def _broke(self) -> None:
        """SystemExit and the like: as in pykka, all registered actors end."""
        logger.debug("%r in %s. Stopping all actors.", sys.exc_info()[1], self)
        self._stop()
        ActorRegistry.stop_all(block=False)

    def _guarded(self, hook: Any) -> None:
        try:
            hook()
        except BaseException:
            self._handle_failure(*sys.exc_info())


def handles(kind: type[M]) -> Callable[[Callable[[A, M], R]], Callable[[A, M], R]]:
    """Mark the method of a SystemActor that takes the messages of one type."""

    def mark(method: Callable[[A, M], R]) -> Callable[[A, M], R]:
        method.handles = kind  # type: ignore[attr-defined]
        return method

    return mark


class SystemActor(PooledActor):
    """An actor of an AgentSystem: without proxies, and not in pykka's ActorRegistry, whose list
    makes a hundred thousand actors quadratic. Whatever it raises ends it alone, and an answer
    that is a future reaches the asker as that future's value.

    A message goes to the method that is marked with its type by `handles`.
    """

    _handlers: ClassVar[Mapping[type, Callable[[Any, Any], Any]]] = {}

    def __init_subclass__(cls) -> None:
        marked = {m.handles: m for m in vars(cls).values() if hasattr(m, "handles")}
        cls._handlers = {**cls._handlers, **marked}

    def on_receive(self, message: Any) -> Any:
        """Give a message to whoever handles its type; one of no known type is logged."""
        handle = self._handlers.get(type(message))
        return super().on_receive(message) if handle is None else handle(self, message)

    def begin(self) -> "ActorRef[Self]":
        """Start an actor that was constructed directly; returns its reference."""
        self._start_actor_loop()
        return self.actor_ref

    def _handle_receive(self, message: Any) -> Any:
        # Without proxies; one look instead of four for each message.
        if type(message) is ActorStop:
            return self._stop()
        return self.on_receive(message)

    def _stop(self) -> None:
        self.actor_stopped.set()
        self._guarded(self.on_stop)

    def _broke(self) -> None:
        self._failed()

    def _answer(self, reply_to: Any, answer: Any) -> None:
        if isinstance(answer, ReplyFuture):
            answer.on_done(reply_to.follow)
        elif isinstance(answer, Future):
            reply_to.set_get_hook(functools.partial(_get_foreign, answer))
        else:
            reply_to.resolve(answer)


def _get_foreign(future: Future[Any], timeout: float | None) -> Any:
    """The value of a future that cannot tell whether it is done."""
    check_may_block()
    return future.get(timeout=timeout)


def send(actor: Any, message: Any, within: float | None = None) -> bool:
    """Tell an `actor` that may be dead already a `message`; whether it was accepted. Raises
    MailboxFull, after `within` seconds at the latest."""
    if actor.actor_stopped.is_set():
        return False
    actor.actor_inbox.put(Envelope(message), within)
    return True


def send_stop(actor: Any) -> bool:
    """Tell an actor to end, as its `stop` does but without a future; whether it still ran."""
    return send(actor, ActorStop())


def offer(actor: PooledActor, message: Any) -> ReplyFuture[None] | None:
    """Put a message into an actor's bounded lane, as `Mailbox.offer` does. Raises MailboxFull."""
    return actor.actor_inbox.offer(Envelope(message))
