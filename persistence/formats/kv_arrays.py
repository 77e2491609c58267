"""The store's segments, whose layers are stacked by group, and each layer's own arrays.

Pure: any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvactors.core.cache.segment import RawTensor
from kvactors.persistence.formats.fields import TensorTable
from kvactors.persistence.formats.neutral import Arrays, LayerLayout, Tensor

__all__ = ["layers_of", "segment_tensors"]


def layers_of(
    parts: Sequence[Sequence[RawTensor]], layout: Sequence[LayerLayout]
) -> tuple[Arrays, ...]:
    """Each layer's arrays from the tensors of contiguous segments, in order.

    "g0.codes" of a segment is [layers, 2, kv_heads, tokens, width]. Raises ImportRejected
    if they are not as the layout says.
    """
    layers: list[dict[str, Tensor]] = [{} for _ in layout]
    tables = [TensorTable(part) for part in parts]
    for number, group in enumerate(_groups(layout)):
        layer = layout[group[0]]
        for name, (dtype, width) in layer.widths().items():
            form = (len(group), 2, layer.kv_heads, None, width)
            found = [table.take(f"g{number}.{name}", (dtype,), form) for table in tables]
            whole = np.concatenate([tensor.array for tensor in found], axis=3)
            for place, index in enumerate(group):
                layers[index][name] = Tensor(dtype, whole[place])
    return tuple(layers)


def segment_tensors(
    layers: Sequence[Arrays], layout: Sequence[LayerLayout], start: int, end: int
) -> tuple[RawTensor, ...]:
    """The tensors of tokens [start, end) of `layers`, in this `layout`: `layers_of` the other
    way."""
    stacked = []
    for number, group in enumerate(_groups(layout)):
        for name, (dtype, _) in sorted(layout[group[0]].widths().items()):
            array = np.stack([layers[index][name].array[:, :, start:end] for index in group])
            stacked.append((f"g{number}.{name}", dtype, array.shape, array.tobytes()))
    return tuple(stacked)


def _groups(layout: Sequence[LayerLayout]) -> list[list[int]]:
    """Layer indices by equal layers, in order of first appearance (core.spec has the same)."""
    found: dict[LayerLayout, list[int]] = {}
    for index, layer in enumerate(layout):
        found.setdefault(layer, []).append(index)
    return list(found.values())
