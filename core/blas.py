"""What MLX's Linux CPU build needs of the process. Imports no MLX.

OpenBLAS: it links the reference BLAS otherwise. Loading it first, with its symbols global, makes
float32 products about 50 times faster (4 against 200 GFLOP/s on two cores, facts of this project).
Its threads are told to sleep soon when there is no product for them: they would take half of the
processors from whatever else a step does.

Memory that was freed and is still there: arrays a little larger than any before, such as the
keys of a prompt that grows, are fresh pages otherwise, which cost more than the work on them.
"""

import ctypes
import functools
import logging
import os
import sys
from pathlib import Path

__all__ = ["advise", "preload"]

logger = logging.getLogger(__name__)

_NAMES = ("libopenblas.so.0", "libopenblas.so")
_MMAP_SETTING = "MALLOC_MMAP_THRESHOLD_"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_loaded: bool | None = None
_too_late = False


def preload() -> bool:
    """Load OpenBLAS if it is installed; must run before `mlx.core` is imported.

    Returns whether MLX will find a fast BLAS. Elsewhere than on Linux there is nothing to
    do: macOS has Accelerate.
    """
    global _loaded, _too_late
    if sys.platform != "linux":
        return True
    if _loaded is None:
        _too_late = "mlx.core" in sys.modules and not _is_loaded()
        _keep_freed_memory()
        # Processor cycles, as a power of two: 26 if nobody says. The library reads it when loaded.
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")
        _loaded = any(_load(name) for name in _NAMES)
    return _loaded


@functools.cache
def advise() -> None:
    """Say once in a process what to do, if the CPU will be slow without it."""
    if preload() and _too_late:
        logger.warning(
            "MLX was imported before OpenBLAS was loaded: import AgentSystem from kvactors before "
            "mlx, or kvactors.core.blas and call its preload(), for prefill about 50 times faster "
            "on a CPU"
        )
    if not preload():
        logger.warning(
            "OpenBLAS is not installed: install it (Debian: apt install libopenblas0-pthread) "
            "for prefill about 50 times faster on this CPU"
        )


def _keep_freed_memory() -> None:
    """Let glibc keep arrays of up to 32 MB when they are freed, as it would by and by."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and _MMAP_SETTING not in os.environ:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)


def _is_loaded() -> bool:
    """Whether the process has one of the libraries already."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(f"/{stem}" in maps for stem in ("libopenblas.so", "libopenblasp"))


def _load(name: str) -> bool:
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
