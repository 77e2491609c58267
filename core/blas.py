"""OpenBLAS for MLX's Linux CPU build, which links the reference BLAS otherwise.

Loading it first, with its symbols global, makes float32 products about 50 times faster
(4 against 200 GFLOP/s on two cores, facts of this project). Imports no MLX.
"""

import ctypes
import functools
import logging
import sys

__all__ = ["advise", "preload"]

logger = logging.getLogger(__name__)

_NAMES = ("libopenblas.so.0", "libopenblas.so")
_loaded: bool | None = None


def preload() -> bool:
    """Load OpenBLAS if it is installed; must run before `mlx.core` is imported.

    Returns whether MLX will find a fast BLAS. Elsewhere than on Linux there is nothing to
    do: macOS has Accelerate.
    """
    global _loaded
    if _loaded is None:
        _loaded = sys.platform != "linux" or any(_load(name) for name in _NAMES)
    return _loaded


@functools.cache
def advise() -> None:
    """Say once in a process what to install, if the CPU will be slow without it."""
    if not preload():
        logger.warning(
            "OpenBLAS is not installed: install it (Debian: apt install libopenblas0-pthread) "
            "for prefill about 50 times faster on this CPU"
        )


def _load(name: str) -> bool:
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
