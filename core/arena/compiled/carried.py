"""What a decode step reads and writes of one layer, as arrays; and the layer's rows made of others.
GPU thread only."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import mlx.core as mx

from kvactors.core.arena.kv_rows import KVRows
from kvactors.core.arena.layer_cache import LayerCache
from kvactors.core.arena.pools import Pool
from kvactors.core.arena.recurrent_layer import StateRows

__all__ = ["Carrier", "carrier"]


class Carrier(Protocol):
    """The way of one layer's arrays into a step and out of it, slab by slab."""

    @property
    def form(self) -> tuple[Any, ...] | None:
        """What the arrays look like; None if some are not there yet."""

    @property
    def arrays(self) -> list[Any]:
        """Those that a step begins with."""

    def standing_in(self, arrays: list[Any]) -> AbstractContextManager[None]:
        """Within, the rows are made of these arrays; then all is as before, whatever happens."""

    @property
    def outcome(self) -> list[Any]:
        """What a step left, within."""

    def accept(self, outcome: list[Any]) -> None:
        """A step was taken that had this `outcome`."""


def carrier(layer: LayerCache) -> Carrier:
    """That of a layer."""
    rows = layer.rows
    if isinstance(rows, StateRows):
        return _States(rows)
    assert isinstance(rows, KVRows)
    return _Pools(rows.pools)


class _Pools:
    """Keys and values: codes, or the floats that are kept of them and codes that wait; and what is
    read of rows' beginnings elsewhere."""

    def __init__(self, pools: list[Pool]) -> None:
        self._pools = pools

    @property
    def form(self) -> tuple[Any, ...] | None:
        if not all(pool.floats.begun for pool in self._pools):
            return None
        return tuple(
            (
                pool.shape,
                pool.floats.copy is None,
                tuple(array.shape for array in pool.floats.kept_prefix),
                pool.trunk.ranges,
            )
            for pool in self._pools
        )

    @property
    def arrays(self) -> list[Any]:
        """Of each slab its own, [cells, dim] or [sides, slots, kv_heads, capacity, width] by name;
        the prefix that is kept, [1, kv_heads, tokens, dim]; and those of its trunk, piece by piece,
        [sides, 1, kv_heads, tokens, width] by name."""
        return [
            (_own(pool), list(pool.floats.kept_prefix), pool.trunk.arrays) for pool in self._pools
        ]

    @contextmanager
    def standing_in(self, arrays: list[Any]) -> Iterator[None]:
        """Of each slab as `arrays` are."""
        with ExitStack() as stack:
            for pool, some in zip(self._pools, arrays, strict=True):
                stack.enter_context(_made_of(pool, some))
            yield

    @property
    def outcome(self) -> list[tuple[list[mx.array], list[mx.array]]]:
        """Of each slab its own arrays, and what waits, [sides, n, kv_heads, T, width]."""
        copies = [pool.floats.copy for pool in self._pools]
        waiting = [[] if copy is None else copy.waiting for copy in copies]
        return list(zip(map(_own, self._pools), waiting, strict=True))

    def accept(self, outcome: list[tuple[list[mx.array], list[mx.array]]]) -> None:
        """Of each slab as `outcome` is: [cells, dim], or [sides, slots, kv_heads, capacity,
        width] by name."""
        for pool, (arrays, waiting) in zip(self._pools, outcome, strict=True):
            if pool.floats.copy is None:
                pool.stored.update(zip(pool.stored, arrays, strict=True))
            else:
                pool.floats.copy.accept(arrays[0], waiting)


def _own(pool: Pool) -> list[mx.array]:
    copy = pool.floats.copy
    return list(pool.stored.values()) if copy is None else [copy.flat]


@contextmanager
def _made_of(pool: Pool, arrays: Any) -> Iterator[None]:
    own, prefix, trunk = arrays
    stored, floats, begins = dict(pool.stored), pool.floats, pool.trunk
    try:
        # With floats it has no codes: whoever reads them would read those of another step.
        pool.stored.clear()
        if floats.copy is None:
            pool.stored.update(zip(stored, own, strict=True))
        pool.floats, pool.trunk = floats.stand_in(own[0], prefix), begins.stand_in(trunk)
        yield
    finally:
        pool.stored.clear()
        pool.stored.update(stored)
        pool.floats, pool.trunk = floats, begins


class _States:
    """States, which are not written in place: those before a step are kept."""

    def __init__(self, rows: StateRows) -> None:
        self._rows = rows

    @property
    def form(self) -> tuple[Any, ...] | None:
        shapes = [None if states is None else states[0].shape for states in self._rows.now]
        return None if None in shapes else tuple(shapes)

    @property
    def arrays(self) -> list[Any]:
        return list(self._rows.now)

    @contextmanager
    def standing_in(self, arrays: list[Any]) -> Iterator[None]:
        now, self._rows.now = self._rows.now, [list(states) for states in arrays]
        try:
            yield
        finally:
            self._rows.now = now

    @property
    def outcome(self) -> list[Any]:
        return self.arrays

    def accept(self, outcome: list[Any]) -> None:
        self._rows.now = list(outcome)
