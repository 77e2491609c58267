"""AttendSpec: what the queries of a step see of the keys that are read. The cache says it, not who
asks [cache-family, 4.1]. GPU thread."""

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from kvactors.core.attention.plan import AttendPlan, Mask
from kvactors.core.attention.policy import AttentionPath
from kvactors.core.quant.codec import PRECISION

__all__ = ["AttendSpec"]


@dataclass(frozen=True, slots=True)
class AttendSpec:
    """One of three kinds of mask:

    None        each query sees all keys
    "causal"    the last query sees all keys, the one before it all but the last one, and so on:
                new tokens stand at the end of what is read
    an array    boolean [n, 1, T, keys], true where a query sees a key; one that is added would
                have a dtype, which might become the result's

    The result has `out_dtype`, whatever keys and values are stored in; None: the queries'.
    """

    mask: Mask = None
    out_dtype: mx.Dtype | None = None

    def __post_init__(self) -> None:
        assert not isinstance(self.mask, mx.array) or self.mask.dtype == mx.bool_

    @classmethod
    def of_run(cls, tokens: int, out_dtype: mx.Dtype | None = None) -> "AttendSpec":
        """Of so many `tokens` of each row, which end where the keys end that are read."""
        return cls("causal" if tokens > 1 else None, out_dtype)

    @property
    def kind(self) -> Literal["none", "causal", "explicit"]:
        """Which of the three it is."""
        if self.mask is None:
            return "none"
        return "causal" if isinstance(self.mask, str) else "explicit"

    def plan(
        self,
        path: AttentionPath,
        scale: float,
        sinks: mx.array | None = None,
        precision: mx.Dtype = PRECISION,
    ) -> AttendPlan:
        """How it is computed: on this `path`, with scores times `scale`, `sinks` [heads] and, where
        all keys become floats, this `precision`."""
        return AttendPlan(path, scale, self.mask, sinks, precision, out_dtype=self.out_dtype)
