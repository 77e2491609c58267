"""The device's arithmetic: its quantized products, and one step against mlx-lm's own caches."""

import logging
import math
import time
from itertools import product
from pathlib import Path

import mlx.core as mx

from kvactors.bench.check.conversations import PROMPTS
from kvactors.bench.check.finding import Answer, Verdict
from kvactors.bench.check.kinds import Kind
from kvactors.core.arena.arena import Arena
from kvactors.core.attention.policy import AttentionMode
from kvactors.core.cache.spec import LayerSpec, choose_group_size
from kvactors.core.model.device_probe import MOST_KEYS, PRODUCT_TOLERANCE, product_errors
from kvactors.core.model.load import load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.quant.device import on_cpu, on_cuda
from kvactors.core.testing.one_step import one_step

__all__ = ["advise", "arithmetic", "products"]

logger = logging.getLogger(__name__)

# What NVIDIA's driver makes on Linux.
NVIDIA = (Path("/dev/nvidia0"), Path("/proc/driver/nvidia"))

# Heads of models that people run. Kernels differ by these, by bits and by the dtype of scales.
HEAD_DIMS = (64, 96, 128, 192, 256)
DTYPES = ("float32", "float16", "bfloat16")
BITS = (4, 8)
SECONDS = 8.0
# Where each kernel of ours has to be compiled: a few that people run, with four heads of queries
# for one of keys.
CUDA_LAYERS = (("bfloat16", 4, 64), ("bfloat16", 4, 128), ("float32", 8, 128))
CUDA_SECONDS, CUDA_HEADS = 20.0, 8
# Wrong shapes that are named.
SHOWN = 6

# Of the logits' deviation, in float32 [design, Exactness].
LIMIT = 1e-4
MODES: tuple[AttentionMode, ...] = ("auto", "packed", "dequantize")


def advise() -> None:
    """Say what to do, if the CPU is checked beside an NVIDIA GPU."""
    if on_cpu() and any(path.exists() for path in NVIDIA):
        logger.warning(
            "there is an NVIDIA GPU, and what was checked is the CPU: install kvactors[cuda13], or "
            "in a clone: uv run --no-dev --extra cuda13 kvactors check"
        )


def products() -> Answer:
    """Quantized products of the shapes that attention asks for, against those of floats."""
    seconds = CUDA_SECONDS if on_cuda() else SECONDS
    end = time.perf_counter() + seconds
    errors: dict[str, float] = {}
    layers = _layers()
    left = len(layers)
    for layer in layers:
        for name, error in product_errors((layer,), MOST_KEYS, heads=CUDA_HEADS):
            # What is no number is as wrong as can be.
            errors[f"{name}, {layer.dtype}"] = error if error == error else math.inf
        left -= 1
        if time.perf_counter() > end:
            break
    worst = max(errors, key=lambda name: errors[name])
    wrong = [f"{name} ({e:.2g})" for name, e in errors.items() if e > PRODUCT_TOLERANCE]
    numbers = {"shapes": len(errors), "wrong": len(wrong), "worst": errors[worst], "left": left}
    if wrong:
        said = f"{len(wrong)} of {len(errors)} shapes are wrong; a model that has one is attended "
        return Answer("violated", f"{said}dequantized: {'; '.join(wrong[:SHOWN])}", numbers)
    said = f"{len(errors)} shapes, at most {errors[worst]:.1g} of their deviation ({worst})"
    if left:
        rest = f"{left} of {len(layers)} kinds of layer were not looked at in {seconds:g} s"
        return Answer("skipped", f"{said}; {rest}", numbers)
    return Answer("held", said, numbers)


def _layers() -> list[LayerSpec]:
    every = CUDA_LAYERS if on_cuda() else product(DTYPES, BITS, HEAD_DIMS)
    return [
        LayerSpec("full", 2, dim, bits, choose_group_size(dim, bits, None), dtype)
        for dtype, bits, dim in every
    ]


def arithmetic(kind: Kind) -> Answer:
    """One step of three rows together, in each mode of attention, against mlx-lm's own caches that
    hold the same bytes, row by row; weights as they were drawn."""
    errors = {mode: _step_error(kind, mode) for mode in MODES}
    said = ", ".join(f"{mode} {error:.1g}" for mode, error in errors.items())
    detail = f"{said} of the logits' deviation (at most {LIMIT:.0e})"
    verdict: Verdict = "held" if max(errors.values()) <= LIMIT else "violated"
    return Answer(verdict, detail, {f"{mode}_error": error for mode, error in errors.items()})


def _step_error(kind: Kind, mode: AttentionMode) -> float:
    loaded = load_model(kind.build_floats, ModelOptions(attention=mode))
    if not (loaded.spec.batched or (kind.one_by_one and mode == "packed")):
        raise RuntimeError(f"with attention={mode!r} its rows run one by one: wrong in a batch")
    prompts = [PROMPTS[agent][0] for agent in (0, 1, -1)]
    rows, order = Arena(loaded.spec, loaded.policy), list[int]()
    for index, prompt in enumerate(prompts):
        alone = Arena(loaded.spec, loaded.policy)
        alone.add_row(0, len(prompt))
        for start in range(0, len(prompt), 200):
            alone.forward(loaded.model, mx.array([prompt[start : start + 200]]))
            alone.evaluate()
        order.insert(rows.take(alone, 0), index)
    theirs = [one_step(loaded, rows, row) for row in range(len(prompts))]
    ours = rows.forward(loaded.model, mx.array([[7]] * len(prompts)))[:, -1]
    errors = [
        float(mx.abs(mine - due).max() / mx.sqrt(mx.var(due)))
        for mine, due in zip(ours, theirs, strict=True)
    ]
    return max(error if error == error else math.inf for error in errors)
