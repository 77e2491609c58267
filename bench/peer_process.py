"""A peer in a process of its own: its own memory, and BLAS threads as its users have them."""

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["Act", "PeerFailed", "in_another_process", "in_its_own_process"]

Source = Callable[[], Any]
# What the peer does when it is asked.
Act = Callable[..., Any]
SECONDS_TO_END = 10


class PeerFailed(RuntimeError):
    """The peer raised, or its process ended; with its own traceback."""


def in_its_own_process(
    source: Source, make: Callable[..., Act], *arguments: Any
) -> AbstractContextManager[Act]:
    """`make(model, *arguments)` in a new process, with the model of `source`: what is given calls
    what it returned, there. All of it must be picklable."""
    return in_another_process(_with_model, source, make, *arguments)


@contextmanager
def in_another_process(make: Callable[..., Act], *arguments: Any) -> Iterator[Act]:
    """The same for `make(*arguments)`, without a model."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    there.close()

    def ask(*asked: Any) -> Any:
        try:
            here.send(asked)
            failed, found = here.recv()
        except (EOFError, OSError) as error:
            raise PeerFailed(f"the peer's process ended with {process.exitcode}") from error
        if failed:
            raise PeerFailed(found)
        return found

    try:
        ask(make, *arguments)
        yield ask
    finally:
        here.close()
        process.join(SECONDS_TO_END)
        process.kill()


def _serve(there: Connection) -> None:
    """The process: builds the peer, then answers until nobody asks any more."""
    # What OpenBLAS does if nobody says; kvactors sets another for itself.
    os.environ["OPENBLAS_THREAD_TIMEOUT"] = "26"
    act: Act = _build
    with suppress(EOFError, OSError):
        while True:
            asked = there.recv()
            try:
                found = act(*asked)
                if act is _build:
                    act, found = found, None
                there.send((False, found))
            except Exception:
                there.send((True, traceback.format_exc()))


def _build(make: Callable[..., Act], *arguments: Any) -> Act:
    return make(*arguments)


def _with_model(source: Source, make: Callable[..., Act], *arguments: Any) -> Act:
    from kvactors.core.model.load import load_model
    from kvactors.core.model.options import ModelOptions

    return make(load_model(source, ModelOptions()).model, *arguments)
