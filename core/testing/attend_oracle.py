"""`update_and_attend` in NumPy, eager and in float64: what every layer of bytes is compared with
[cache-family, 3.1]. Loads no MLX."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvactors.core.cache.family.faces import Mover, Planner

__all__ = ["AttendOracle"]


class AttendOracle:
    """Keys and values by layer and cell, over the bookkeeping that is judged with it: where they
    stand and who sees them is all that they have in common with the bytes of an arena.

    Cells that were never written hold NaN, so that whoever sees one has no result.
    """

    def __init__(self, cache: Planner) -> None:
        self._cache = cache
        self._cells: dict[tuple[int, str], np.ndarray] = {}
        if isinstance(cache, Mover):
            cache.on_commit(self.move)

    def update_and_attend(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        position: Sequence[int],
        layer_id: int,
        scale: float,
        *,
        out_dtype: Any = np.float64,
    ) -> np.ndarray:
        """Store `k` and `v` [1, kv_heads, T, dim] of the tokens at each `position`, and attend with
        `q` [1, heads, T, dim], scores times `scale`, to what they see in layer `layer_id`. Returns
        [1, heads, T, dim] as `out_dtype`."""
        plan = self._cache.plan(position)
        keys = self._stored(layer_id, "k", plan.cells, k)[:, : plan.read]
        values = self._stored(layer_id, "v", plan.cells, v)[:, : plan.read]
        repeats = q.shape[1] // k.shape[1]
        out = np.zeros((*q.shape[:3], v.shape[-1]))
        for token in range(q.shape[2]):
            seen = [cell for cell in range(plan.read) if plan.row(token) >> cell & 1]
            for head in range(q.shape[1]):
                kv = head // repeats
                scores = keys[kv, seen] @ q[0, head, token].astype(np.float64) * scale
                weights = np.exp(scores - scores.max())
                out[0, head, token] = weights @ values[kv, seen] / weights.sum()
        return out.astype(out_dtype)

    def move(self, base: int, cells: Sequence[int]) -> None:
        """What a commit moves."""
        for stored in self._cells.values():
            stored[:, base : base + len(cells)] = stored[:, list(cells)]

    def _stored(
        self, layer_id: int, side: str, cells: Sequence[int], new: np.ndarray
    ) -> np.ndarray:
        """All cells of one side of a layer, [kv_heads, cells, dim], with new ones written."""
        old = self._cells.get((layer_id, side), np.zeros((new.shape[1], 0, new.shape[3])))
        more = max(0, max(cells) + 1 - old.shape[1])
        stored = np.pad(old, ((0, 0), (0, more), (0, 0)), constant_values=np.nan)
        stored[:, list(cells)] = new[0]
        self._cells[layer_id, side] = stored
        return stored
