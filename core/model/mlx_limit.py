"""MLX's own limit of memory, which is the process's: that of the engines that run in it.

MLX builds ahead of what it computes, on a busy machine far ahead, and what is built holds memory.
At its limit it waits for what runs before it builds more.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import mlx.core as mx

__all__ = ["allow", "allowances", "reached", "relieve_cache", "withdraw"]

# Freed buffers that MLX may keep for reuse after a prefill chunk, in bytes.
CACHE_KEPT = 256 * 2**20

_lock = threading.Lock()
_allowed: WeakKeyDictionary[object, int] = WeakKeyDictionary()
_usual: list[int] = []
"""The limit while no engine runs, once it was changed."""


@contextmanager
def reached() -> Iterator[None]:
    """As if the process were at its limit: MLX builds no further ahead than it computes, so that
    a peak does not depend on the machine's load. Other engines wait to begin or end. Any thread."""
    with _lock:
        before = mx.set_memory_limit(1)
        try:
            yield
        finally:
            mx.set_memory_limit(before)


def allow(engine: object, nbytes: int) -> None:
    """Let the process have so many bytes while this engine runs; with several, what the one that
    needs most asks for. Any thread."""
    with _lock:
        _allowed[engine] = nbytes
        before = mx.set_memory_limit(max(_allowed.values()))
        if not _usual:
            _usual.append(before)


def allowances() -> dict[object, int]:
    """The engines that run, and what each asks for. Any thread."""
    with _lock:
        return dict(_allowed)


def withdraw(engine: object) -> None:
    """The engine has ended. Without one the limit is what it was. Any thread."""
    with _lock:
        _allowed.pop(engine, None)
        if _allowed:
            mx.set_memory_limit(max(_allowed.values()))
        elif _usual:
            mx.set_memory_limit(_usual.pop())


def relieve_cache() -> None:
    """Give freed buffers back to the system when many have piled up. GPU thread."""
    if mx.get_cache_memory() > CACHE_KEPT:
        mx.clear_cache()
