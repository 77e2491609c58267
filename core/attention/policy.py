"""Which attention path a step takes. No MLX."""

from dataclasses import dataclass
from typing import Literal, get_args

from kvactors.core.cache.slots import EXTENT_STEP
from kvactors.core.errors import InvalidConfig

__all__ = [
    "DEFAULT_THRESHOLD",
    "REPRODUCIBLE_STEP",
    "UNPACK_ROWS",
    "AttentionMode",
    "AttentionPath",
    "AttentionPolicy",
    "check_attention",
]

AttentionMode = Literal["auto", "packed", "dequantize"]
AttentionPath = Literal["packed", "unpack", "dequantize"]
"""`unpack`: the packed one, with products from codes as floats where that is faster."""

# Query rows per KV head up to which packed is the faster path, until measured: on the CPU
# (2 cores, OpenBLAS) the paths cross between 4 and 8 (bench/LOG.md).
DEFAULT_THRESHOLD = 4

REPRODUCIBLE_STEP = 256
UNPACK_ROWS = 48


@dataclass(frozen=True, slots=True)
class AttentionPolicy:
    """Which path a step takes. `threshold` counts query rows per KV head, `launch_tokens` the
    padding that one more slab is worth; both are measured at load. `unpack` lets steps of
    up to UNPACK_ROWS query rows per KV head take products from codes as floats, `parts` few rows
    to be multiplied with parts of the model's weights.

    `reproducible` decides by position instead of by measurement: whole blocks of 256
    tokens take the dequantizing path, everything else the packed one.

    `precision` is that of scores, softmax and sums on the dequantizing path: in "float64", on a
    CPU, what is left of a difference between two orders of summing is rounded away, so that both
    can be compared.
    """

    mode: AttentionMode = "auto"
    threshold: int = DEFAULT_THRESHOLD
    reproducible: bool = False
    launch_tokens: int = 1024
    unpack: bool = False
    parts: bool = False
    precision: str = "float32"

    @property
    def extent_step(self) -> int:
        """Keys are read in multiples of so many."""
        return REPRODUCIBLE_STEP if self.reproducible else EXTENT_STEP

    @property
    def cascades(self) -> bool:
        """Whether rows that begin alike may be attended together: their sums then depend on the
        company, which the packed path and reproducible runs exclude."""
        return self.mode != "packed" and not self.reproducible

    def packed(self, width: int, repeats: int) -> bool:
        """Whether a step of `width` tokens, `repeats` query heads per KV head, is packed."""
        if self.mode != "auto":
            return self.mode == "packed"
        if self.reproducible:
            return width != REPRODUCIBLE_STEP
        return width * repeats <= self.threshold

    def unpacks(self, width: int, repeats: int) -> bool:
        """Whether a step takes the packed path with codes as floats."""
        free = self.mode == "auto" and not self.reproducible
        return free and self.unpack and width * repeats <= UNPACK_ROWS

    def path(self, width: int, repeats: int) -> AttentionPath:
        """Which path a step of `width` tokens takes."""
        if self.unpacks(width, repeats):
            return "unpack"
        return "packed" if self.packed(width, repeats) else "dequantize"

    def reads_once(self, rows: int, repeats: int, *, apart: bool = False) -> bool:
        """Whether a decode step attends what `rows` begin with as one, each KV head for `repeats`
        heads of queries: with twice the queries from which floats are faster, since taking the
        parts together costs too (bench/LOG.md). Where these tokens stand `apart` bringing the parts
        together costs more, if codes become floats in any case."""
        if apart and self.unpacks(1, repeats):
            return True
        return not self.packed(1, rows * repeats // 2)

    def together(self, rows: int, repeats: int, shared: int, *, apart: bool = False) -> bool:
        """Whether it does so with the `shared` tokens that `rows` begin with; `repeats` and `apart`
        as above."""
        return shared > 0 and self.reads_once(rows, repeats, apart=apart)


def check_attention(mode: str) -> AttentionMode:
    """Validate the `attention=` parameter. Raises InvalidConfig."""
    for known in get_args(AttentionMode):
        if mode == known:
            return known  # type: ignore[no-any-return]
    raise InvalidConfig(
        f"attention must be one of {', '.join(get_args(AttentionMode))}, not {mode!r}"
    )
