"""Arena: all layers of the rows that run together, with one bookkeeping for all of them.

The runner keeps one arena for decoding rows and a short-lived one for each prefill. A row
enters from pieces (a hot or restored cache) or from another arena, and its new tokens leave
as pieces: a few arrays stacked over layers. Pieces that others begin with too may stay where they
are: rows that have them as their trunk read them there. GPU thread only.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from kvactors.core.arena.flat_step import FlatRow, FlatStep
from kvactors.core.arena.layer_cache import LayerRows, make_layers, make_table, nested
from kvactors.core.arena.pieces import Piece
from kvactors.core.arena.step import EvenStep, StepGeometry
from kvactors.core.attention.linear_cpu import in_parts
from kvactors.core.attention.policy import AttentionPolicy
from kvactors.core.cache.slabs import NO_TRUNK, SharedPieces, Trunk
from kvactors.core.cache.slots import EXTENT_STEP, SlotTable
from kvactors.core.cache.spec import ModelCacheSpec

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
        self.table = make_table(spec, policy, max_slabs, extent_step)
        self.layers = make_layers(spec, self.table, policy)
        self._rows = [layer.rows for layer in self.layers]
        self._caches = nested(self.layers, spec.nesting)
        self.floats = False
        """Whether there is memory for `float_bytes`."""

    def __len__(self) -> int:
        return len(self.table)

    @property
    def nbytes(self) -> int:
        """Bytes allocated over all layers, trunks not; those of a group are alike."""
        return sum(len(group) * self._rows[group[0]].nbytes for group in self.spec.groups())

    def trunk(self, row: int) -> Trunk:
        """What a row reads where it is."""
        return self.table.slabs[self.table.locate(row)[0]].trunk

    def add_row(
        self,
        length: int,
        expected: int,
        pieces: SharedPieces = (),
        spare: int = 0,
        trunk: Trunk = NO_TRUNK,
    ) -> int:
        """A new row that will be loaded with `length` tokens and filled to `expected`, with room
        for some to `spare`; its index.

        It begins with `pieces`, and reads the `trunk` where it is if there is a slab for that; then
        what `load` is given of it is there. The caller keeps its own list in step: insert at the
        returned index.
        """
        expected, pieces = max(length, expected), pieces or trunk.names
        room = expected + spare
        slab = self.table.choose_slab(expected, pieces, trunk)
        trunk = self.table.trunk_in(slab, trunk)
        for rows in self._rows:
            rows.grow(slab, room, trunk)
        new = slab == len(self.table.slabs)
        held = 0 if new else self.table.slabs[slab].capacity
        capacity = self.table.capacity_for(held, room, trunk.end)
        return self.table.commit_join(slab, length, capacity, pieces, expected, trunk=trunk)

    def take_bytes(self, other: "Arena", source: int) -> int:
        """Bytes that `take` would allocate."""
        if _own_slab(self.table, other.table, source) is not None:
            return 0
        length, trunk = other.table.lengths[source] + 1, other.trunk(source)
        slab = self.table.choose_slab(length, other.table.shared_pieces(source), trunk)
        trunk = self.table.trunk_in(slab, trunk)
        return _growth(self.spec, self._rows, lambda rows: rows.join_growth(slab, length, trunk))

    def step_bytes(self, width: int) -> int:
        """Bytes that the next step of `width` tokens would allocate."""
        total = 0
        for index, slab in enumerate(self.table.slabs):
            extent = self.table.extent(max(slab.lengths) + width)
            growth = partial(_step_growth, slab=index, tokens=extent)
            total += _growth(self.spec, self._rows, growth)
        return total

    @property
    def float_bytes(self) -> int:
        """Bytes more that decode steps would take to keep what codes say as floats."""
        return sum(len(group) * self.layers[group[0]].float_bytes for group in self.spec.groups())

    def shrink(self) -> None:
        """Give back floats and spare slots, and the room that no row needs in its next step."""
        for index, slab in enumerate(self.table.slabs):
            capacity = self.table.extent(max(slab.lengths) + 1) - slab.trunk.end
            for rows in self._rows:
                rows.shrink(index, len(slab.lengths), capacity)
            slab.capacity = min(slab.capacity, capacity)

    def load(self, row: int, piece: Piece) -> None:
        """Write a piece at its own position of a row, unless it is of its trunk; its checkpoint, if
        the row ends there."""
        ends = piece.end == self.table.lengths[row]
        there = piece.end <= self.trunk(row).end
        for group, arrays in zip(self.spec.groups(), piece.groups, strict=True):
            checkpointed = self.spec.layers[group[0]].checkpointed
            if not (ends and arrays if checkpointed else not there):
                continue
            for position, index in enumerate(group):
                # With the dots it is a view: an index alone copies.
                parts = {name: array[position, ...] for name, array in arrays.items()}
                self._rows[index].load(row, piece.start, piece.end, parts)
        self._note(row, piece)
        self.evaluate()

    def take(self, other: "Arena", source: int) -> int:
        """A row of another arena, which keeps its own; returns its index here.

        A row that gets a slab of its own, and had one there, is not copied before either writes.
        """
        length, pieces = other.table.lengths[source], other.table.shared_pieces(source)
        both, trunk = list(zip(self._rows, other._rows, strict=True)), other.trunk(source)
        slab = _own_slab(self.table, other.table, source)
        if slab is not None:
            for rows, theirs in both:
                rows.share(theirs, slab)
            capacity, new = other.table.slabs[slab].capacity, len(self.table.slabs)
            return self.table.commit_join(new, length, capacity, pieces, trunk=trunk)
        row = self.add_row(length, length + 1, pieces, trunk=trunk)
        for rows, theirs in both:
            rows.copy_row(row, theirs, source)
        # Once for all layers: a GPU is waited for each time.
        self.evaluate()
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
            held.capacity = self.table.capacity_for(held.capacity, extent, held.trunk.end)

    def step(
        self, model: Any, tokens: mx.array, geometry: StepGeometry, *, begun: bool = False
    ) -> mx.array:
        """One step of the `model`, of `tokens` [B, T] that stand as the `geometry` says: lazy
        logits [B, T, vocab]. Commits no length. `begun`: `begin` was called."""
        if not begun:
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


def _own_slab(table: SlotTable, other: SlotTable, source: int) -> int | None:
    """The slab that a row of another arena has to itself there, if it would have one here."""
    there, _ = other.locate(source)
    held = other.slabs[there]
    if len(held.rows) > 1:
        return None
    row = held.rows[0]
    here = table.choose_slab(row.length + 1, row.pieces, held.trunk)
    new = here == len(table.slabs) and table.trunk_in(here, held.trunk) is held.trunk
    return there if new else None


def _growth(
    spec: ModelCacheSpec, rows: Sequence[LayerRows], growth: Callable[[LayerRows], tuple[int, int]]
) -> int:
    """Bytes more; while a layer grows its old arrays live beside the new ones."""
    more = beside = 0
    for group in spec.groups():
        before, after = growth(rows[group[0]])
        if after > before:
            more += len(group) * (after - before)
            beside = max(beside, before)
    return more + beside


def _step_growth(rows: LayerRows, slab: int, tokens: int) -> tuple[int, int]:
    return rows.step_growth(slab, tokens)


def _stack(arrays: list[mx.array]) -> mx.array:
    """Copies of the arrays in a new first axis. MLX stacks one array as a view of it, which would
    hold the whole slab."""
    return mx.stack(arrays) if len(arrays) > 1 else mx.contiguous(arrays[0])[None]
