"""Ray's actors by their names."""

from concurrent.futures import Future
from threading import Thread
from typing import Any

import ray

__all__ = ["NAMESPACE", "look_up"]

NAMESPACE = "kvactors"
"""Of the named actors of a cluster: "directory", and the nodes by their names."""


def look_up(name: str) -> "Future[Any]":
    """The actor of that `name`, some day; a ValueError where there is none. By a thread that
    nobody waits for: where the head has ended Ray looks for ever, and so would this process."""
    found: Future[Any] = Future()
    found.set_running_or_notify_cancel()

    def look() -> None:
        try:
            found.set_result(ray.get_actor(name, namespace=NAMESPACE))
        except Exception as error:
            found.set_exception(error)

    Thread(target=look, name="kvactors-lookup", daemon=True).start()
    return found
