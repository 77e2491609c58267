"""Sessions of two frameworks that are told the same, and asked the same: what differs is found at
the step where it begins."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

__all__ = ["Both", "Paired", "weights_of"]


class Both:
    """Two caches as one: what is asked of it is asked of both, and they say the same."""

    def __init__(self, first: Any, second: Any) -> None:
        self.caches = first, second

    def __getattr__(self, name: str) -> Any:
        mine, other = (getattr(cache, name) for cache in self.caches)
        if not callable(mine):
            assert mine == other, name
            return mine

        def verb(*arguments: Any) -> Any:
            said = mine(*arguments)
            assert other(*arguments) == said, name
            return said

        return verb


class Paired:
    """A session of an mlx-lm model, and a torch program that is `loaded` with the key of `other`, a
    session of its own, both of the same weights.

    Logits may differ by `limit` of their deviation: `apart` is the most that they did. A model that
    ends at random may be given an `end`: the likeliest token now in this row, now in that one.
    """

    def __init__(
        self, session: Any, other: Any, loaded: Any, *, limit: float, end: int | None = None
    ) -> None:
        self.cache = Both(session.cache, other.cache)
        self.apart, self.steps = 0.0, 0
        self._session, self._other, self._loaded = session, other, loaded
        self._limit, self._end = limit, end

    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> mx.array:
        logits = np.array(self._session.step(tokens, positions)).astype(np.float64)
        found = self._loaded.execute(tokens, positions).numpy()
        apart = float(np.abs(found - logits).max() / logits.std())
        self.apart, self.steps = max(self.apart, apart), self.steps + 1
        assert apart <= self._limit, f"step {self.steps} at {list(positions)}: {apart:.1e} apart"
        if self._end is not None:
            ends = (3 * self.steps + np.arange(len(tokens))) % 13 == 12
            logits[:, self._end] = np.where(ends, logits.max() + 1, logits.min() - 1)
        return mx.array(logits.astype(np.float32))


def weights_of(model: Any) -> dict[str, np.ndarray]:
    """Those of an mlx-lm model, quantized ones as the floats that they stand for."""
    found: dict[str, np.ndarray] = {}
    for name, module in model.named_modules():
        own = {key: value for key, value in module.items() if isinstance(value, mx.array)}
        if "scales" in own:
            codes = own.pop("weight"), own.pop("scales"), own.pop("biases")
            own["weight"] = mx.dequantize(*codes, group_size=module.group_size, bits=module.bits)
        for key, value in own.items():
            found[f"{name}.{key}"] = np.array(value.astype(mx.float32))
    return found
