"""Train the default model from scratch: `python examples/train_default_model.py`; with `--draft`
the model that drafts for it.

An hour and a half on two CPU cores that do other work too, a quarter of one with `--draft`. A
killed run resumes from its
last checkpoint and sees the same data as if it had never stopped. Load OpenBLAS (Debian:
libopenblas0-pthread) to be done in hours rather than days.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

# Before MLX is loaded: it links a slow reference BLAS, and a BLAS already there wins.
with suppress(OSError):
    ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)

import mlx.core as mx
import numpy as np
import typer
from default_model_data import (
    DRAFT_LEGS,
    LEGS,
    Batch,
    Leg,
    held_out_batch,
    leg_of,
    training_batch,
)
from default_model_exp import cross_entropy
from default_model_forward import Weights, difference, hidden_states, probe_loss
from default_model_init import DRAFT, FIRST, first_weights, grown, shape_of
from default_model_tokenizer import save_tokenizer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kvactors.core.model.worlds.world import Names

BETAS, EPSILON, DECAY, CLIP, WARM_UP = (0.9, 0.98), 1e-8, 0.05, 1.0, 40
EMBEDDING = "model.embed_tokens.weight"
PROBED = 0.5
CHECKPOINT_EVERY, EVALUATE_EVERY = 25, 100
HELD_OUT_SEED = 90210

State = dict[str, mx.array]
Legs = tuple[Leg, ...]


def loss_of(weights: Weights, batch: Batch) -> mx.array:
    states, after = hidden_states(weights, mx.array(batch.tokens), batch.q4, batch.bf16)
    losses = cross_entropy(_logits(weights, batch, states), mx.array(batch.targets))
    counts = mx.array(batch.weights)
    loss = (losses * counts).sum() / counts.sum()
    if "probe.seen.weight" in weights:
        loss = loss + PROBED * _probes_loss(weights, batch, after)
    return loss


def _probes_loss(weights: Weights, batch: Batch, after: list[mx.array]) -> mx.array:
    """After the matching layer: was this pair seen. One later: was the answer told."""
    tokens = mx.array(batch.tokens)
    seen = probe_loss(weights, "seen", after[1], mx.array(batch.seen), (tokens > 0) * 1.0)
    # The last three tokens of a question: "?", its end, and the assistant's mark.
    at = mx.array(np.concatenate([batch.questions - back for back in range(3)]))
    stream = after[2].reshape(-1, after[2].shape[-1])[at]
    told = mx.array(np.tile(batch.told, 3))
    return seen + probe_loss(weights, "told", stream, told, mx.ones_like(told))


def _logits(weights: Weights, batch: Batch, states: mx.array) -> mx.array:
    """Logits where an answer is predicted; elsewhere they would be computed for nothing."""
    return states.reshape(-1, states.shape[-1])[mx.array(batch.positions)] @ weights[EMBEDDING].T


def learning_rate(step: int, legs: Legs) -> float:
    index, within = leg_of(step, legs)
    first, last = legs[index].rates
    rate = first + (last - first) * within / legs[index].steps
    # The optimizer starts afresh at the first step and where the model grows.
    fresh = index == 0 or legs[index].layers != legs[index - 1].layers
    return rate * min(1.0, (within + 1) / WARM_UP) if fresh else rate


def updated(state: State, gradients: Weights, step: int, rate: float) -> tuple[State, mx.array]:
    """One AdamW step with clipped gradients; decay on matrices only."""
    norm = mx.sqrt(sum((mx.square(g).sum() for g in gradients.values()), mx.array(0.0)))
    scale = mx.minimum(CLIP / (norm + 1e-6), 1.0)
    fixed = (1 - BETAS[0] ** (step + 1), 1 - BETAS[1] ** (step + 1))
    new: State = {}
    for name, gradient in gradients.items():
        gradient = gradient * scale
        first = BETAS[0] * state["first." + name] + (1 - BETAS[0]) * gradient
        second = BETAS[1] * state["second." + name] + (1 - BETAS[1]) * mx.square(gradient)
        weight = state["weight." + name]
        if weight.ndim == 2:
            weight = weight * (1 - rate * DECAY)
        change = (first / fixed[0]) / (mx.sqrt(second / fixed[1]) + EPSILON)
        new["weight." + name] = weight - rate * change
        new["first." + name] = first
        new["second." + name] = second
    return new, norm


def weights_of(state: State) -> Weights:
    return {k.removeprefix("weight."): v for k, v in state.items() if k.startswith("weight.")}


def fresh_state(weights: dict[str, NDArray[np.float32]]) -> State:
    """The weights with an optimizer that has seen nothing."""
    state: State = {}
    for name, value in weights.items():
        state["weight." + name] = mx.array(value)
        state["first." + name] = mx.zeros(value.shape)
        state["second." + name] = mx.zeros(value.shape)
    return state


def shaped_for(state: State, layers: int, seed: int) -> State:
    """The state, grown if so many layers are more than it has."""
    if layers == shape_of(weights_of(state)).layers:
        return state
    weights = {name: np.array(value) for name, value in weights_of(state).items()}
    return fresh_state(grown(weights, seed))


def train_step(state: State, batch: Batch, step: int, rate: float) -> tuple[State, float, float]:
    weights = weights_of(state)
    if batch.bf16:
        # Gradients at the rounded weights move the exact ones.
        weights = {k: v.astype(mx.bfloat16).astype(v.dtype) for k, v in weights.items()}
    loss, gradients = mx.value_and_grad(loss_of)(weights, batch)
    new, norm = updated(state, gradients, step, rate)
    mx.eval(new, loss, norm)
    return new, float(loss), float(norm)


def save_checkpoint(path: Path, state: State, step: int) -> None:
    """Replace the checkpoint in one step: a kill leaves the old or the new one whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name("partial.safetensors")
    mx.save_safetensors(str(partial), state, {"step": str(step)})
    with open(partial, "rb") as written:
        os.fsync(written.fileno())
    partial.replace(path)


def load_checkpoint(path: Path) -> tuple[State, int]:
    loaded: Any = mx.load(str(path), return_metadata=True)
    return dict(loaded[0]), int(loaded[1]["step"])


def export(directory: Path, weights: Weights) -> None:
    """Write the model as mlx-lm loads it, in float16."""
    directory.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in weights.items() if not name.startswith("probe.")}
    half = {name: value.astype(mx.float16) for name, value in kept.items()}
    mx.save_safetensors(str(directory / "model.safetensors"), half, {"format": "mlx"})
    text = json.dumps(shape_of(weights).config, indent=2, sort_keys=True) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")
    save_tokenizer(directory)


def share_right(weights: Weights, batch: Batch) -> tuple[float, float]:
    """Shares of facts recalled and of refusals, each to the last token (4-bit cache)."""
    states, _ = hidden_states(weights, mx.array(batch.tokens), batch.q4, batch.bf16)
    best = np.array(mx.argmax(_logits(weights, batch, states), axis=-1))
    right = np.ones(len(batch.refusals), np.bool_)
    right[batch.answers[best != batch.targets]] = False
    return float(right[~batch.refusals].mean()), float(right[batch.refusals].mean())


def evaluation(weights: Weights) -> Iterator[str]:
    """Recall / refusal on small held-out worlds; the seed is none of training's."""
    kinds: tuple[Names, ...] = ("seen", "unseen", "invented")
    for names in kinds:
        for facts, length, rows in ((8, 384, 8), (30, 1024, 6)):
            batch = held_out_batch(HELD_OUT_SEED, names, rows, facts, length)
            recall, refusal = share_right(weights, batch)
            half, _ = share_right(weights, replace(batch, bf16=True))
            yield f"{names} {facts}@{length}: {recall:.3f} bf16 {half:.3f} / {refusal:.2f}"


def run(
    state: State,
    first: int,
    legs: Legs,
    seed: int,
    *,
    checkpoint: Path,
    out: Path,
    console: Console,
) -> None:
    total = sum(leg.steps for leg in legs)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with (
        ThreadPoolExecutor(1) as loader,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("training", total=total, completed=first)
        coming = loader.submit(training_batch, seed, first, legs)
        began, tokens = time.perf_counter(), 0
        for step in range(first, total):
            batch = coming.result()
            coming = loader.submit(training_batch, seed, min(step + 1, total - 1), legs)
            index, within = leg_of(step, legs)
            state = shaped_for(state, legs[index].layers, seed)
            state, loss, norm = train_step(state, batch, step, learning_rate(step, legs))
            tokens += batch.tokens.size
            speed = tokens / (time.perf_counter() - began)
            text = f"step {step + 1}/{total} loss {loss:.3f} norm {norm:.2f} {speed:,.0f} tokens/s"
            progress.update(task, advance=1, description=text)
            done = step + 1
            if not console.is_terminal and done % 10 == 0:
                console.print(f"{text} {batch.tokens.shape}", highlight=False)
            if done % CHECKPOINT_EVERY == 0 or done == total:
                save_checkpoint(checkpoint, state, done)
            if done % EVALUATE_EVERY == 0 or done == total:
                for line in evaluation(weights_of(state)):
                    console.print(f"  {line}", highlight=False)
            if within + 1 == legs[index].steps:
                export(out, weights_of(state))


def main(
    models: Annotated[Path, typer.Option(help="Where the models go.")] = Path("core/model"),
    checkpoints: Annotated[Path, typer.Option(help="Where to resume from.")] = Path("build"),
    seed: int = 1,
    draft: Annotated[bool, typer.Option(help="Train the model that drafts.")] = False,
    restart: Annotated[bool, typer.Option(help="Ignore an earlier checkpoint.")] = False,
) -> None:
    """Train the default model, or go on where the last run stopped."""
    console = Console(stderr=True)
    name, shape, legs = (
        ("draft_model", DRAFT, DRAFT_LEGS) if draft else ("default_model", FIRST, LEGS)
    )
    checkpoint = checkpoints / name / "state.safetensors"
    state, step = fresh_state(first_weights(seed, shape)), 0
    error = difference(weights_of(state))
    console.print(f"largest difference from mlx-lm's forward: {error:.1e}", highlight=False)
    if error > 1e-3:
        raise typer.Exit(1)
    if checkpoint.exists() and not restart:
        state, step = load_checkpoint(checkpoint)
        console.print(f"resuming at step {step}", highlight=False)
    run(state, step, legs, seed, checkpoint=checkpoint, out=models / name, console=console)


def keep_memory() -> None:
    """Start again with an allocator that keeps what it has: half the time went to the kernel."""
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    if sys.platform == "linux" and any(name not in os.environ for name in names):
        setting = dict.fromkeys(names, str(1 << 40))
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **setting})


if __name__ == "__main__":
    keep_memory()
    typer.run(main)
