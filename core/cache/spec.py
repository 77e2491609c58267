"""What a model caches: one LayerSpec per layer cache, derived from the model.
Pure: any thread.

Kinds of layer cache, by what they can do:

    full        keys and values of every token; may be cut anywhere
    latent      the same, of one compressed vector that the keys and values are made from
    sliding     of the last `window` tokens; may be cut back by less than a block
    recurrent   state of fixed size, in float; stands where its last token left it

The last two are stored as checkpoints at the ends of turns: their past cannot be had of them.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from kvactors.core.cache.blocks import BLOCK_TOKENS, block_floor
from kvactors.core.cache.slots import EXTENT_STEP
from kvactors.core.errors import GroupSizeMismatch, InvalidConfig

__all__ = [
    "DTYPE_BYTES",
    "NO_FORM",
    "UNUSED",
    "KVForm",
    "LayerSpec",
    "ModelCacheSpec",
    "Side",
    "choose_group_size",
]

UNUSED = -1
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}


@dataclass(frozen=True, slots=True)
class Side:
    """How the keys, or the values, of one layer are stored. `bits` None keeps them in float."""

    dim: int
    bits: int | None
    group_size: int | None

    def bytes_per_head(self, dtype: str) -> int:
        """Bytes of one token and KV head."""
        if self.bits is None or self.group_size is None:
            return self.dim * DTYPE_BYTES[dtype]
        return self.dim * self.bits // 8 + self.dim // self.group_size * 2 * DTYPE_BYTES[dtype]


@dataclass(frozen=True)
class LayerSpec:
    """Geometry and precision of one layer's cache. `bits` None keeps it in float.

    `head_dim`, `bits` and `group_size` are those of the keys, and of the values too unless
    `values` says otherwise. `window` counts the tokens that a query sees, itself included.
    `plain`: the model's attention bypasses the seam and is given float arrays. `states` are
    the (shape, dtype) of a recurrent layer's arrays, of one row.
    """

    kind: str
    kv_heads: int
    head_dim: int
    bits: int | None
    group_size: int | None
    dtype: str
    values: Side | None = None
    window: int | None = None
    plain: bool = False
    states: tuple[tuple[tuple[int, ...], str], ...] = ()

    # Steps ask for these, of each layer.
    @cached_property
    def sides(self) -> tuple[Side, Side]:
        """How keys and values are stored."""
        keys = Side(self.head_dim, self.bits, self.group_size)
        return keys, self.values or keys

    @property
    def why_even(self) -> str:
        """Why rows must take as many tokens each in a forward; empty: they need not."""
        if self.kind == "recurrent":
            return "a state takes the tokens of a step in turn"
        if self.kind == "latent":
            return "the model attends itself, to one token otherwise than to several"
        return "the model attends itself, over floats of all rows together" if self.plain else ""

    @property
    def checkpointed(self) -> bool:
        """Whether it is stored as checkpoints rather than token by token."""
        return self.window is not None or bool(self.states)

    @cached_property
    def cells(self) -> int | None:
        """Tokens that a row holds at most: the window and a block more; None for all."""
        if self.window is None:
            return None
        return -(-(self.window + BLOCK_TOKENS) // EXTENT_STEP) * EXTENT_STEP

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's state, with the state before the last step."""
        total = 0
        for shape, dtype in self.states:
            numbers = 2
            for size in shape:
                numbers *= size
            total += numbers * DTYPE_BYTES[dtype]
        return total

    def bytes_per_token(self) -> int:
        """Bytes that keys and values of one token take in this layer."""
        return self.kv_heads * sum(side.bytes_per_head(self.dtype) for side in self.sides)

    def float_layer(self) -> "LayerSpec":
        """The same layer with everything kept in float."""
        keys, values = (replace(side, bits=None, group_size=None) for side in self.sides)
        return replace(self, bits=None, group_size=None, values=None if keys == values else values)

    def bytes_of(self, tokens: int) -> int:
        """Bytes of a row of so many tokens."""
        held = tokens if self.cells is None else min(tokens, self.cells)
        return held * self.bytes_per_token() + (self.row_bytes if tokens else 0)

    def checkpoint_bytes(self, tokens: int) -> int:
        """Bytes of a checkpoint at the end of so many tokens."""
        held = 0 if self.window is None else min(tokens, self.window)
        return held * self.bytes_per_token() + (self.row_bytes // 2 if tokens else 0)


@dataclass(frozen=True)
class ModelCacheSpec:
    """Everything the engine knows of a model's memory; no tensor, no model name.

    `vocab_size` counts the rows of the embedding, `context` tokens. `nesting` says how the
    model wants its caches: for each, how many of `layers` it lists, 0 for one by itself, UNUSED
    for one that it makes and never fills.
    `masks` is the form of mask that attention in float asks for. Unless `batched`, rows run one
    by one: the model is wrong with rows at different positions, or their sums must not depend
    on the neighbours' lengths. `even` says why rows must take as many tokens each in a forward
    though no layer asks for it; empty: they need not.
    """

    layers: tuple[LayerSpec, ...]
    vocab_size: int
    context: int
    nesting: tuple[int, ...] = ()
    masks: str = "rows"
    batched: bool = True
    even: str = ""

    # Steps ask for these.
    @cached_property
    def bytes_per_token(self) -> int:
        """Bytes that each further token takes, over the layers that keep every token."""
        return sum(layer.bytes_per_token() for layer in self.layers if not layer.checkpointed)

    @property
    def float_bytes_per_token(self) -> int:
        """The same in the model's own float dtype."""
        return self.in_float().bytes_per_token

    def in_float(self) -> "ModelCacheSpec":
        """The same with everything kept in float."""
        return replace(self, layers=tuple(layer.float_layer() for layer in self.layers))

    @cached_property
    def checkpointed(self) -> bool:
        """Whether some layer is stored as checkpoints: caches can only be cut at one."""
        return any(layer.checkpointed for layer in self.layers)

    @cached_property
    def recurrent(self) -> bool:
        """Whether some layer has a state."""
        return any(layer.kind == "recurrent" for layer in self.layers)

    @property
    def fixed_chunks(self) -> bool:
        """Whether where a prefill's chunks end shows in the result."""
        return self.recurrent or self.plain

    @cached_property
    def plain(self) -> bool:
        """Whether some layer's attention is given float arrays."""
        return any(layer.plain for layer in self.layers)

    @cached_property
    def flat(self) -> bool:
        """Whether rows may take different numbers of tokens in one forward: every layer attends
        through the seam to keys and values of its own."""
        return self.batched and not self.even and not any(layer.why_even for layer in self.layers)

    @property
    def trunks(self) -> bool:
        """Whether rows may read what they begin with where it is, uncopied, in the layers that keep
        every token: that takes what a flat step does."""
        return self.flat and any(self.by_token)

    @cached_property
    def joined_bytes(self) -> int:
        """Bytes of each token that a row reads where it is, while it is read: of one layer."""
        kept = (layer for layer in self.layers if not layer.checkpointed)
        return max((layer.bytes_per_token() for layer in kept), default=0)

    def bytes_of(self, tokens: int) -> int:
        """Bytes of one row of so many tokens, over all layers."""
        return sum(count * layer.bytes_of(tokens) for layer, count in self._counts)

    def checkpoint_bytes(self, tokens: int) -> int:
        """Bytes of a checkpoint at the end of so many tokens, over all layers."""
        if not self.checkpointed:
            return 0
        return sum(count * layer.checkpoint_bytes(tokens) for layer, count in self._counts)

    def bytes_to_keep(self, tokens: int, have: int) -> int:
        """Bytes that are copied when so many `tokens` of a row become its agent's cache, which has
        `have` of them: whole blocks stay as they are, a checkpoint is a new one, and lives twice
        while its layers are stacked."""
        new = tokens - block_floor(min(have, tokens))
        return self.bytes_per_token * new + 2 * self.checkpoint_bytes(tokens)

    @cached_property
    def by_token(self) -> tuple[bool, ...]:
        """For each group of layers, whether it has something of each token."""
        return tuple(not self.layers[group[0]].checkpointed for group in self.groups())

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Layer indices grouped by equal LayerSpec, in order of first appearance.

        Layers of a group are stacked into one array when a cache leaves the arena:
        Metal limits the number of buffers, not their size.
        """
        return self._groups

    @cached_property
    def _groups(self) -> tuple[tuple[int, ...], ...]:
        found: dict[LayerSpec, list[int]] = {}
        for index, layer in enumerate(self.layers):
            found.setdefault(layer, []).append(index)
        return tuple(tuple(indices) for indices in found.values())

    @cached_property
    def _counts(self) -> tuple[tuple[LayerSpec, int], ...]:
        return tuple((self.layers[group[0]], len(group)) for group in self._groups)


def choose_group_size(head_dim: int, bits: int | None, asked: int | None) -> int | None:
    """The quantization group size of a layer of `head_dim` at `bits`; None keeps it in float.

    `asked` None chooses 64, else 32, else float. Raises GroupSizeMismatch when an explicit
    size does not divide the head dimension, InvalidConfig when it is not 32, 64 or 128.
    """
    if asked is not None and (type(asked) is not int or asked not in (32, 64, 128)):
        raise InvalidConfig(f"group_size must be 32, 64 or 128, not {asked!r}")
    if bits is None or head_dim == 0:
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


@dataclass(frozen=True, slots=True)
class KVForm:
    """One way in which a model's KV is kept: quantized, or in float. `index` counts the forms."""

    index: int
    spec: ModelCacheSpec

    def bytes_of(self, tokens: int) -> int:
        """Bytes of the KV of one agent that has so many tokens."""
        return self.spec.bytes_of(tokens)


NO_FORM = KVForm(0, ModelCacheSpec((), 0, 0))
"""Of a turn that no engine has taken yet."""
