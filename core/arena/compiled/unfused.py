"""MLX compiles without fusion: what is replayed is what an eager step runs, to the last bit.

Fused, a step would be another one in its last bits on some devices, and on a CPU it would wait for
a C++ compiler, seconds for each kernel. MLX has a mode without, and no name for it in Python: so
its library's own is called. GPU thread only.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import mlx
import mlx.core as mx

__all__ = ["replays", "unfused"]

_SYMBOL = "_ZN3mlx4core16set_compile_modeENS0_11CompileModeE"
_NO_FUSE, _ENABLED = 2, 3


def replays() -> bool:
    """Whether MLX compiles here and now: it does not with `MLX_DISABLE_COMPILE`, on a CPU without a
    C++ compiler, and where it cannot be told not to fuse."""
    calls: list[mx.array] = []

    def step(x: mx.array) -> mx.array:
        calls.append(x)
        return x + 1

    compiled: Callable[[mx.array], mx.array] = mx.compile(step)
    for _ in range(2):
        compiled(mx.array(1))
    return len(calls) == 1 and _set_mode() is not None


@contextmanager
def unfused() -> Iterator[None]:
    """Within, what is traced is not fused. Only where it `replays`."""
    set_mode = _set_mode()
    assert set_mode is not None, "MLX cannot be told not to fuse"
    set_mode(_NO_FUSE)
    try:
        yield
    finally:
        set_mode(_ENABLED)


@cache
def _set_mode() -> Callable[[int], None] | None:
    folders = [Path(folder, "lib") for folder in mlx.__path__]
    for library in (path for folder in folders for path in folder.glob("libmlx.*")):
        try:
            found: Any = getattr(ctypes.CDLL(str(library)), _SYMBOL)
        except (OSError, AttributeError):
            continue
        found.argtypes, found.restype = [ctypes.c_int], None
        return found  # type: ignore[no-any-return]
    return None
