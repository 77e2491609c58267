"""What a model caches: one LayerSpec per layer, derived from the model (seed 000, 3.1)."""

from dataclasses import dataclass

from kvactors.core.errors import GroupSizeMismatch, InvalidConfig

__all__ = ["DTYPE_BYTES", "LayerSpec", "ModelCacheSpec", "choose_group_size"]

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Geometry and precision of one layer's cache. `bits` None keeps it in float."""

    kind: str
    kv_heads: int
    head_dim: int
    bits: int | None
    group_size: int | None
    dtype: str

    def bytes_per_token(self) -> int:
        """Bytes that keys and values of one token take in this layer."""
        numbers = 2 * self.kv_heads * self.head_dim
        if self.bits is None or self.group_size is None:
            return numbers * DTYPE_BYTES[self.dtype]
        scales = numbers // self.group_size * 2
        return numbers * self.bits // 8 + scales * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class ModelCacheSpec:
    """Everything the engine knows of a model's memory; no tensor, no model name.

    `vocab_size` counts the rows of the embedding, `context` tokens.
    """

    layers: tuple[LayerSpec, ...]
    vocab_size: int
    context: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes of KV per token over all layers, as configured."""
        return sum(layer.bytes_per_token() for layer in self.layers)

    @property
    def float_bytes_per_token(self) -> int:
        """The same in the model's own float dtype."""
        return sum(
            2 * layer.kv_heads * layer.head_dim * DTYPE_BYTES[layer.dtype] for layer in self.layers
        )

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Layer indices grouped by equal LayerSpec, in order of first appearance.

        Layers of a group are stacked into one array when a cache leaves the arena:
        Metal limits the number of buffers, not their size.
        """
        found: dict[LayerSpec, list[int]] = {}
        for index, layer in enumerate(self.layers):
            found.setdefault(layer, []).append(index)
        return tuple(tuple(indices) for indices in found.values())


def choose_group_size(head_dim: int, bits: int | None, asked: int | None) -> int | None:
    """The quantization group size of a layer; None keeps the layer in float.

    Unset chooses 64, else 32, else float. Raises GroupSizeMismatch when an explicit
    size does not divide the head dimension, InvalidConfig when it is not 32, 64 or 128.
    """
    if asked is not None and (type(asked) is not int or asked not in (32, 64, 128)):
        raise InvalidConfig(f"group_size must be 32, 64 or 128, not {asked!r}")
    if bits is None:
        return None
    if asked is None:
        return next((size for size in (64, 32) if head_dim % size == 0), None)
    if head_dim % asked:
        fits = next((size for size in (64, 32) if head_dim % size == 0), None)
        advice = f"use group_size={fits}" if fits else "leave group_size unset: float is kept there"
        raise GroupSizeMismatch(
            f"group_size {asked} does not divide the head dimension {head_dim}: {advice}"
        )
    return asked
