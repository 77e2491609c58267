"""A model of the size of Llama 3 8B with random weights, on a GPU with 50 GB for three of it.

    python -m kvactors.bench.experiments.full_size [--quick] [--model M] [--page PAGE] [--plot PNG]

Regime: a decode step of one agent and of many, at 4 bits, beside mlx-lm's BatchGenerator over float
caches of the same tokens; and the first token of a prompt, beside mlx-lm in the chunks that it is
fastest with. mlx-lm has a process and a model of its own on the same GPU, and takes turns; the
bench has one more. Medians
and the quartiles of the ratios, as they come and in a table; with `--quick` a small model, and a
part of the agents and tokens.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvactors.bench.experiments.experiment import Experiment, Row, begin, figure
from kvactors.bench.random_model import endless_llama, unnamed
from kvactors.bench.regime import FLOAT_THERE, Outcome, Regime, run
from kvactors.bench.table.decoding import against_batch
from kvactors.bench.table.prefill import against_float

__all__ = ["full_size_llama", "main"]

DESCRIPTION = (
    "random llama, bfloat16, 32 layers, hidden 4096, 32 heads, 8 KV heads, head dim 128, "
    "feed-forward 14336, vocabulary 8,192"
)
STEPS = ((1, 4096), (32, 2048))


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
    """Measure, print a table and a JSON line, draw if asked to."""
    asked = begin("full_size", __doc__, arguments, full_size_llama, DESCRIPTION)
    if asked.quick and asked.model == DESCRIPTION:
        source, told = unnamed(quick=True)
        asked = replace(asked, setup=replace(asked.setup, source=source), model=told)
    steps = [
        (f"a step of {agents} x {tokens:,}", against_batch(agents, tokens))
        for agents, tokens in STEPS
    ]
    lines = (*steps, ("the first token of 4,096", against_float))
    found = [_measured(asked, name, measure) for name, measure in lines]
    rows = [_row(each) for each in found]
    asked.show("Decode steps and first tokens at full size, beside mlx-lm.", rows)
    if asked.plot is not None:
        figure(asked.plot, lambda axes: _draw(axes, found))
    asked.end(rows)


def _measured(asked: Experiment, name: str, measure: Callable[..., Any]) -> Outcome:
    found = run(Regime(name, "mlx-lm, float", 1.0, measure, differ=FLOAT_THERE), asked.setup)
    print("  ".join(found.row()[:6]), found.cannot, file=sys.stderr, flush=True)
    return found


def _row(found: Outcome) -> Row:
    """One line, which says why where it cannot be."""
    name, told = (
        found.regime.name,
        f"{found.ratio:.3g} ({found.spread[0]:.3g}-{found.spread[1]:.3g})",
    )
    if found.cannot or found.invalid:
        return {"what": name, "ours_s": None, "mlx_lm_s": None, "ratio": found.verdict}
    return {"what": name, "ours_s": found.ours, "mlx_lm_s": found.theirs, "ratio": told}


def _draw(axes: Any, found: Sequence[Outcome]) -> None:
    axes.bar([each.regime.name for each in found], [each.ratio for each in found])
    axes.axhline(1, color="grey", linestyle="--")
    axes.set(ylabel="of what mlx-lm takes")


if __name__ == "__main__":
    main()
