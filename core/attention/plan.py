"""How one call of attention is to be computed. GPU thread."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from kvactors.core.attention.policy import AttentionPath
from kvactors.core.quant.codec import PRECISION
from kvactors.core.quant.device import second_stream

__all__ = ["AttendPlan", "Mask", "causal_mask"]

Mask = mx.array | Literal["causal"] | None
"""What queries see: all keys, all up to their own place at the end of them, or what is true."""


@dataclass(frozen=True, slots=True)
class AttendPlan:
    """What `attend` follows beside queries, keys and values."""

    path: AttentionPath
    scale: float
    mask: Mask = None
    """Boolean [n, 1, T, extent], true where a query sees a key; or as AttendSpec says."""
    sinks: mx.array | None = None
    """[heads]: scores that take weight and have no value."""
    precision: mx.Dtype = PRECISION
    """Of scores, softmax and sums on the dequantizing path."""
    second: Callable[[], mx.ThreadLocalStream] | None = second_stream
    """Makes the stream that takes half of the rows where that pays; None: one takes them all."""

    out_dtype: mx.Dtype | None = None
    """Of the result; None: the queries'."""

    @property
    def packed(self) -> bool:
        """Whether products are taken with the codes, not with all keys and values as floats."""
        return self.path != "dequantize"

    @property
    def unpack(self) -> bool:
        """Whether the packed path may take the codes as floats where that is faster."""
        return self.path == "unpack"


def causal_mask(tokens: int, keys: int) -> mx.array | None:
    """Boolean [1, 1, tokens, keys], true where the last `tokens` of so many `keys` see one; none
    for one that sees all."""
    if tokens == 1:
        return None
    return mx.arange(keys) <= mx.arange(keys - tokens, keys)[None, None, :, None]
