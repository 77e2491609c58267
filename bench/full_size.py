"""A model of the size of Llama 3 8B with random weights, on a GPU that has room for it.

    python -m kvactors.bench.full_size [--quick] [--model M] [--page PAGE]

Regime: a decode step of one agent and of many, at 4 bits, beside mlx-lm's BatchGenerator over float
caches of the same tokens; and the first token of a prompt, beside mlx-lm in the chunks that it is
fastest with. mlx-lm has a process and a model of its own on the same GPU, and takes turns. Medians
and the quartiles of the ratios; with `--quick` a small model, and a part of the agents and tokens.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvactors.bench.experiments.experiment import Experiment, Row, begin
from kvactors.bench.random_model import endless_llama, unnamed
from kvactors.bench.regime import FLOAT_THERE, Regime, run
from kvactors.bench.table.decoding import against_batch
from kvactors.bench.table.prefill import against_float

__all__ = ["full_size_llama", "main"]

DESCRIPTION = (
    "random llama, bfloat16, 32 layers, hidden 4096, 32 heads, 8 KV heads, head dim 128, "
    "feed-forward 14336, vocabulary 8,192"
)
CASES = ((1, 4096), (32, 2048))


def full_size_llama() -> tuple[Any, Any]:
    """(model, tokenizer) of 7 billion weights, 14 GB."""
    import mlx.core as mx

    model, tokenizer = endless_llama(
        dtype=mx.bfloat16,
        num_hidden_layers=32,
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=32_768,
    )
    return model, tokenizer


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and a JSON line."""
    asked = begin("full_size", __doc__, arguments, full_size_llama, DESCRIPTION)
    if asked.quick and asked.model == DESCRIPTION:
        source, told = unnamed(quick=True)
        asked = replace(asked, setup=replace(asked.setup, source=source), model=told)
    rows = [
        _row(asked, f"a step of {agents} x {tokens:,}", against_batch(agents, tokens))
        for agents, tokens in CASES
    ]
    rows.append(_row(asked, "the first token of 4,096", against_float))
    asked.show("Decode steps and first tokens at full size, beside mlx-lm.", rows)
    asked.end(rows)


def _row(asked: Experiment, name: str, measure: Callable[..., Any]) -> Row:
    """One line, which says why where it cannot be."""
    found = run(Regime(name, "mlx-lm, float", 1.0, measure, differ=FLOAT_THERE), asked.setup)
    print("  ".join(found.row()[:7]), file=sys.stderr, flush=True)
    if found.cannot or found.invalid:
        return {"what": name, "ours_s": None, "mlx_lm_s": None, "ratio": found.verdict}
    low, high = found.spread
    ratio = f"{found.ratio:.3g} ({low:.3g}-{high:.3g})"
    return {"what": name, "ours_s": found.ours, "mlx_lm_s": found.theirs, "ratio": ratio}


if __name__ == "__main__":
    main()
