"""The bytes of a cache of the family: one row of an arena, whose cells the cache plans. GPU thread.

A step that is contiguous is the arena's own, [1, T] tokens in the row. Any other is a flat one:
each token is a row of the model's batch with its own position, is written in the cell and sees the
cells that the plan names.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.flat_step import FlatRow, FlatStep
from kvactors.core.arena.kv_layer import KVLayer
from kvactors.core.arena.step import EvenStep, StepGeometry
from kvactors.core.attention.policy import AttentionPolicy
from kvactors.core.cache.family.step_plan import StepPlan, check_shapes
from kvactors.core.cache.spec import ModelCacheSpec
from kvactors.core.errors import InvalidStep
from kvactors.core.numbers import whole

__all__ = ["PlannedRow"]


class PlannedRow:
    """All layers of one row, as `spec` and `policy` say. It begins small, and grows; `arena` has no
    other row."""

    def __init__(self, spec: ModelCacheSpec, policy: AttentionPolicy) -> None:
        self.arena = Arena(spec, policy, max_slabs=1, extent_step=policy.extent_step)
        self.arena.add_row(0, 1)
        # Of the step whose layers ask one by one.
        self._plan: StepPlan | None = None
        self._flat = False

    @property
    def nbytes(self) -> int:
        """Bytes allocated over all layers."""
        return self.arena.nbytes

    def step(
        self, model: Any, tokens: mx.array, positions: Sequence[int], plan: StepPlan
    ) -> mx.array:
        """One step of `tokens` [T] at these `positions` through `model`, written and seen as `plan`
        says: lazy logits [T, vocab]."""
        if _even(positions, plan):
            self._stand_behind(plan.cells[0])
            return self.arena.forward(model, tokens[None])[0, ...]
        geometry = FlatStep(self.arena.table, [_flat_row(positions, plan)])
        return self.arena.step(model, tokens[:, None], geometry)[:, 0]

    def check(self, shapes: Sequence[tuple[int, ...]], tokens: int, layer_id: int) -> None:
        """Raise InvalidStep unless the `shapes` are those of queries, keys and values of so many
        `tokens` in the layer `layer_id`."""
        layers = self.arena.spec.layers
        number = whole(layer_id)
        if number is None or not 0 <= number < len(layers):
            raise InvalidStep(f"layer_id is one of 0 to {len(layers) - 1}, not {layer_id!r}")
        check_shapes(shapes, tokens)
        heads, dim = layers[number].kv_heads, layers[number].head_dim
        if (shapes[1][1], shapes[1][3]) != (heads, dim):
            raise InvalidStep(
                f"keys and values of layer {number} are [1, {heads}, T, {dim}], not {shapes[1]}"
            )

    def update_and_attend(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        positions: Sequence[int],
        plan: StepPlan,
        *,
        layer_id: int,
        scale: float,
        out_dtype: mx.Dtype | None = None,
    ) -> mx.array:
        """One layer, number `layer_id`, of a step that is no model's of mlx-lm: `queries`
        [1, heads, T, dim], whose scores are multiplied by `scale`, and new `keys` and `values`
        [1, kv_heads, T, dim] of tokens at these `positions`. Returns [1, heads, T, dim] as
        `out_dtype`, or as the queries are.

        All layers of a step are given the same `plan`.
        """
        if plan is not self._plan:
            self._plan, self._flat = plan, self._begin(positions, plan)
        layer = self.arena.layers[layer_id]
        assert isinstance(layer, KVLayer)
        layer.update_and_fetch(self._turned(keys), self._turned(values))
        asked = self._turned(queries)
        out = layer.attend(asked, None, scale=scale, sinks=None, out_dtype=out_dtype)
        return self._turned(out)

    def _turned(self, tokens: mx.array) -> mx.array:
        """[1, heads, T, dim] as the step has it, and the way back: a flat one has a batch of T."""
        return tokens.transpose(2, 1, 0, 3) if self._flat else tokens

    def _begin(self, positions: Sequence[int], plan: StepPlan) -> bool:
        """Make ready for a step whose layers ask one by one; whether it is flat."""
        table, flat = self.arena.table, not _even(positions, plan)
        geometry: StepGeometry
        if flat:
            geometry = FlatStep(table, [_flat_row(positions, plan)])
        else:
            self._stand_behind(plan.cells[0])
            geometry = EvenStep(table, len(positions))
        self.arena.begin(geometry)
        return flat

    def gather_into(self, base: int, cells: Sequence[int]) -> None:
        """Bring the bytes of `cells` to base, base + 1, ...: they were committed."""
        for layer in self.arena.layers:
            assert isinstance(layer, KVLayer)
            layer.rows.pools[0].gather_into(0, base, cells)

    def _stand_behind(self, length: int) -> None:
        """The row ends before cell `length`."""
        held = self.arena.table.lengths[0]
        if length < held:
            self.arena.cut(0, length)
        else:
            # What flat steps wrote.
            self.arena.table.advance(length - held)


def _even(positions: Sequence[int], plan: StepPlan) -> bool:
    """Whether a step is that of one row whose token at position p stands in cell p."""
    return plan.contiguous and list(plan.cells) == list(positions)


def _flat_row(positions: Sequence[int], plan: StepPlan) -> FlatRow:
    width = -(-plan.read // 8)
    bits = b"".join(plan.row(token).to_bytes(width, "little") for token in range(len(positions)))
    packed = np.frombuffer(bits, np.uint8).reshape(len(positions), width)
    sees = np.unpackbits(packed, axis=1, count=plan.read, bitorder="little").astype(bool)
    return FlatRow(positions, plan.cells, sees)
