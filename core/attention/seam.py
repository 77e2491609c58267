"""The seam in front of mlx-lm's attention.

mlx-lm's models call `scaled_dot_product_attention` by a name in their own module.
`install()` replaces that name everywhere; calls with other caches pass through unchanged.
GPU thread.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

__all__ = ["Call", "install", "watch_calls"]

_NAME = "scaled_dot_product_attention"

Call = tuple[Any, Any, Any]
"""Keys, values and mask that a model gave to its attention."""

_calls: list[Call] | None = None


@contextmanager
def watch_calls() -> Iterator[list[Call]]:
    """What models give to attention meanwhile, over caches that are not ours."""
    global _calls
    calls: list[Call] = []
    _calls = calls
    try:
        yield calls
    finally:
        _calls = None


def install() -> None:
    """Put the seam in front of every mlx-lm model's attention. Idempotent.

    Models loaded earlier, a user's own included, hold the name in their module and are
    patched there; models imported later take it from `mlx_lm.models.base`.
    """
    base = importlib.import_module("mlx_lm.models.base")
    original = getattr(base, _NAME)
    if getattr(original, "kvactors_original", None) is None:
        seam = _make_seam(original)
        setattr(base, _NAME, seam)
    else:
        seam, original = original, original.kvactors_original
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(_NAME) is original:
            setattr(module, _NAME, seam)


def _make_seam(original: Any) -> Any:
    # As mlx-lm's own, whose models give cache and scale by position, but never sinks.
    def scaled_dot_product_attention(
        queries: mx.array,
        keys: Any,
        values: Any,
        cache: Any,
        scale: float,
        mask: Any,
        *,
        sinks: mx.array | None = None,
    ) -> mx.array:
        attended: mx.array
        if hasattr(keys, "attend"):
            attended = keys.attend(queries, mask, scale=scale, sinks=sinks)
        else:
            # Float arrays of a cache of ours must not be taken for mlx-lm's quantized ones.
            plain = None if hasattr(cache, "attend") else cache
            if _calls is not None:
                _calls.append((keys, values, mask))
            attended = original(queries, keys, values, plain, scale=scale, mask=mask, sinks=sinks)
        return attended

    scaled_dot_product_attention.kvactors_original = original  # type: ignore[attr-defined]
    return scaled_dot_product_attention
