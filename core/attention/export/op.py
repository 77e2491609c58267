"""`kvcache::update_and_attend`: what a torch model calls in place of attention [cache-family, 3.1].

    out = update_and_attend(q, k, v, position, layer_id, scale, out_dtype)

    q          [1, heads, T, dim]      the positions applied to them, as to the keys
    k, v       [1, kv_heads, T, dim]   of the new tokens
    position   [T] or [T, 1]           whole numbers, one for each token
    layer_id, scale, out_dtype         constants of the node: which layer, what scores are
                                       multiplied by, the dtype of the result

Store, attend, return [1, heads, T, dim]. To whoever traces, it is a function of tensors. What is
remembered, where, and who sees it is the matter of the cache that runs it, so the same graph is
prefill, decode, many sequences, and trees. On the thread that runs the program.
"""

from typing import Any

import torch
from torch import Tensor

from kvactors.core.attention.export.cells import who_answers

__all__ = ["ARGUMENTS", "traced", "update_and_attend"]

ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor position, int layer_id, float scale, ScalarType out_dtype"
)


def _eager(q: Tensor, k: Tensor, v: Tensor, position: Tensor, *constants: Any) -> Tensor:
    layer_id, scale, out_dtype = constants
    return who_answers().update_and_attend(
        (q, k, v), position.flatten().tolist(), layer_id=layer_id, scale=scale, out_dtype=out_dtype
    )


def traced(q: Tensor, k: Tensor, v: Tensor, position: Tensor, *constants: Any) -> Tensor:
    """What tracers see: a tensor like `q`, of the dtype that the nodes behind it are built for,
    whatever `k`, `v` and `position` are. The last of the `constants` is that dtype."""
    _, _, out_dtype = constants
    return q.new_empty(q.shape, dtype=out_dtype)


update_and_attend = torch.library.custom_op(
    "kvcache::update_and_attend", _eager, mutates_args=(), schema=f"({ARGUMENTS}) -> Tensor"
)
"""The op. Somebody else's of this name is replaced, and replaces this one: the last one stands."""
update_and_attend.register_fake(traced)
