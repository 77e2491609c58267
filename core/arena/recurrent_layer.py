"""Recurrent layers: a state of fixed size per row, in float, as mlx-lm's ArraysCache holds it.

A state cannot be cut, but decoding runs one step ahead of what was read, and an answer that
was only scored leaves again: the state before the last step is kept, so that a row can be put
back by it. GPU thread only.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from kvactors.core.arena.step import StepGeometry
from kvactors.core.cache.slabs import NO_TRUNK, Trunk
from kvactors.core.cache.slots import SlotTable
from kvactors.core.cache.spec import LayerSpec
from kvactors.core.quant.codec import Arrays

__all__ = ["StateLayer", "StateRows"]

States = list[Any]
"""Arrays [slots, ...]; None where a first step has not set one yet."""


class StateRows:
    """States of rows, now and before the last step, slab by slab.

    Rows that have taken no token yet have none: the model makes the first state itself.
    """

    def __init__(self, table: SlotTable, layer: LayerSpec) -> None:
        self.table = table
        self.layer = layer
        self.now: list[States | None] = []
        self.before: list[States | None] = []
        self._width = 0

    def begin(self, geometry: StepGeometry) -> None:
        """A step begins; what it starts from is kept."""
        self._width = geometry.width
        for slab in geometry.slabs:
            states = self.now[slab]
            self.before[slab] = None if states is None else list(states)

    def grow(self, slab: int, length: int, trunk: Trunk = NO_TRUNK) -> None:
        """One more slot at the end of a slab, whatever `length` its row has; no `trunk`."""
        if slab == len(self.now):
            self.now.append(None)
            self.before.append(None)
            return
        for kept in (self.now, self.before):
            states = kept[slab]
            if states is not None:
                kept[slab] = _joined(states, self._zeros(1))

    def join_growth(self, slab: int, length: int, trunk: Trunk = NO_TRUNK) -> tuple[int, int]:
        """Bytes of a slab now, and once a row has joined it, whatever its `length`; no `trunk`."""
        rows = len(self.table.slabs[slab].lengths) if slab < len(self.now) else 0
        return rows * self.layer.row_bytes, (rows + 1) * self.layer.row_bytes

    def step_growth(self, slab: int, tokens: int) -> tuple[int, int]:
        """A state does not grow."""
        return 0, 0

    def shrink(self, slab: int, slots: int, capacity: int) -> None:
        """Nothing: a `slab` has states of its rows only, whatever `slots` and `capacity` are."""

    def copy_row(self, row: int, other: "StateRows", source: int) -> None:
        """Copy row `source` of this layer of an `other` arena into a `row` made by `grow`: lazy."""
        slab, slot = other.table.locate(source)
        states = other.now[slab]
        if states is not None:
            self._put(row, [state[slot : slot + 1] for state in states])

    def share(self, other: "StateRows", slab: int) -> None:
        """One more slab: another arena's, of this layer."""
        states = other.now[slab]
        self.now.append(None if states is None else list(states))
        self.before.append(None)

    def leave(self, slab: int, slot: int, last: int) -> None:
        """Remove a slot; the slab's last one fills the hole."""
        if last == 0:
            del self.now[slab], self.before[slab]
            return
        order = [last if index == slot else index for index in range(last)]
        for kept in (self.now, self.before):
            states = kept[slab]
            if states is not None:
                kept[slab] = [mx.take(state, mx.array(order), axis=0) for state in states]

    def cut(self, row: int, length: int) -> None:
        """Put the row back before the last step; a state cannot be cut further."""
        slab, slot = self.table.locate(row)
        back = self.table.lengths[row] - length
        if back == 0:
            return
        before, now = self.before[slab], self.now[slab]
        assert back == self._width, f"a recurrent layer cannot be cut by {back} tokens"
        if before is None or now is None:
            assert len(self.table.slabs[slab].lengths) == 1, "rows without a state begin alone"
            self.now[slab] = None
            return
        self.now[slab] = [
            _with_row(state, slot, old[slot : slot + 1])
            for state, old in zip(now, before, strict=True)
        ]

    def export(self, row: int, start: int, end: int, *, checkpoint: bool) -> Arrays:
        """The row's state, if a `checkpoint` is asked; it has nothing of tokens [start, end)."""
        slab, slot = self.table.locate(row)
        states = self.now[slab]
        if not checkpoint or states is None:
            return {}
        return {f"s{index}": state[slot, ...] for index, state in enumerate(states)}

    def load(self, row: int, start: int, end: int, arrays: Arrays) -> None:
        """Let `row` have the state in `arrays`, whatever tokens [start, end) it was exported
        with."""
        self._put(row, [arrays[f"s{index}"][None] for index in range(len(self.layer.states))])

    @property
    def nbytes(self) -> int:
        """Bytes of every row's state, now and before the last step."""
        held = [states for kept in (self.now, self.before) for states in kept if states]
        return sum(state.nbytes for states in held for state in states)

    @property
    def state(self) -> list[Any]:
        """Every array, for `mx.eval`."""
        return [states for kept in (self.now, self.before) for states in kept if states]

    def _put(self, row: int, states: States) -> None:
        slab, slot = self.table.locate(row)
        rows = len(self.table.slabs[slab].lengths)
        for kept in (self.now, self.before):
            old = kept[slab]
            if old is None and kept is self.before:
                continue
            assert old is not None or rows == 1, "rows without a state begin alone"
            old = old or self._zeros(rows)
            kept[slab] = [
                _with_row(state, slot, new) for state, new in zip(old, states, strict=True)
            ]

    def _zeros(self, rows: int) -> States:
        return [
            mx.zeros((rows, *shape), dtype=getattr(mx, dtype)) for shape, dtype in self.layer.states
        ]


class StateLayer(ArraysCache):  # type: ignore[misc]
    """The states of one recurrent layer, each [slots, ...], as a model steps them."""

    float_bytes = 0

    def __init__(self, table: SlotTable, layer: LayerSpec) -> None:
        super().__init__(len(layer.states))
        self.layer = layer
        self.rows = StateRows(table, layer)
        self.geometry: StepGeometry | None = None

    def begin(self, geometry: StepGeometry) -> None:
        """A step begins; what it starts from is kept."""
        self.geometry = geometry
        self.rows.begin(geometry)

    @property
    def known(self) -> bool:
        """Nothing is learned of the model."""
        return True

    def reads_once(self, rows: int) -> bool:
        """No: its rows have no trunk, however many there are."""
        return False

    def __getitem__(self, index: int) -> mx.array | None:
        if index >= len(self.layer.states):
            raise IndexError(index)
        states = self.rows.now[self._slab]
        return None if states is None else states[index]

    def __setitem__(self, index: int, value: mx.array) -> None:
        now, slab = self.rows.now, self._slab
        states = now[slab]
        if states is None:
            states = now[slab] = [None] * len(self.layer.states)
        # Some models set a part of what they computed with, which would be held as a whole.
        states[index] = mx.contiguous(_filled_up(value, self.layer.states[index][0]))

    def make_mask(self, *_args: Any, **_kwargs: Any) -> None:
        """None: every row takes every token of a step."""

    @property
    def _slab(self) -> int:
        assert self.geometry is not None, "a layer steps through its Arena"
        (slab,) = self.geometry.slabs
        return slab


def _filled_up(state: mx.array, shape: Sequence[int]) -> mx.array:
    """A state of the last inputs has fewer of them at first: as if zeros had come before."""
    missing = [full - size for full, size in zip(shape, state.shape[1:], strict=True)]
    return mx.pad(state, [(0, 0), *((count, 0) for count in missing)]) if any(missing) else state


def _with_row(state: mx.array, slot: int, row: mx.array) -> mx.array:
    return mx.concatenate([state[:slot], row, state[slot + 1 :]])


def _joined(states: States, more: States) -> States:
    return [mx.concatenate([old, new]) for old, new in zip(states, more, strict=True)]
