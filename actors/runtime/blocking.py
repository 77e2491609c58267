"""Which threads may wait: those that run actors may not, as they may be the ones that are awaited;
and worlds that go on only while somebody does. Any thread."""

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from kvactors.core.errors import BlockingCall

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "HEARS",
    "Driver",
    "add_driver",
    "check_may_block",
    "check_outside_of_actors",
    "drive",
    "lend_thread",
    "mark_pool_thread",
    "must_not_wait",
    "remove_driver",
    "resting",
    "running_loop",
    "runs_actors",
    "wait_on",
    "waiting",
]

# Seconds. Python hears of no signal that comes just as its main thread lies down to wait.
HEARS = 1.0

_thread = threading.local()


def mark_pool_thread(*, shared: bool) -> None:
    """Declare the calling thread one that runs actors; `shared`: more than one of them."""
    _thread.runs_actors, _thread.shared = True, shared


class Lender(Protocol):
    """Whoever lets few threads run at once, those that wait aside."""

    def rests(self) -> None:
        """The calling thread begins to wait."""

    def goes_on(self) -> None:
        """It waits no more."""


def lend_thread(lender: Lender) -> None:
    """Declare the calling thread one of a `lender`'s."""
    _thread.lender = lender


@contextmanager
def resting() -> Iterator[None]:
    """Within, the calling thread waits: whoever lent it may begin another."""
    lender: Lender | None = getattr(_thread, "lender", None)
    if lender is None:
        yield
        return
    lender.rests()
    try:
        yield
    finally:
        lender.goes_on()


@contextmanager
def waiting(*, may: bool) -> Iterator[None]:
    """Within, the calling thread `may` wait, or may not, whatever it is else."""
    before = _on_pool_thread()
    _thread.shared = not may
    try:
        yield
    finally:
        _thread.shared = before


def runs_actors() -> bool:
    """Whether the calling thread runs actors, and callbacks of what they settle."""
    return getattr(_thread, "runs_actors", False)


def check_outside_of_actors() -> None:
    """Raise BlockingCall on any thread that runs actors: what it runs would wait for itself."""
    if runs_actors():
        raise BlockingCall("waiting for everything to end, inside of what must end, never ends")


def _on_pool_thread() -> bool:
    return getattr(_thread, "shared", False)


class Driver(Protocol):
    """What makes a world go on that waits for its user
    (`kvactors.actors.runtime.deterministic`)."""

    def drive(self, until: Callable[[], bool], timeout: float | None) -> None:
        """Go on until something is so, at most `timeout` seconds."""


_drivers: list[Driver] = []


def add_driver(driver: Driver) -> None:
    """Drive this world too whenever somebody waits."""
    _drivers.append(driver)


def remove_driver(driver: Driver) -> None:
    """Drive it no more."""
    if driver in _drivers:
        _drivers.remove(driver)


def drive(until: Callable[[], bool], timeout: float | None = None) -> None:
    """Before a thread waits for something: let worlds that need it go on until it is so."""
    for driver in _drivers:
        if not until():
            driver.drive(until, timeout)


def wait_on(event: threading.Event, timeout: float | None = None) -> bool:
    """Wait until an `event` is set, `timeout` seconds at most; whether it is. Ctrl-C ends it, at
    whatever moment it comes."""
    if threading.current_thread() is not threading.main_thread():
        return event.wait(timeout)
    left = math.inf if timeout is None else timeout
    while left > HEARS:
        if event.wait(HEARS):
            return True
        left -= HEARS
    return event.wait(left)


def must_not_wait() -> bool:
    """Whether waiting on this thread would hold up others: it runs actors, or asyncio."""
    return _on_pool_thread() or running_loop() is not None


def check_may_block() -> None:
    """Raise BlockingCall on a thread that runs actors: it may be the one that is awaited."""
    if _on_pool_thread():
        raise BlockingCall(
            "a blocking call inside an actor or a callback would stop other agents on this "
            "thread: await the future in an `async def on_message`, or send a message (tell) "
            "and handle the answer when it arrives"
        )


def running_loop() -> "asyncio.AbstractEventLoop | None":
    """The asyncio loop of this thread. Importing asyncio takes a tenth of a second: a program
    that has not done it runs no loop."""
    module = sys.modules.get("asyncio")
    if module is None:
        return None
    try:
        loop: asyncio.AbstractEventLoop = module.get_running_loop()
    except RuntimeError:
        return None
    return loop
