"""The identity of a model's KV: two models share it only if they would compute the same KV.
Pure: any thread.

It covers architecture, weights, quantization, tokenizer, chat template and cache format. A
mismatch is a miss, never a wrong answer.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash
from mlx.utils import tree_flatten

from kvactors.core.conversation.token_text import TokenText, vocabulary
from kvactors.core.quant.device import bits_of

__all__ = ["adapter_numbers", "described", "fingerprint", "tokenizer_identity", "weights_hash"]

# Of a tokenizer that has no vocabulary to show.
TRIED_IDS = 4096
PROBES = (
    "The quick brown fox jumps over 13 lazy dogs: def f(x): return {'a': x + 0.5}",
    "Größe, déjà vu; Москва, 日本語, 🦊\r\n\t",
)


def weights_hash(model: Any) -> str:
    """Hash of every parameter's name, shape, dtype and bytes (about 30 GB/s in memory)."""
    state = xxhash.xxh3_128()
    for name, array in sorted(tree_flatten(model.parameters())):
        state.update(f"{name} {array.shape} {array.dtype}".encode())
        state.update(np.ascontiguousarray(np.array(bits_of(array), copy=False)).data)
    return state.hexdigest()


def adapter_numbers(model: Any) -> dict[str, float]:
    """What mlx-lm's adapters compute with beside their weights, by name: LoRA's scale."""
    return {
        f"{place}.{name}": value
        for place, module in model.named_modules()
        if type(module).__module__.startswith("mlx_lm.tuner.")
        for name, value in vars(module).items()
        if isinstance(value, int | float) and not name.startswith("_")
    }


def tokenizer_identity(tokenizer: Any) -> str:
    """Hash of what turns text into ids."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is not None:
        return _hash(inner.to_str())
    known = vocabulary(tokenizer) or _tried(TokenText(tokenizer))
    return _hash(type(tokenizer).__name__ + json.dumps(known, sort_keys=True, default=str))


def _tried(text: TokenText) -> list[Any]:
    """What stands for a vocabulary that nobody can read: what the first ids say, and the ids of
    some texts; None where the tokenizer fails."""
    told = [_or_none(text.decode, [token]) for token in range(TRIED_IDS)]
    return [told, *(_or_none(text.encode, probe) for probe in PROBES)]


def _or_none(call: Callable[[Any], Any], given: Any) -> Any:
    try:
        return call(given)
    except Exception:
        return None


def described(value: Any) -> str:
    """The repr of a value, which is the same in each process: of an object that has none of its
    own, what it holds."""
    shown: Any = type(value).__repr__
    if shown is not object.__repr__:
        return repr(value)
    held = sorted(getattr(value, "__dict__", {}).items())
    return f"{type(value).__name__} {[(name, described(part)) for name, part in held]}"


def fingerprint(**parts: Any) -> str:
    """Hash of named parts, each of which has a JSON form."""
    return _hash(json.dumps(parts, sort_keys=True))


def _hash(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))
