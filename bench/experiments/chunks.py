"""Chunks of which size a prompt of 20K and of 40K tokens is prefilled in: memory and time.

    python -m kvactors.bench.experiments.chunks [--quick] [--model M] [--plot out.png]

Regime: the engine's own cache and model, without scheduler and actors, in chunks of one size, and
in those that the engine takes, which grow and shrink with what is cached [write-up, 3.4]. mlx-lm:
in a process of its own, a float cache, in chunks of the same sizes. Peaks are what MLX counts above
the model, so the KV itself too. A random llama of 4 layers, hidden 128, two heads; one run each.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from kvactors.bench.experiments.experiment import Experiment, Row, begin, figure
from kvactors.bench.peer_process import Act, in_its_own_process
from kvactors.bench.random_model import VOCABULARY

__all__ = ["flat_llama", "main"]

TOKENS = (20_000, 40_000)
FLAT = "random llama, 4 layers, hidden 128, 2 heads, 2 KV heads, head dim 64"
CHUNKS = (256, 512, 1024, 2048, 4096)
# Seconds, and bytes.
Found = tuple[float, int]


def flat_llama() -> tuple[Any, Any]:
    """(model, tokenizer) with more positions than the longest prompt."""
    from kvactors.core.testing.models import PlainTokenizer, tiny_model

    model = tiny_model(
        vocab_size=VOCABULARY,
        num_hidden_layers=4,
        intermediate_size=256,
        num_attention_heads=2,
        max_position_embeddings=65_536,
    )
    return model, PlainTokenizer(VOCABULARY)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and a JSON line, draw if asked to."""
    run = begin("chunks", __doc__, arguments, flat_llama, FLAT)
    chunks = (32, 64) if run.quick else CHUNKS
    with in_its_own_process(run.setup.source, _theirs) as theirs:
        rows = [
            _row(run, theirs, run.setup.prompt(size), chunk)
            for size in run.sizes(TOKENS)
            for chunk in (*chunks, None)
        ]
    run.show("Prefill of one prompt.", rows)
    if run.plot is not None:
        figure(run.plot, lambda axes: _draw(axes, rows))
    run.end(rows)


def _row(run: Experiment, theirs: Act, prompt: list[int], chunk: int | None) -> Row:
    seconds, peak = _ours(run, prompt, chunk)
    other_seconds, other_peak = theirs(prompt, chunk) if chunk else (None, None)
    return {
        "tokens": len(prompt),
        "chunk": chunk or "the engine's",
        "prefill_s": seconds,
        "peak_mb": peak / 1e6,
        "mlx-lm_prefill_s": other_seconds,
        "mlx-lm_peak_mb": other_peak and other_peak / 1e6,
    }


def _ours(run: Experiment, prompt: list[int], chunk: int | None) -> Found:
    from kvactors.bench.peers import Bare

    return _measured(lambda: Bare(run.setup.loaded, prompt, chunk))


def _theirs(model: Any) -> Callable[[list[int], int], Found]:
    from kvactors.bench.peers import empty_float, fill

    return lambda prompt, chunk: _measured(lambda: fill(model, prompt, empty_float(model), chunk))


def _measured(act: Callable[[], object]) -> Found:
    import mlx.core as mx

    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    begin_s = time.perf_counter()
    act()
    return time.perf_counter() - begin_s, mx.get_peak_memory() - before


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    """The peaks over the sizes, and those of the engine's chunks as lines across."""
    for size in dict.fromkeys(row["tokens"] for row in rows):
        same = [row for row in rows if row["tokens"] == size]
        fixed = [row for row in same if row["mlx-lm_peak_mb"] is not None]
        for name in ("peak_mb", "mlx-lm_peak_mb"):
            label = f"{size:,} tokens, {'mlx-lm' if 'lm' in name else 'kvactors'}"
            axes.plot([r["chunk"] for r in fixed], [r[name] for r in fixed], "o-", label=label)
        axes.axhline(same[-1]["peak_mb"], color="grey", linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="tokens a chunk", ylabel="peak, MB")
    axes.set_title("dashed: the chunks that the engine takes")
    axes.legend()


if __name__ == "__main__":
    main()
