"""How one call of attention is to be computed. GPU thread."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from kvactors.core.attention.policy import AttentionPath
from kvactors.core.quant.codec import PRECISION
from kvactors.core.quant.device import second_stream

__all__ = ["AttendPlan"]


@dataclass(frozen=True, slots=True)
class AttendPlan:
    """What `attend` follows beside queries, keys and values."""

    path: AttentionPath
    scale: float
    mask: mx.array | None = None
    """Boolean [n, 1, T, extent], true where a query sees a key; None sees all."""
    sinks: mx.array | None = None
    """[heads]: scores that take weight and have no value."""
    precision: mx.Dtype = PRECISION
    """Of scores, softmax and sums on the dequantizing path."""
    second: Callable[[], mx.ThreadLocalStream] | None = second_stream
    """Makes the stream that takes half of the rows where that pays; None: one takes them all."""

    @property
    def packed(self) -> bool:
        """Whether products are taken with the codes, not with all keys and values as floats."""
        return self.path != "dequantize"

    @property
    def unpack(self) -> bool:
        """Whether the packed path may take the codes as floats where that is faster."""
        return self.path == "unpack"
