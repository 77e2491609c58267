"""What KV takes in memory and on disk over lengths, at 4 bits and in float16.

    python -m kvactors.bench.experiments.lengths [--quick] [--model M] [--plot out.png]

Regime: one idle agent, in float16 [write-up, 5.3]. In memory: what it holds, as the engine counts
it. On disk: its KV's files. A thin random llama (2 layers, one head of 64), since how much a token
takes does not depend on what it says. By the formula: 4 bits and a scale and a bias for 64 numbers,
of 16 bits [paper, 3.2].
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvactors.bench.experiments.experiment import Experiment, Row, begin, figure
from kvactors.bench.random_model import endless_llama
from kvactors.bench.setup import answer

__all__ = ["main", "thin_llama"]

TOKENS = (1024, 2048, 4096, 8192, 16_384)
GROUP = 64
THIN = "random llama, 2 layers, hidden 64, one head of 64"


def thin_llama() -> tuple[Any, Any]:
    """(model, tokenizer) whose prefill is short."""
    return endless_llama(
        hidden_size=64,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=65_536,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and a JSON line, draw if asked to."""
    run = begin("lengths", __doc__, arguments, thin_llama, THIN)
    rows = [_row(run, size) for size in run.sizes(TOKENS)]
    run.show("KV of one idle agent.", rows)
    if run.plot is not None:
        figure(run.plot, lambda axes: _draw(axes, rows))
    run.end(rows)


def _row(run: Experiment, tokens: int) -> Row:
    quantized, quantized_file = _held(run, tokens, 4)
    plain, plain_file = _held(run, tokens, None)
    return {
        "tokens": tokens,
        "q4_mb": quantized / 1e6,
        "float16_mb": plain / 1e6,
        "q4/float16": quantized / plain,
        "formula": (4 + 2 * 16 / GROUP) / 16,
        "q4_file_mb": quantized_file / 1e6,
        "float16_file_mb": plain_file / 1e6,
    }


def _held(run: Experiment, tokens: int, bits: int | None) -> tuple[int, int]:
    """Bytes of an agent of so many tokens in memory and on disk."""
    # Before there is a system: MLX ends a process badly whose main thread loads a model later.
    prompt = run.setup.prompt(tokens)
    with TemporaryDirectory(prefix="kvactors-bench-") as folder:
        with run.setup.system(store=Path(folder), kv_bits=bits, dtype="float16") as system:
            answer(system.spawn("agent"), prompt).cached.get()
            held = int(system.stats()["hot_bytes"])
        files = (Path(folder) / "kv").rglob("*.*")
        return held, sum(path.stat().st_size for path in files)


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    for name in ("q4_mb", "float16_mb", "q4_file_mb", "float16_file_mb"):
        tokens = [row["tokens"] for row in rows]
        label = name.removesuffix("_mb").replace("_", " ")
        axes.plot(tokens, [row[name] for row in rows], marker="o", label=label)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="MB", title="one idle agent")
    axes.legend()


if __name__ == "__main__":
    main()
