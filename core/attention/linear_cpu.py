"""The linear seam: few rows times a model's float weights, on a CPU.

OpenBLAS has a kernel for products of up to a million multiplications that reads a matrix where it
stands. For a larger product it packs the matrix first, on every core: with few rows that takes
longer than the product, and the cores from whoever launches the next step. So few rows are
multiplied with parts of the weights, each small enough (bench/LOG.md).

`install()` replaces the calls of `nn.Linear` and of an embedding as output layer; outside of
`in_parts` they pass through unchanged. What a model compiles itself (`mx.compile`) stays as it was
traced first, whole or in parts. GPU thread only.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

import mlx.core as mx
import mlx.nn as nn

__all__ = [
    "LEAST_WIDTH",
    "SMALL_PRODUCT",
    "in_parts",
    "install",
    "multiply_parts",
    "parts_of",
    "watch_parts",
]

# Multiplications of the largest product for which OpenBLAS packs nothing (x86 with AVX-512).
SMALL_PRODUCT = 1_000_000
# Beyond so many rows, below so many numbers in each and with narrower parts it does not pay.
_MOST_ROWS = 8
_LEAST_INNER = 256
LEAST_WIDTH = 8

_wanted: ContextVar[bool] = ContextVar("kvactors_in_parts", default=False)
_taken: list[tuple[int, int]] | None = None


@contextmanager
def in_parts(*, wanted: bool) -> Iterator[None]:
    """Within, few rows are multiplied with parts of a weight, if wanted."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


@contextmanager
def watch_parts() -> Iterator[list[tuple[int, int]]]:
    """(rows, parts) of each product that is taken in parts meanwhile, by any thread."""
    global _taken
    taken: list[tuple[int, int]] = []
    _taken = taken
    try:
        yield taken
    finally:
        _taken = None


def install() -> None:
    """Put the seam in front of the layers that multiply rows with float weights. Idempotent."""
    for owner, name in ((nn.Linear, "__call__"), (nn.Embedding, "as_linear")):
        original = getattr(owner, name)
        if not hasattr(original, "kvactors_original"):
            setattr(owner, name, _make_seam(original, biased=owner is nn.Linear))


def _make_seam(original: Callable[[Any, mx.array], mx.array], *, biased: bool) -> Any:
    @wraps(original)
    def product(self: Any, x: mx.array) -> mx.array:
        if not _wanted.get():
            return original(self, x)
        weight = self.weight
        parts = parts_of(x, weight)
        if parts == 1:
            return original(self, x)
        if _taken is not None:
            _taken.append((x.size // x.shape[-1], parts))
        out = multiply_parts(x, weight, parts)
        return out + self.bias if biased and "bias" in self else out

    product.kvactors_original = original  # type: ignore[attr-defined]
    return product


def multiply_parts(rows: mx.array, weight: mx.array, parts: int) -> mx.array:
    """`rows` [..., inner] times `weight` [outer, inner] in so many equal `parts`: [..., outer]."""
    outer, inner = weight.shape
    split = weight.reshape(parts, -1, inner).swapaxes(-1, -2)
    products = rows.reshape(1, -1, inner) @ split
    return products.swapaxes(0, 1).reshape(*rows.shape[:-1], outer)


def parts_of(rows: mx.array, weight: mx.array) -> int:
    """In how many parts rows [..., inner] are multiplied with weights [outer, inner]: 1, the whole,
    where more would gain nothing."""
    floats = rows.dtype == weight.dtype == mx.float32
    if not floats or weight.ndim != 2 or rows.shape[-1:] != weight.shape[1:]:
        return 1
    outer, inner = weight.shape
    if inner < _LEAST_INNER or rows.size > _MOST_ROWS * inner:
        return 1
    return _parts(rows.size, outer)


@cache
def _parts(each: int, outer: int) -> int:
    """Into how many equal parts `outer` columns that cost `each` multiplications are split; 1 if
    they need not be, or cannot."""
    least, most = -(-each * outer // SMALL_PRODUCT), outer // LEAST_WIDTH
    return next((parts for parts in range(max(1, least), most + 1) if outer % parts == 0), 1)
