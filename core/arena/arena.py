"""Arena: all layers of the rows that run together, with one bookkeeping for all of them.

The runner keeps one arena for decoding rows and a short-lived one for each prefill. A row
enters from pieces (a hot or restored cache) or from another arena, and its new tokens leave
as pieces: a few arrays stacked over layers. GPU thread only.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, KVCache

from kvactors.core.arena.flat_step import FlatRow, FlatStep
from kvactors.core.arena.kv_layer import KVLayer
from kvactors.core.arena.layer_cache import LayerCache, LayerRows
from kvactors.core.arena.pieces import Piece
from kvactors.core.arena.recurrent_layer import StateLayer
from kvactors.core.arena.step import EvenStep, StepGeometry
from kvactors.core.attention.linear_cpu import in_parts
from kvactors.core.attention.policy import AttentionPolicy
from kvactors.core.cache.slots import EXTENT_STEP, SharedPieces, SlotTable
from kvactors.core.cache.spec import UNUSED, LayerSpec, ModelCacheSpec

__all__ = ["Arena"]


class Arena:
    """Rows of all layers. Every method leaves the other rows' bytes alone.

    `spec` says what the layers are, `policy` how they attend; rows stand in at most `max_slabs`
    slabs, their extents are multiples of `extent_step`.
    """

    def __init__(
        self,
        spec: ModelCacheSpec,
        policy: AttentionPolicy,
        *,
        max_slabs: int = 3,
        extent_step: int = EXTENT_STEP,
    ) -> None:
        self.spec = spec
        self.policy = policy
        self.table = _make_table(spec, policy, max_slabs, extent_step)
        self.layers = [_make_layer(spec, layer, self.table, policy) for layer in spec.layers]
        self._rows = [layer.rows for layer in self.layers]
        self._caches = _nested(self.layers, spec.nesting)
        self.floats = False
        """Whether there is memory for `float_bytes`."""

    def __len__(self) -> int:
        return len(self.table)

    @property
    def nbytes(self) -> int:
        """Bytes allocated over all layers; those of a group are alike."""
        return sum(len(group) * self._rows[group[0]].nbytes for group in self.spec.groups())

    def add_row(self, length: int, expected: int, pieces: SharedPieces = (), spare: int = 0) -> int:
        """A new row that will be loaded with `length` tokens and filled to `expected`, with room
        for some to `spare`; its index.

        It begins with `pieces`. The caller keeps its own list in step: insert at the returned
        index.
        """
        expected = max(length, expected)
        room = expected + spare
        slab = self.table.choose_slab(expected, pieces)
        for rows in self._rows:
            rows.grow(slab, room)
        new = slab == len(self.table.slabs)
        capacity = self.table.capacity_for(0 if new else self.table.slabs[slab].capacity, room)
        return self.table.commit_join(slab, length, capacity, pieces, expected)

    def take_bytes(self, other: "Arena", source: int) -> int:
        """Bytes that `take` would allocate."""
        if _own_slab(self.table, other.table, source) is not None:
            return 0
        length = other.table.lengths[source] + 1
        slab = self.table.choose_slab(length, other.table.shared_pieces(source))
        return self._growth(lambda rows: rows.join_growth(slab, length))

    def step_bytes(self, width: int) -> int:
        """Bytes that the next step of `width` tokens would allocate."""
        total = 0
        for index, slab in enumerate(self.table.slabs):
            extent = self.table.extent(max(slab.lengths) + width)
            total += self._growth(partial(_step_growth, slab=index, tokens=extent))
        return total

    @property
    def float_bytes(self) -> int:
        """Bytes more that decode steps would take to keep what codes say as floats."""
        return sum(len(group) * self.layers[group[0]].float_bytes for group in self.spec.groups())

    def shrink(self) -> None:
        """Give back floats and spare slots, and the room that no row needs in its next step."""
        for index, slab in enumerate(self.table.slabs):
            capacity = self.table.extent(max(slab.lengths) + 1)
            for rows in self._rows:
                rows.shrink(index, len(slab.lengths), capacity)
            slab.capacity = min(slab.capacity, capacity)

    def _growth(self, growth: Callable[[LayerRows], tuple[int, int]]) -> int:
        """Bytes more; while a layer grows its old arrays live beside the new ones."""
        more = beside = 0
        for group in self.spec.groups():
            before, after = growth(self._rows[group[0]])
            if after > before:
                more += len(group) * (after - before)
                beside = max(beside, before)
        return more + beside

    def load(self, row: int, piece: Piece) -> None:
        """Write a piece at its own position of a row; its checkpoint, if the row ends there."""
        ends = piece.end == self.table.lengths[row]
        for group, arrays in zip(self.spec.groups(), piece.groups, strict=True):
            if self.spec.layers[group[0]].checkpointed and not (ends and arrays):
                continue
            for position, index in enumerate(group):
                parts = {name: array[position] for name, array in arrays.items()}
                self._rows[index].load(row, piece.start, piece.end, parts)
        self._note(row, piece)
        self.evaluate()

    def take(self, other: "Arena", source: int) -> int:
        """A row of another arena, which keeps its own; returns its index here.

        A row that gets a slab of its own, and had one there, is not copied before either writes.
        """
        length, pieces = other.table.lengths[source], other.table.shared_pieces(source)
        both = list(zip(self._rows, other._rows, strict=True))
        slab = _own_slab(self.table, other.table, source)
        if slab is not None:
            for rows, theirs in both:
                rows.share(theirs, slab)
            capacity = other.table.slabs[slab].capacity
            return self.table.commit_join(len(self.table.slabs), length, capacity, pieces)
        row = self.add_row(length, length + 1, pieces)
        for rows, theirs in both:
            rows.copy_row(row, theirs, source)
        return row

    def export(self, row: int, start: int, end: int) -> Piece:
        """Tokens [start, end) of a row, evaluated; with a checkpoint if the row ends there."""
        length = self.table.lengths[row]
        assert 0 <= start < end <= length
        groups = []
        for group in self.spec.groups():
            parts = [
                self._rows[index].export(row, start, end, checkpoint=end == length)
                for index in group
            ]
            groups.append({name: _stack([part[name] for part in parts]) for name in parts[0]})
        mx.eval(groups)
        piece = Piece(start, end, tuple(groups), self.spec)
        self._note(row, piece)
        return piece

    def cut(self, row: int, length: int) -> None:
        """Cut a row to its first `length` tokens, as far back as its layers allow."""
        for rows in self._rows:
            rows.cut(row, length)
        self.table.set_length(row, length)

    def leave(self, row: int) -> int:
        """Remove a row; the slab's last row fills the hole. Returns the row that moved there.

        The caller mirrors it: `rows[row] = rows[moved]`, then delete `moved`.
        """
        slab, slot = self.table.locate(row)
        last = len(self.table.slabs[slab].lengths) - 1
        for rows in self._rows:
            rows.leave(slab, slot, last)
        moved = self.table.first_row(slab) + last
        self.table.commit_leave(row)
        return moved

    def forward(self, model: Any, tokens: mx.array) -> mx.array:
        """One step of [rows, T] tokens through the model: lazy logits [rows, T, vocab].

        Lengths are committed once for all layers. If the model raises they stay as they
        were; the bytes beyond them are dead.
        """
        width = tokens.shape[1]
        even = partial(EvenStep, self.table, width, floats=self.floats)
        if self.spec.batched:
            logits = self.step(model, tokens, even())
        else:
            rows = [
                self.step(model, tokens[slab : slab + 1], even(slab))
                for slab in range(len(self.table.slabs))
            ]
            logits = rows[0] if len(rows) == 1 else mx.concatenate(rows)
        self.table.advance(width)
        return logits

    def forward_flat(self, model: Any, tokens: mx.array, counts: Sequence[int]) -> mx.array:
        """One step of the `model` in which each row takes as many tokens as `counts` says, at least
        one: `tokens` [tokens] are those of the first row, then those of the second. Lazy logits
        [tokens, vocab]; otherwise as `forward`. Only where `spec.flat` is true.
        """
        assert self.spec.flat, "layers of this model take as many tokens in each row"
        lengths = self.table.lengths
        rows = [FlatRow(range(n, n + count)) for n, count in zip(lengths, counts, strict=True)]
        geometry = FlatStep(self.table, rows, floats=self.floats)
        logits = self.step(model, tokens[:, None], geometry)[:, 0]
        self.table.advance_by(counts)
        return logits

    def begin(self, geometry: StepGeometry) -> None:
        """All layers take a step of this geometry next: allocate what it needs."""
        for layer in self.layers:
            layer.begin(geometry)
        for slab, extent in zip(geometry.slabs, geometry.extents, strict=True):
            held = self.table.slabs[slab]
            held.capacity = self.table.capacity_for(held.capacity, extent)

    def step(self, model: Any, tokens: mx.array, geometry: StepGeometry) -> mx.array:
        """One step of the `model`, of `tokens` [B, T] that stand as the `geometry` says: lazy
        logits [B, T, vocab]. Commits no length."""
        self.begin(geometry)
        with in_parts(wanted=self.policy.parts):
            logits: mx.array = model(tokens, cache=list(self._caches))
        return logits

    def _note(self, row: int, piece: Piece) -> None:
        """The row holds the piece's bytes: rows that hold the same can be read as one."""
        if self.policy.cascades and self.spec.batched:
            self.table.note(row, piece.name, piece.start, piece.end)

    def evaluate(self) -> None:
        """Run what was written so far; after a prefill chunk no one asks for its logits."""
        mx.eval([rows.state for rows in self._rows])


def _own_slab(here: SlotTable, there: SlotTable, source: int) -> int | None:
    """The slab that row `source` has to itself `there`, if it would have one `here`."""
    slab, _ = there.locate(source)
    if len(there.slabs[slab].rows) > 1:
        return None
    pieces = there.shared_pieces(source)
    alone = here.choose_slab(there.lengths[source] + 1, pieces) == len(here.slabs)
    return slab if alone else None


def _make_table(
    spec: ModelCacheSpec, policy: AttentionPolicy, max_slabs: int, extent_step: int
) -> SlotTable:
    if not spec.batched:
        # A slab for each row, and a step for each slab.
        return SlotTable(sys.maxsize, -1, extent_step)
    if spec.plain or spec.recurrent:
        # What these layers hand to the model is one array for the whole batch.
        max_slabs = 1
    return SlotTable(max_slabs, policy.launch_tokens, extent_step)


def _make_layer(
    spec: ModelCacheSpec, layer: LayerSpec, table: SlotTable, policy: AttentionPolicy
) -> LayerCache:
    if layer.kind == "recurrent":
        return StateLayer(table, layer)
    masks = spec.masks if spec.plain else None
    return KVLayer(table, layer, policy, masks=masks, batched=spec.batched)


def _nested(layers: Sequence[LayerCache], nesting: Sequence[int]) -> list[Any]:
    """The caches as the model wants them: some by themselves, some in lists."""
    if not any(nesting):
        return list(layers)
    left = iter(layers)
    kept = [count for count in nesting if count != UNUSED]
    wanted = iter(CacheList(*islice(left, count)) if count else next(left) for count in kept)
    return [KVCache() if count == UNUSED else next(wanted) for count in nesting]


def _step_growth(rows: LayerRows, slab: int, tokens: int) -> tuple[int, int]:
    return rows.step_growth(slab, tokens)


def _stack(arrays: list[mx.array]) -> mx.array:
    """Copies of the arrays in a new first axis. MLX stacks one array as a view of it, which would
    hold the whole slab."""
    return mx.stack(arrays) if len(arrays) > 1 else mx.contiguous(arrays[0])[None]
