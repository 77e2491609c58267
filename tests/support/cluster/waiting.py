"""Waiting for what other processes do."""

import time
from collections.abc import Callable

__all__ = ["PATIENCE", "eventually"]

PATIENCE = 240.0


def eventually(what: Callable[[], object]) -> None:
    """Wait until something is so."""
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until, "it never was"
        time.sleep(0.1)
