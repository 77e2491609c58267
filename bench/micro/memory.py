"""What KV costs in memory: bytes a token, the peak of a long prefill, agents that fit.

    python -m kvactors.bench.micro.memory [--quick] [--plot out.png]

Regime: a random llama of 4 layers (hidden 128, 2 heads of 64). Bytes are what MLX itself counts
above the loaded model. KV of a token: one agent's cache, as it is held while the agent is idle.
Prefill: one prompt in float32, by one forward of all its tokens over mlx-lm's float cache and, at
4 bits, through AgentSystem, with room for any chunk and within a budget. Agents that fit: as many
idle agents as stay in memory, one after the other, until the first is evicted.
"""

import argparse
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvactors.actors import AgentSystem, Sampling
from kvactors.bench.report import print_json, print_table
from kvactors.core import blas
from kvactors.core.model.options import ModelOptions

__all__ = ["kv_row", "main", "peak_chunked", "peak_unchunked", "random_prompt", "small_llama"]

DESCRIPTION = "random llama, 4 layers, hidden 128, 2 heads, 2 KV heads, head dim 64"
VOCABULARY = 1024
GROUP = 64
KV_TOKENS = 512
ITEM_BYTES = {"float16": 2, "float32": 4}
FIRST = Sampling(max_tokens=1)
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables and a JSON line, draw if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short prompt, few agents")
    parser.add_argument("--plot", type=Path, help="write a PNG here (needs kvactors[plot])")
    options = parser.parse_args(arguments)
    quick = options.quick
    prompt, tokens, budget = (1536, 128, 4 << 20) if quick else (12_288, 512, 64 << 20)

    blas.preload()
    kv = [kv_row(dtype, bits, KV_TOKENS) for dtype in ITEM_BYTES for bits in (None, 8, 4)]
    prefill = prefill_rows(prompt)
    agents = [agents_row(bits, tokens, budget) for bits in (None, 8, 4)]

    _show(f"Bytes of KV a token, {KV_TOKENS} tokens.\n{DESCRIPTION}.", kv)
    _show(f"Peak of a prefill of {prompt} tokens", prefill)
    _show(f"Idle agents of {tokens} tokens that fit {budget / 1e6:.1f} MB, in float32", agents)
    found = {"kv": kv, "prefill": prefill, "agents": agents}
    if options.plot is not None:
        draw(found, options.plot)
    print_json("memory", prompt=prompt, tokens=tokens, budget=budget, rows=found)


def _show(title: str, rows: Sequence[Row]) -> None:
    columns = [name.replace("_", " ") for name in rows[0]]
    print_table(title, columns, [list(row.values()) for row in rows])


def small_llama() -> tuple[Any, Any]:
    """(model, tokenizer) for `AgentSystem(model=...)`."""
    from kvactors.core.testing.models import PlainTokenizer, tiny_model

    model = tiny_model(
        vocab_size=VOCABULARY,
        num_hidden_layers=4,
        hidden_size=128,
        intermediate_size=256,
        num_attention_heads=2,
        max_position_embeddings=32_768,
    )
    return model, PlainTokenizer(VOCABULARY)


# -- bytes of a token ----------------------------------------------------------------------


def kv_row(dtype: str, bits: int | None, tokens: int) -> Row:
    """Bytes of KV a token, for `tokens` of this `dtype` at `bits`, by the formula of [paper, 3.2]
    and as MLX has them allocated."""
    from kvactors.core.model.load import load_model

    loaded = load_model(small_llama, ModelOptions(kv_bits=bits, group_size=GROUP, dtype=dtype))
    numbers = sum(2 * layer.kv_heads * layer.head_dim for layer in loaded.spec.layers)
    formula, plain = (_formula(numbers, width, ITEM_BYTES[dtype]) for width in (bits, None))
    measured = _held(loaded, tokens) / tokens
    return {
        "dtype": dtype,
        "bits": bits or "float",
        "formula_bytes": formula,
        "measured_bytes": measured,
        "formula_ratio": formula / plain,
        "measured_ratio": measured / plain,
    }


def _formula(numbers: int, bits: int | None, item_bytes: int) -> float:
    """Bytes of so many keys and values: codes, a scale and a bias a group."""
    if bits is None:
        return float(numbers * item_bytes)
    return numbers * bits / 8 + 2 * numbers / GROUP * item_bytes


def _held(loaded: Any, tokens: int) -> int:
    """What MLX allocates for the KV of `tokens` tokens once they are prefilled."""
    import mlx.core as mx

    from kvactors.core.engine.runner import new_arena

    # What another model left behind would be counted as freed here.
    gc.collect()
    before = mx.get_active_memory()
    arena = new_arena(loaded)
    row = arena.add_row(0, tokens)
    arena.forward(loaded.model, mx.array([random_prompt(tokens)]))
    piece = arena.export(row, 0, tokens)
    del arena
    held = mx.get_active_memory() - before
    assert piece.end == tokens
    return int(held)


def random_prompt(tokens: int, seed: int = 0) -> list[int]:
    """So many tokens of the vocabulary of `small_llama`, by `seed`."""
    found: list[int] = np.random.default_rng(seed).integers(1, VOCABULARY, tokens).tolist()
    return found


# -- a long prompt -------------------------------------------------------------------------


def prefill_rows(tokens: int) -> list[Row]:
    """Peaks of mlx-lm's forward of the whole prompt, of chunks, and of chunks within a budget."""
    unchunked, kv = peak_unchunked(tokens)
    roomy, _ = peak_chunked(tokens)
    budget = max(4 * kv, roomy // 4)
    rows = [
        ("one forward", None, unchunked),
        ("chunks", None, roomy),
        ("chunks within a budget", budget, peak_chunked(tokens, budget=budget)[0]),
    ]
    return [
        {
            "how": how,
            "budget_mb": limit / 1e6 if limit else "-",
            "peak_mb": peak / 1e6,
            "kv_mb": kv / 1e6,
            "of_one_forward": peak / unchunked,
        }
        for how, limit, peak in rows
    ]


def peak_unchunked(tokens: int) -> tuple[int, int]:
    """The peak of mlx-lm's forward of all tokens, and the bytes of their KV at 4 bits."""
    import mlx.core as mx

    from kvactors.bench.peers import empty_float
    from kvactors.core.model.load import load_model

    loaded = load_model(small_llama, ModelOptions(dtype="float32"))

    def forward() -> None:
        cache = empty_float(loaded.model)
        loaded.model(mx.array([random_prompt(tokens)]), cache=cache)
        mx.eval([layer.state for layer in cache])

    return _peak_of(forward), tokens * loaded.spec.bytes_per_token


def peak_chunked(
    tokens: int, budget: int | None = None, kv_bits: int | None = 4
) -> tuple[int, tuple[int, ...]]:
    """The peak of the engine's own prefill of so many `tokens` within a `budget` of bytes, at
    `kv_bits`; and what was answered."""
    options: dict[str, Any] = {"dtype": "float32", "kv_bits": kv_bits, "context": 2 * tokens}
    with AgentSystem(small_llama, store=False, memory_budget=budget, **options) as system:
        prompt, replies = random_prompt(tokens), []
        peak = _peak_of(
            lambda: replies.append(system.spawn("reader").ask(prompt, sampling=FIRST).get())
        )
        return peak, replies[0].token_ids


def _peak_of(act: Callable[[], Any]) -> int:
    """MLX's peak during `act` above what was allocated before."""
    import mlx.core as mx

    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    act()
    return mx.get_peak_memory() - before


# -- idle agents ---------------------------------------------------------------------------


def agents_row(bits: int | None, tokens: int, budget: int) -> Row:
    """How many agents of `tokens` at `bits` are hot when the first is evicted, at a `budget` of
    bytes."""
    with AgentSystem(
        small_llama, store=False, kv_bits=bits, dtype="float32", memory_budget=budget
    ) as system:
        each = system.spec.bytes_per_token * tokens
        stats = system.stats()
        while not stats["evictions"]:
            hot = stats
            number = stats["agents"]
            prompt = random_prompt(tokens, seed=number)
            system.spawn(f"agent {number}").ask(prompt, sampling=FIRST).get()
            stats = system.stats()
    return {
        "bits": bits or "float",
        "kb_each": each / 1e3,
        "hot_agents": hot["hot_agents"],
        "hot_mb": hot["hot_bytes"] / 1e6,
        "of_budget": hot["hot_bytes"] / budget,
        "kv_alone_would_fit": budget // each,
    }


# -- the plot ------------------------------------------------------------------------------


def draw(found: dict[str, list[Row]], path: Path) -> None:
    """Three panels as a PNG. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    names = [f"{row['dtype']}\n{row['bits']}" for row in found["kv"]]
    left.bar(names, [row["measured_ratio"] for row in found["kv"]])
    left.set(title="KV, of the float bytes")
    left.tick_params(axis="x", labelsize=7)
    middle.bar([row["how"] for row in found["prefill"]], [r["peak_mb"] for r in found["prefill"]])
    middle.set(title="peak of a prefill, MB", yscale="log")
    middle.tick_params(axis="x", labelsize=7)
    right.bar(
        [str(row["bits"]) for row in found["agents"]], [r["hot_agents"] for r in found["agents"]]
    )
    right.set(title="idle agents that fit the budget", xlabel="bits")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
