"""Attention of many queries on the CPU: block by block, with NumPy's exponentials. GPU thread.

On x86 an exponential costs MLX 16 ns, NumPy less than 1, and a prefill over thousands of keys is
little else. So the scores of some queries at a time are computed by MLX, become weights in place,
through the view of its buffer that MLX gives NumPy, and are summed by MLX again. A block is small
enough to stay in memory that the process has already: fresh pages cost as much as a product. Keys
that no query of a block sees are left out of it.
"""

import mlx.core as mx
import numpy as np

from kvactors.core.attention.plan import Mask

__all__ = ["BLOCK_BYTES", "attend_in_blocks", "exponentiate"]

# Scores of one block.
BLOCK_BYTES = 8 * 2**20


def attend_in_blocks(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    mask: Mask = None,
    sinks: mx.array | None = None,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> mx.array:
    """Attention of float32 [rows, heads, T, dim] queries over [rows, kv_heads, E, dim] `keys` and
    `values`; scores are products times `scale`.

    `mask` is boolean and broadcasts to [rows, 1, T, E], or "causal"; `sinks` [heads] are scores
    that take weight and have no value; `block_bytes` of scores are a block. Returns
    [rows, heads, T, value_dim]; what it needs is evaluated.
    """
    rows, heads, tokens, dim = queries.shape
    kv_heads, extent = keys.shape[1:3]
    # Query heads that share a KV head become rows of one product, not copies of the keys.
    folded = (queries * scale).reshape(rows, kv_heads, -1, tokens, dim)
    turned = keys.swapaxes(-1, -2)
    sees = None
    if isinstance(mask, mx.array):
        sees = np.asarray(mx.broadcast_to(mask, (rows, 1, tokens, extent)))
    width = max(1, block_bytes // (4 * rows * heads * extent))
    parts = []
    for begin in range(0, tokens, width):
        block = folded[:, :, :, begin : begin + width]
        first, last, hidden = 0, extent, None
        if sees is not None:
            seen = sees[:, :, begin : begin + width]
            used = np.flatnonzero(seen.any(axis=(0, 1, 2)))
            if used.size:
                first, last = int(used[0]), int(used[-1]) + 1
            hidden = ~seen[..., first:last]
        elif mask is not None:
            ends = np.arange(begin, begin + block.shape[3]) + extent - tokens
            last = int(ends[-1]) + 1
            hidden = (np.arange(last) > ends[:, None])[None, None]
        scores = block.flatten(2, 3) @ turned[..., first:last]
        total = exponentiate(scores, hidden, block.shape[2], sinks)
        out = (scores @ values[:, :, first:last]) / total
        parts.append(out.reshape(rows, heads, block.shape[3], -1))
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=2)


def exponentiate(
    scores: mx.array, hidden: np.ndarray | None, repeats: int, sinks: mx.array | None
) -> mx.array:
    """Turn float32 [rows, kv_heads, repeats * T, E] scores into exponentials, in place; returns
    their sums [rows, kv_heads, repeats * T, 1]. Nobody else may hold the scores. `hidden`
    [rows, 1, T, E] is true where a query does not see a key; `sinks` as above."""
    mx.eval(scores)
    rows, kv_heads, tokens, extent = scores.shape
    view = np.array(scores, copy=False)
    # No copy: what is written must reach MLX's buffer.
    view = view.reshape(rows, kv_heads, repeats, tokens // repeats, extent, copy=False)
    if hidden is not None and (some := np.flatnonzero(hidden.any(axis=(0, 1, 2)))).size:
        part = slice(some[0], some[-1] + 1)
        np.copyto(view[..., part], -np.inf, where=hidden[:, :, None, :, part])
    top = view.max(axis=-1, keepdims=True)
    total = 0.0
    if sinks is not None:
        sink = np.array(sinks.astype(scores.dtype)).reshape(1, kv_heads, repeats, 1, 1)
        top = np.maximum(top, sink)
        total = np.exp(sink - top)
    # Who sees nothing, or infinities, is not a number, as with MLX.
    with np.errstate(invalid="ignore"):
        view -= top
        np.exp(view, out=view)
        total = total + view.sum(axis=-1, keepdims=True)
    # Left to itself, MLX makes float32 of NumPy's float64.
    return mx.array(total.reshape(rows, kv_heads, -1, 1), scores.dtype)
