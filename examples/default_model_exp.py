"""The operations built on exp, through NumPy: on x86 MLX's own take 20 ns a value.

NumPy's exp is vectorised and releases the GIL, so two threads share each array. Training
is about three times faster with these; the results differ from MLX's by rounding only.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

__all__ = ["cross_entropy", "silu", "softmax"]

Array = NDArray[np.float32]

_THREADS = 2
_pool = ThreadPoolExecutor(_THREADS)


def _softmax_rows(scores: Array, out: Array) -> None:
    """Softmax over the last axis, a few rows at a time so that they stay in the cache."""
    step = max(1, 65536 // scores.shape[-1])
    for start in range(0, len(scores), step):
        part = out[start : start + step]
        np.subtract(
            scores[start : start + step],
            scores[start : start + step].max(axis=-1, keepdims=True),
            out=part,
        )
        np.exp(part, out=part)
        part /= part.sum(axis=-1, keepdims=True)


def _sigmoid_rows(x: Array, out: Array) -> None:
    for start in range(0, len(x), 128):
        part = out[start : start + 128]
        np.negative(x[start : start + 128], out=part)
        # exp stays finite in float32 up to 88.
        np.minimum(part, 80.0, out=part)
        np.exp(part, out=part)
        part += 1.0
        np.reciprocal(part, out=part)


def _by_rows(work: Callable[[Array, Array], None], x: mx.array) -> mx.array:
    """`work` on the rows of x, a share in each thread."""
    flat = np.array(x, copy=False).reshape(-1, x.shape[-1])
    out = np.empty_like(flat)
    shares = zip(np.array_split(flat, _THREADS), np.array_split(out, _THREADS), strict=True)
    for job in [_pool.submit(work, rows, part) for rows, part in shares]:
        job.result()
    return mx.array(out.reshape(x.shape))


@mx.custom_function
def _softmax(scores: mx.array) -> mx.array:
    return _by_rows(_softmax_rows, scores)


@_softmax.vjp
def _softmax_vjp(scores: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    product = cotangent * output
    return product - output * product.sum(axis=-1, keepdims=True)


@mx.custom_function
def _silu(x: mx.array) -> mx.array:
    return x * _by_rows(_sigmoid_rows, x)


@_silu.vjp
def _silu_vjp(x: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    gate = _by_rows(_sigmoid_rows, x)
    return cotangent * (gate + output * (1 - gate))


@mx.custom_function
def _cross_entropy(logits: mx.array, targets: mx.array) -> mx.array:
    chosen = mx.take_along_axis(_by_rows(_softmax_rows, logits), targets[:, None], axis=-1)[:, 0]
    return -mx.log(mx.maximum(chosen, 1e-30))


@_cross_entropy.vjp
def _cross_entropy_vjp(
    primals: tuple[mx.array, mx.array], cotangent: mx.array, output: mx.array
) -> tuple[mx.array, mx.array]:
    logits, targets = primals
    one_hot = mx.arange(logits.shape[-1]) == targets[:, None]
    gradient = (_by_rows(_softmax_rows, logits) - one_hot) * cotangent[:, None]
    return gradient, mx.zeros_like(targets)


def softmax(scores: mx.array) -> mx.array:
    """Softmax over the last axis."""
    return cast(mx.array, _softmax(scores))


def silu(x: mx.array) -> mx.array:
    """x times its sigmoid."""
    return cast(mx.array, _silu(x))


def cross_entropy(logits: mx.array, targets: mx.array) -> mx.array:
    """Loss of each row of logits."""
    return cast(mx.array, _cross_entropy(logits, targets))
