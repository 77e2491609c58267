"""How many bits keys and values are kept at: one policy for a model, by layer or kind. No MLX.

Keys are more sensitive than values (KIVI), and some layers more than others.
"""

import re
from collections.abc import Mapping, Sequence

from kvactors.core.cache.spec import LayerSpec
from kvactors.core.errors import InvalidConfig
from kvactors.core.numbers import whole

__all__ = ["Bits", "KVBits", "bits_of", "check_bits", "check_named"]

Bits = int | str | None
"""4, 8, None (float), or keys and values apart: "k8v4"."""

KVBits = Bits | Mapping[int | str, Bits]
"""Bits of all layers, or by the index of a layer or its kind; others have DEFAULT_BITS."""

DEFAULT_BITS = 4
# Every head reads the one latent, so its errors add up: at 4 bits they move the logits of
# random models three to five times as much as those of keys and values do (bench/LOG.md).
LATENT_BITS = 8
KINDS = ("full", "latent", "sliding")


def check_bits(kv_bits: object) -> None:
    """Raise InvalidConfig for what is no policy."""
    entries = kv_bits if isinstance(kv_bits, Mapping) else {0: kv_bits}
    for key, bits in entries.items():
        index = whole(key)
        if (index is None or index < 0) and key not in KINDS:
            raise InvalidConfig(
                f"kv_bits names layers by index or kind ({', '.join(KINDS)}), not {key!r}"
            )
        _pair(bits)


def check_named(kv_bits: KVBits, layers: Sequence[LayerSpec]) -> None:
    """Raise InvalidConfig where a policy names a layer or kind that the model does not have."""
    if not isinstance(kv_bits, Mapping):
        return
    known = {index for index, layer in enumerate(layers) if layer.kind != "recurrent"}
    kinds = {layer.kind for layer in layers}
    for key in kv_bits:
        if key not in known and key not in kinds:
            raise InvalidConfig(
                f"kv_bits names {key!r}: the model has {len(layers)} layers, {', '.join(kinds)}, "
                "of which those that are recurrent stay in float"
            )


def bits_of(kv_bits: KVBits, index: int, kind: str) -> tuple[int | None, int | None]:
    """Bits that `kv_bits` gives the keys and the values of layer `index`, of this `kind`; latents
    are kept at no less than LATENT_BITS unless the policy names them."""
    if isinstance(kv_bits, Mapping):
        for key in (index, kind):
            if key in kv_bits:
                return _pair(kv_bits[key])
        kv_bits = DEFAULT_BITS
    keys, values = _pair(kv_bits)
    if kind != "latent":
        return keys, values
    return keys and max(keys, LATENT_BITS), values and max(values, LATENT_BITS)


def _pair(bits: object) -> tuple[int | None, int | None]:
    all_of_them = whole(bits)
    if bits is None or all_of_them in (4, 8):
        return all_of_them, all_of_them
    apart = re.fullmatch("k([48])v([48])", bits) if isinstance(bits, str) else None
    if apart is None:
        raise InvalidConfig(
            f'kv_bits must be 4, 8 or None (float), "k8v4", or a mapping of these: {bits!r}'
        )
    return int(apart[1]), int(apart[2])
