"""The load-time probe: two ragged rows must compute what each computes alone.

Some model families are silently wrong when rows of a batch stand at different positions.
They are refused here, not discovered in a conversation. GPU thread.
"""

from typing import Any

import mlx.core as mx

from kvactors.core.arena import Arena
from kvactors.core.errors import ProbeFailed
from kvactors.core.model import LoadedModel

__all__ = ["probe_ragged_rows"]

# Deviations of the logits. Rounding may flip a 4-bit code, which moves logits by some
# percent of their deviation; a row read at a wrong position moves them by whole ones.
TOLERANCE = 0.3
_PROMPTS = ([1, 2, 3, 2, 1], [2, 3, 1, 1, 2, 3, 3, 2, 1])
_STEPS = (1, 2)


def probe_ragged_rows(loaded: LoadedModel) -> None:
    """Raise ProbeFailed unless a batch of two ragged rows agrees with each row alone."""
    try:
        together = _run(loaded, _PROMPTS)
        alone = [_run(loaded, [prompt])[0] for prompt in _PROMPTS]
    except Exception as error:
        raise ProbeFailed(
            f"the model cannot run over a batch cache ({type(error).__name__}: {error}); its "
            "attention may bypass mlx-lm's scaled_dot_product_attention"
        ) from error
    for row, (batched, single) in enumerate(zip(together, alone, strict=True)):
        deviation = float(mx.sqrt(mx.var(single)))
        difference = float(mx.abs(batched - single).max())
        if not difference <= TOLERANCE * max(deviation, 1e-6):
            raise ProbeFailed(
                f"row {row} of a ragged batch differs from the same row alone by {difference:.3g} "
                f"(deviation of the logits {deviation:.3g}): this model family is wrong with "
                "per-row offsets"
            )


def _run(loaded: LoadedModel, prompts: Any) -> list[mx.array]:
    """Prefill each prompt alone, join them, decode two steps; the last logits of each."""
    arena = Arena(loaded.spec, loaded.policy)
    for prompt in prompts:
        alone = Arena(loaded.spec, loaded.policy, max_slabs=1)
        alone.add_row(0, len(prompt))
        alone.forward(loaded.model, mx.array([prompt]))
        arena.take(alone, 0)
    order = sorted(range(len(prompts)), key=lambda row: arena.table.lengths[row])
    logits = mx.zeros(())
    for token in _STEPS:
        logits = arena.forward(loaded.model, mx.full((len(prompts), 1), token))
    rows = logits[:, -1].astype(mx.float32)
    mx.eval(rows)
    by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    found = {index: rows[row] for index, row in zip(by_length, order, strict=True)}
    return [found[index] for index in range(len(prompts))]
