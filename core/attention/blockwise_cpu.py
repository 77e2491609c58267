"""Attention of many queries on the CPU: block by block, with NumPy's exponentials. GPU thread.

On x86 an exponential costs MLX 16 ns, NumPy less than 1, and a prefill over thousands of keys is
little else. So the scores of some queries at a time are computed by MLX, become weights in place,
through the view of its buffer that MLX gives NumPy, and are summed by MLX again. While NumPy has
one block MLX computes the next, and the sums of the last: few are there at a time, and the keys no
longer than scores are left to compute. A block is small enough to stay in memory that the process
has already: fresh pages cost as much as a product. Keys that no query of a block sees are left out
of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from kvactors.core.attention.plan import Mask

__all__ = ["BLOCK_BYTES", "attend_in_blocks"]

# Scores of one block.
BLOCK_BYTES = 8 * 2**20
# Of a single block, from which two halves of it are worth more operations.
_HALVED_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class _Block:
    """`scores` float32 [rows, heads of keys, repeats * T, keys], which MLX is computing; `hidden`
    [rows, 1, T, keys] is true where a query does not see a key, None where it sees all; the
    `values` of these keys, the `sinks` of these heads, if any, and `repeats` of heads."""

    scores: mx.array
    hidden: np.ndarray | None
    values: mx.array
    sinks: mx.array | None
    repeats: int

    def attended(self, following: "_Block | None") -> mx.array:
        """The sums of values, [rows, heads, T, value_dim], which MLX computes from now on, or when
        it has the scores of the `following` block: who needed keys last lets go of them first."""
        total = _exponentiate(self.scores, self.hidden, self.repeats, self.sinks)
        if following is not None:
            mx.eval(following.scores)
        out = (self.scores @ self.values) / total
        rows, heads, asked, dim = out.shape
        out = out.reshape(rows, heads * self.repeats, asked // self.repeats, dim)
        mx.async_eval(out)  # type: ignore[no-untyped-call]
        return out


def attend_in_blocks(
    queries: mx.array,
    floats: Callable[[], tuple[mx.array, mx.array]],
    scale: float,
    mask: Mask = None,
    sinks: mx.array | None = None,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> mx.array:
    """Attention of float32 [rows, heads, T, dim] queries over keys and values, [rows, kv_heads, E,
    dim] each, which `floats` makes: who holds them too keeps them for longer than is needed. Scores
    are products times `scale`.

    `mask` is boolean and broadcasts to [rows, 1, T, E], or "causal"; `sinks` [heads] are scores
    that take weight and have no value; `block_bytes` of scores are a block. Returns
    [rows, heads, T, value_dim]; what it needs is evaluated, or about to be.
    """
    heads = queries.shape[1]
    ahead = _blocks(queries * scale, *floats(), mask, sinks, block_bytes)
    parts: list[mx.array] = []
    block: _Block | None = next(ahead)
    while block is not None:
        following = next(ahead, None)
        parts.append(block.attended(following))
        block = following
    axis = 2 if parts[0].shape[1] == heads else 1
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis)


def _blocks(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    mask: Mask,
    sinks: mx.array | None,
    block_bytes: int,
) -> Iterator[_Block]:
    """Scores that MLX has begun: of some queries after others, or of one half of the heads after
    the other. Parameters are as above, and `queries` have their scale."""
    rows, heads, tokens, dim = queries.shape
    kv_heads, extent = keys.shape[1:3]
    repeats, size = heads // kv_heads, 4 * rows * heads * extent
    # Query heads that share a KV head become rows of one product, not copies of the keys.
    folded = queries.reshape(rows, kv_heads, repeats, tokens, dim)
    width = max(1, block_bytes // size)
    # One block is made two: of some heads, then of the others.
    split = 2 if width >= tokens and kv_heads > 1 and tokens * size >= _HALVED_BYTES else 1
    groups = [slice(n * kv_heads // split, (n + 1) * kv_heads // split) for n in range(split)]
    # At once: later it would wait for what MLX computes by then.
    sees: np.ndarray | str | None = None if mask is None else "causal"
    if isinstance(mask, mx.array):
        sees = np.asarray(mx.broadcast_to(mask, (rows, 1, tokens, extent)))
    begins = range(0, tokens, width)
    for begin in begins:
        asked = folded[:, :, :, begin : begin + width]
        first, last, hidden = _seen(sees, begin, asked.shape[3], (tokens, extent))
        for some in groups:
            scores = asked[:, some].flatten(2, 3) @ keys[:, some, first:last].swapaxes(-1, -2)
            mx.async_eval(scores)  # type: ignore[no-untyped-call]
            own = None if sinks is None else sinks.reshape(kv_heads, repeats)[some]
            if begin == begins[-1] and some is groups[-1]:
                # The values become floats next.
                del keys
            yield _Block(scores, hidden, values[:, some, first:last], own, repeats)


def _seen(
    sees: np.ndarray | str | None, begin: int, count: int, shape: tuple[int, int]
) -> tuple[int, int, np.ndarray | None]:
    """What `count` queries from `begin` on see, of [T, E] as `shape` says: the keys [first, last),
    and which of these are hidden from them, [rows, 1, count, last - first]. `sees` is a mask as
    above, or [rows, 1, T, E]."""
    tokens, extent = shape
    if sees is None:
        return 0, extent, None
    if isinstance(sees, str):
        ends = np.arange(begin, begin + count) + extent - tokens
        last = int(ends[-1]) + 1
        return 0, last, (np.arange(last) > ends[:, None])[None, None]
    seen = sees[:, :, begin : begin + count]
    used = np.flatnonzero(seen.any(axis=(0, 1, 2)))
    first, last = (int(used[0]), int(used[-1]) + 1) if used.size else (0, extent)
    return first, last, ~seen[..., first:last]


def _exponentiate(
    scores: mx.array, hidden: np.ndarray | None, repeats: int, sinks: mx.array | None
) -> mx.array:
    """Turn float32 [rows, kv_heads, repeats * T, E] scores into exponentials, in place; returns
    their sums [rows, kv_heads, repeats * T, 1]. Nobody else may hold the scores. `hidden`
    [rows, 1, T, E] is true where a query does not see a key; `sinks` are as above."""
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
