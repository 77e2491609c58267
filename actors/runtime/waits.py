"""Who waits for whose answer: what can never end is refused, and what takes long can be seen.

A waits for the answer to a message that B handles, B for one that waits in A's mailbox:

    a -> answer of b -> b handles it, and waits -> answer of a -> a is busy: it waits -> ...

Whoever handles messages one at a time is one waiter, named by itself; who handles several at once
is a waiter for each message. Which of them runs on a thread, that thread knows: whatever answer it
awaits there is its wait; of several at once, the last. What runs on a thread of `run_blocking` is a
waiter, too, and whoever awaits its result waits for it; threads of one's own are nobody's. The wait
that would close such a circle raises AskCycle. Any thread.
"""

import threading
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.core.errors import AskCycle

__all__ = ["Answer", "Waiter", "Waits", "ask_cycle", "run_as"]

T = TypeVar("T")


class Waiter(NamedTuple):
    """Who waits: an agent of this `name`, in a `place` of its own among `waits`."""

    waits: "Waits"
    name: str
    place: Hashable


class ThisThread(threading.local):
    """Who runs on it: None where no behaviour does."""

    waiter: Waiter | None = None


_this_thread = ThisThread()


def run_as(waiter: Waiter, call: Callable[[], T]) -> T:
    """What `call` gives: whatever answer it awaits on this thread, `waiter` waits for it."""
    before, _this_thread.waiter = _this_thread.waiter, waiter
    try:
        return call()
    finally:
        _this_thread.waiter = before


class Answer(ReplyFuture[Any]):
    """What `receiver` is to answer. `waits` is told while a behaviour waits for it; `seconds`: its
    time limit, if it has one.

    `message` is what is to be answered, once it is sent; `source` another future that this one
    will settle as, if there is one. `ticket` names it to other systems, where it goes to one.
    Without a receiver it is what a call on another thread will give, and that call's place.
    """

    def __init__(self, waits: "Waits", receiver: str, seconds: float | None) -> None:
        super().__init__()
        self.receiver = receiver
        self.seconds = seconds
        self.message: Any = None
        self.source: ReplyFuture[Any] | None = None
        self.ticket = ""
        self._waits = waits
        self._wanted = 0

    def want(self) -> None:
        """Somebody more, in a behaviour, waits for it or answers with it."""
        with self._lock:
            self._wanted += 1

    def let_go(self) -> bool:
        """One of these does no more; whether it was the last one."""
        with self._lock:
            self._wanted -= 1
            return self._wanted <= 0

    def get(self, *, timeout: float | None = None) -> Any:
        """The value, or its error raised; pykka.Timeout after `timeout` seconds."""
        self.want()
        try:
            with self._waited_for(forever=timeout is None):
                return super().get(timeout=timeout)
        finally:
            self.let_go()

    def __await__(self) -> Generator[Any, Any, Any]:
        with self._waited_for():
            return (yield from super().__await__())

    def _waited_for(self, *, forever: bool = True) -> AbstractContextManager[None]:
        """Who runs on this thread waits for it meanwhile, if that is of the same system."""
        waiter = _this_thread.waiter
        if self.done or waiter is None or waiter.waits is not self._waits:
            return nullcontext()
        return self._waits.waiting(waiter, self, forever=forever)


@dataclass(slots=True, eq=False)
class Wait:
    """Somebody of this name waits for an answer since that moment."""

    name: str
    answer: Answer
    forever: bool
    since: float
    told: bool = False


class Waits:
    """All of one system's. `now` is its clock, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, Wait] = {}

    @contextmanager
    def waiting(self, waiter: Waiter, answer: Answer, *, forever: bool = True) -> Iterator[None]:
        """`waiter` waits for an `answer` meanwhile, `forever` if the answer has no limit either.
        Raises AskCycle instead of waiting for itself."""
        wait = Wait(waiter.name, answer, forever and answer.seconds is None, self._now())
        with self._lock:
            self._waiting[waiter.place] = wait
            circle = self._circle(answer)
            if circle:
                del self._waiting[waiter.place]
        if circle:
            error = ask_cycle(circle)
            answer.reject(error)
            raise error
        try:
            yield
        finally:
            with self._lock:
                if self._waiting.get(waiter.place) is wait:
                    del self._waiting[waiter.place]

    def follow(self, answer: ReplyFuture[Any], source: ReplyFuture[Any]) -> None:
        """Let an answer settle as another future does, or fail if that waits for it."""
        circle: list[str] = []
        if isinstance(source, Answer):
            source.want()
        if isinstance(answer, Answer):
            with self._lock:
                answer.source = source
                circle = self._circle(answer)
        if circle:
            answer.reject(ask_cycle(circle))
        if answer.done and isinstance(source, Answer):
            source.let_go()
        source.on_done(answer.follow)

    def endless(self, seconds: float) -> list[Answer]:
        """Those for which somebody has waited so long, without a limit."""
        with self._lock:
            return [wait.answer for wait in self._long(seconds) if wait.forever]

    def path(self, answer: Answer) -> list[Answer]:
        """What an answer depends on in this system, one after the other, itself first."""
        with self._lock:
            return list(self._follow(answer)[0])

    def longer_than(self, seconds: float) -> tuple[str, ...]:
        """The waits that have taken so long, in words."""
        with self._lock:
            return tuple(self._words(wait) for wait in self._long(seconds))

    def news(self, seconds: float) -> list[str]:
        """Those that this has not told before."""
        with self._lock:
            found = [wait for wait in self._long(seconds) if not wait.told]
            for wait in found:
                wait.told = True
            return [self._words(wait) for wait in found]

    def _long(self, seconds: float) -> list[Wait]:
        now = self._now()
        waits = (wait for wait in self._waiting.values() if wait.answer.receiver)
        return [wait for wait in waits if now - wait.since > seconds]

    def _words(self, wait: Wait) -> str:
        seconds, receiver = self._now() - wait.since, wait.answer.receiver
        return f"{wait.name!r} has waited {seconds:.0f} s for the answer of {receiver!r}"

    def _circle(self, answer: ReplyFuture[Any]) -> list[str]:
        """Who is to answer what an answer depends on, if that is itself. With the lock held."""
        passed, closed = self._follow(answer)
        return [one.receiver for one in passed if one.receiver] if closed else []

    def _follow(self, answer: ReplyFuture[Any]) -> tuple[dict[Answer, None], bool]:
        """What it depends on, in order, and whether that comes back. With the lock held."""
        passed: dict[Answer, None] = {}
        while isinstance(answer, Answer) and not answer.done:
            if answer in passed:
                return passed, True
            passed[answer] = None
            if answer.source is not None:
                answer = answer.source
                continue
            place = answer.message or answer
            wait = self._waiting.get(place) or self._waiting.get(answer.receiver)
            if wait is None or not wait.forever:
                break
            answer = wait.answer
        return passed, False


def ask_cycle(names: list[str]) -> AskCycle:
    """The error of those of these `names`, of which each waits for the next, and the last for the
    first."""
    circle = " -> ".join(repr(name) for name in (*names, names[0]))
    return AskCycle(
        f"these would wait for each other's answers for ever: {circle}; use send, or a timeout"
    )
