"""mlx-lm as it is used without a cache between turns: all that was said is prefilled each time.

What takes a `model` first runs in a process of its own (`peer_process`).
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvactors.bench import peers

__all__ = ["Turn", "Turns", "uncached"]


class Turn(NamedTuple):
    """Seconds to the first token and to the last one, and the tokens."""

    first_s: float
    total_s: float
    tokens: tuple[int, ...]


Turns = Callable[[list[int], int], Turn]


def uncached(model: Any, longest: Sequence[int], ends: Sequence[int] = ()) -> Turns:
    """One turn of mlx-lm's `generate_step` of `model`: a whole prompt, and at most so many tokens
    behind it, up to one of `ends`. Float caches, in the chunks that are fastest for the `longest`
    prompt."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    chunk = peers.best_chunk(model, longest)

    def turn(prompt: list[int], decoded: int) -> Turn:
        begin, first, tokens = time.perf_counter(), 0.0, list[int]()
        steps = generate_step(mx.array(prompt), model, max_tokens=decoded, prefill_step_size=chunk)
        for token, _ in steps:
            first = first or time.perf_counter()
            if token in ends:
                break
            tokens.append(int(token))
        return Turn(first - begin, time.perf_counter() - begin, tuple(tokens))

    return turn
