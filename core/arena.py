"""Arena: all layers of the rows that run together, with one bookkeeping for all of them.

The runner keeps one arena for decoding rows and a short-lived one for each prefill. A row
enters from pieces (a hot or restored cache) or from another arena, and its new tokens leave
as pieces: a few arrays stacked over layers. GPU thread only.
"""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import mlx.core as mx

from kvactors.core.batch import BatchQuantizedKVCache
from kvactors.core.geometry import AttentionPolicy, StepGeometry
from kvactors.core.pools import Arrays
from kvactors.core.slots import EXTENT_STEP, Beginning, SlotTable
from kvactors.core.spec import ModelCacheSpec

__all__ = ["Arena", "Piece"]

_names = count()


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """KV of tokens [start, end) of one agent: evaluated, immutable, owned by whoever holds it.

    `groups[g]` holds the arrays of the spec's layer group g, [layers, 2, kv_heads,
    tokens, width]. `name` is the piece's own, among all of the process.
    """

    start: int
    end: int
    groups: tuple[Arrays, ...]
    name: int = field(default_factory=_names.__next__)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for group in self.groups for array in group.values())


class Arena:
    """Rows of all layers. Every method leaves the other rows' bytes alone."""

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
        self.table = SlotTable(max_slabs, policy.launch_tokens, extent_step)
        self.layers = [
            BatchQuantizedKVCache(
                self.table,
                bits=layer.bits,
                group_size=layer.group_size,
                layer=layer,
                policy=policy,
                shared=True,
            )
            for layer in spec.layers
        ]

    def __len__(self) -> int:
        return len(self.table)

    @property
    def nbytes(self) -> int:
        """Bytes allocated over all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def add_row(self, length: int, reserve: int, beginning: Beginning = ()) -> int:
        """A new row that will be loaded with `length` tokens, room for `reserve`; its index.

        The caller keeps its own list in step: insert at the returned index.
        """
        slab = self.table.choose_slab(max(length, reserve), beginning)
        capacity = max(layer.grow(slab, max(length, reserve)) for layer in self.layers)
        return self.table.commit_join(slab, length, capacity, beginning)

    def take_bytes(self, other: "Arena", source: int) -> int:
        """Bytes that `take` would allocate."""
        length = other.table.lengths[source] + 1
        slab = self.table.choose_slab(length, other.table.beginning(source))
        slots, capacity = self.layers[0].shape_with(slab, length)
        return self._resize_bytes(self._cells(slab), slots * capacity)

    def step_bytes(self, width: int) -> int:
        """Bytes that the next step of `width` tokens would allocate."""
        total = 0
        for index, slab in enumerate(self.table.slabs):
            extent = self.table.extent(max(slab.lengths) + width)
            slots = self.layers[0].pools[index].shape[0]
            capacity = self.table.capacity_for(slab.capacity, extent)
            total += self._resize_bytes(self._cells(index), slots * capacity)
        return total

    def shrink(self) -> None:
        """Give back spare slots, and the room that no row needs in its next step."""
        for index, slab in enumerate(self.table.slabs):
            capacity = self.table.extent(max(slab.lengths) + 1)
            for layer in self.layers:
                layer.pools[index].shrink(len(slab.lengths), capacity)
            slab.capacity = min(slab.capacity, capacity)

    def _cells(self, slab: int) -> int:
        if slab == len(self.table.slabs):
            return 0
        slots, capacity = self.layers[0].pools[slab].shape
        return slots * capacity

    def _resize_bytes(self, before: int, after: int) -> int:
        """Bytes for more cells; while a layer grows its old arrays live beside the new ones."""
        if after <= before:
            return 0
        return (after - before + before // len(self.layers)) * self.spec.bytes_per_token

    def load(self, row: int, piece: Piece) -> None:
        """Write a piece at its own position of a row."""
        slab, slot = self.table.locate(row)
        for group, arrays in zip(self.spec.groups(), piece.groups, strict=True):
            for position, index in enumerate(group):
                pool = self.layers[index].pools[slab]
                pool.load(slot, piece.start, {n: a[position] for n, a in arrays.items()})
        self._note(row, piece)
        self.evaluate()

    def take(self, other: "Arena", source: int) -> int:
        """Copy a row of another arena in; returns its index here."""
        length = other.table.lengths[source]
        row = self.add_row(length, length + 1, other.table.beginning(source))
        for layer, from_layer in zip(self.layers, other.layers, strict=True):
            layer.copy_row(row, from_layer, source)
        return row

    def export(self, row: int, start: int, end: int) -> Piece:
        """Tokens [start, end) of a row as an evaluated piece."""
        assert 0 <= start < end <= self.table.lengths[row]
        slab, slot = self.table.locate(row)
        groups = []
        for group in self.spec.groups():
            parts = [self.layers[index].pools[slab].export(slot, start, end) for index in group]
            groups.append({name: mx.stack([part[name] for part in parts]) for name in parts[0]})
        mx.eval(groups)
        piece = Piece(start, end, tuple(groups))
        self._note(row, piece)
        return piece

    def leave(self, row: int) -> int:
        """Remove a row; the slab's last row fills the hole. Returns the row that moved there.

        The caller mirrors it: `rows[row] = rows[moved]`, then delete `moved`.
        """
        slab, slot = self.table.locate(row)
        last = len(self.table.slabs[slab].lengths) - 1
        for layer in self.layers:
            if slot != last:
                layer.pools[slab].move(slot, last)
            elif last == 0:
                del layer.pools[slab]
        moved = self.table.first_row(slab) + last
        self.table.commit_leave(row)
        return moved

    def forward(self, model: Any, tokens: mx.array) -> mx.array:
        """One step of [rows, T] tokens through the model: lazy logits [rows, T, vocab].

        Lengths are committed once for all layers. If the model raises they stay as they
        were; the bytes beyond them are dead.
        """
        width = tokens.shape[1]
        geometry = StepGeometry(self.table, width)
        for layer in self.layers:
            layer.geometry = geometry
            layer.ensure(geometry)
        for slab, extent in zip(self.table.slabs, geometry.extents, strict=True):
            slab.capacity = self.table.capacity_for(slab.capacity, extent)
        logits: mx.array = model(tokens, cache=self.layers)
        self.table.advance(width)
        return logits

    def _note(self, row: int, piece: Piece) -> None:
        """The row holds the piece's bytes: rows that hold the same can be read as one."""
        if self.policy.cascades:
            self.table.note(row, piece.name, piece.start, piece.end)

    def evaluate(self) -> None:
        """Run what was written so far; after a prefill chunk no one asks for its logits."""
        mx.eval([layer.state for layer in self.layers])
