"""An agent's memory as other programs write it: one neutral form, and what every format shares.
Pure: any thread.

    registry.py       which formats there are; a memory to a file, and a file to a memory
    format_*.py      one format each: `encode` and `decode`
    fields.py        a file's tensors and metadata, asked for one by one
    kv_arrays.py     the store's segments to each layer's arrays, and back

Everything here is bytes and NumPy. NumPy has no bfloat16: its bits travel as uint16, the
dtype's name beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvactors.persistence.errors import ModelMismatch

__all__ = [
    "PLAIN",
    "Arrays",
    "Imported",
    "LayerLayout",
    "LayoutUnsupported",
    "PortableMemory",
    "Target",
    "Tensor",
    "accepted",
    "parse_layout",
    "to_float32",
]

PLAIN = {"U32": "<u4", "I32": "<i4", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
# Float dtypes whose every number is one of the other dtype too.
_WIDENS = (("F16", "F32"), ("BF16", "F32"))


class Tensor(NamedTuple):
    """A NumPy array and its safetensors dtype."""

    dtype: str
    array: NDArray[Any]

    def widened(self, dtype: str) -> Tensor:
        """The same numbers in `dtype`, which must be one that it `accepts`."""
        return self if self.dtype == dtype else Tensor(dtype, to_float32(self))


Arrays = Mapping[str, Tensor]
"""One layer's KV by name, each [2, kv_heads, tokens, width], keys before values: "codes",
"scales" and "biases" where it is quantized, "values" where it is float."""


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """One layer of the layout JSON (kvactors.core.arena.wire). `bits` None: kept in float."""

    kind: str
    kv_heads: int
    head_dim: int
    bits: int | None
    group_size: int | None
    dtype: str

    @property
    def float_dtype(self) -> str:
        """safetensors name of the dtype of its scales, or of its numbers."""
        return _FLOATS[self.dtype]

    def widths(self) -> dict[str, tuple[str, int]]:
        """Name -> (safetensors dtype, last dimension) of its arrays."""
        if self.bits is None or self.group_size is None:
            return {"values": (self.float_dtype, self.head_dim)}
        groups = self.head_dim // self.group_size
        return {
            "codes": ("U32", self.head_dim * self.bits // 32),
            "scales": (self.float_dtype, groups),
            "biases": (self.float_dtype, groups),
        }


@dataclass(frozen=True, slots=True)
class PortableMemory:
    """What one agent remembers under one model: tokens, and KV of the first `covered`."""

    agent_id: str
    model: str
    """The model's name."""
    model_type: str
    """Its architecture; "" where no model is loaded that could tell."""
    fingerprint: str
    """Identity of the KV."""
    token_ids: tuple[int, ...]
    text: str
    covered: int
    layout: tuple[LayerLayout, ...]
    layers: tuple[Arrays, ...]

    def metadata(self) -> dict[str, str]:
        """What every format carries, so that an import can tell what it has before it."""
        return {
            "agent_id": self.agent_id,
            "model_id": self.model,
            "total_tokens": str(self.covered),
            "token_sequence": json.dumps(self.token_ids),
        }


@dataclass(frozen=True, slots=True)
class Imported:
    """What a file held, checked against its target: KV of the first `covered` tokens.

    Layers whose arrays are "values" although the target quantizes them wait for that.
    """

    token_ids: tuple[int, ...]
    covered: int
    layers: tuple[Arrays, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The loaded model that a file must fit."""

    model: str
    """Its name."""
    model_type: str
    """Its architecture, as its configuration names it."""
    fingerprint: str
    layout: tuple[LayerLayout, ...]
    vocab_size: int
    context: int
    """Tokens."""
    max_bytes: int
    """Of a file that is worth reading."""
    trusted: bool = False
    """Whether KV of which the file names no model is this model's: whoever imports it says so."""

    def check_model(self, model: str, fingerprint: str, *, field: str) -> None:
        """The KV must be this model's: by fingerprint, else by the last part of its name, else
        because it is `trusted` to be.

        Raises ModelMismatch naming `field`.
        """
        if fingerprint:
            if fingerprint != self.fingerprint:
                raise ModelMismatch(
                    "fingerprint",
                    f"the KV is {fingerprint}'s and the loaded model is {self.fingerprint}: load "
                    "the model it came from, with the same dtype and KV settings",
                )
        elif not model and self.trusted:
            return
        elif not model:
            raise ModelMismatch(
                field,
                f"the file does not say of which model its KV is: if of {self.model!r}, which is "
                "loaded, import it with of_this_model=True (--of-this-model)",
            )
        elif _last_part(model) != _last_part(self.model):
            raise ModelMismatch(
                field,
                f"the KV is of {model!r} and the loaded model is {self.model!r}: load that one "
                "(or give this one its name with model_name)",
            )

    def check(self, field: str, found: Any, expected: Any) -> None:
        """Raise ModelMismatch naming the field unless what was `found` is what is `expected`."""
        if found != expected:
            raise ModelMismatch(field, f"{found!r} in the file, {expected!r} in the loaded model")


class LayoutUnsupported(Exception):
    """A model with layers that the formats of one file have no place for."""


def parse_layout(layout: str) -> tuple[LayerLayout, ...]:
    """The layers of a layout JSON. Raises LayoutUnsupported for layers that no format but the
    archive can hold, ValueError for JSON of another form."""
    try:
        return tuple(_parse_layer(layer) for layer in json.loads(layout)["layers"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"a layout of another form: {error!r}") from error


def _parse_layer(layer: Mapping[str, Any]) -> LayerLayout:
    if "window" in layer or "states" in layer:
        raise LayoutUnsupported(
            f"{layer['kind']} layers, of which checkpoints are kept instead of every token's KV"
        )
    dims, bits = (layer["key_dim"], layer["value_dim"]), (layer["key_bits"], layer["value_bits"])
    if dims[0] != dims[1] or bits[0] != bits[1]:
        raise LayoutUnsupported(f"layers whose keys and values differ: dims {dims}, bits {bits}")
    return LayerLayout(
        layer["kind"], layer["kv_heads"], dims[0], bits[0], layer["group_size"], layer["dtype"]
    )


def accepted(dtype: str) -> tuple[str, ...]:
    """The float dtypes whose every number is one of `dtype` too, itself first."""
    return (dtype, *(narrow for narrow, wide in _WIDENS if wide == dtype))


def to_float32(tensor: Tensor) -> NDArray[np.float32]:
    """The numbers of a float tensor, exactly."""
    if tensor.dtype == "BF16":
        return (tensor.array.astype("<u4") << 16).view("<f4")
    return tensor.array.astype("<f4")


def _last_part(model: str) -> str:
    return model.replace("\\", "/").rstrip("/").rpartition("/")[2]
