"""The load-time probe of traces: whether a model's decode steps may be replayed.

A replay knows arrays alone: whatever else a model's Python does, it did when it was traced. So only
classes of MLX and mlx-lm are traced, and only where a few steps of ragged rows, replayed, have the
logits and leave the bytes of eager ones, to the last bit. No clock decides: replayed or not, steps
of such a model read whole extents, so that answers do not depend on how busy a machine was.
GPU thread.
"""

import logging
from typing import Any

import mlx.core as mx

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.compiled.compiler import StepCompiler
from kvactors.core.arena.compiled.unfused import replays
from kvactors.core.attention.policy import AttentionPolicy
from kvactors.core.cache.spec import ModelCacheSpec
from kvactors.core.model.batch_probe import join_rows

__all__ = ["classes_of", "unknown_class", "why_eager"]

logger = logging.getLogger(__name__)

_KNOWN = ("mlx", "mlx_lm")
# The first shows how many heads share a key, after which floats may be kept: that is another trace.
_STEPS = 4


def why_eager(model: Any, spec: ModelCacheSpec, policy: AttentionPolicy) -> str:
    """Why decode steps of this `model`, over caches of this `spec` that are attended by this
    `policy`, are not traced; empty where they may be."""
    if not spec.batched:
        return "its rows run one by one"
    if other := unknown_class(model):
        return f"{other} is no class of MLX's or mlx-lm's"
    if not replays():
        return "MLX does not compile here"
    try:
        # Eager last: a trace that left something in the model shows.
        traced, eager = (_stepped(model, spec, policy, worth) for worth in (1, float("inf")))
    except Exception as error:
        logger.debug("the probe of traces failed", exc_info=error)
        return "its forward cannot be traced"
    if not all(mx.array_equal(a, b, equal_nan=True) for a, b in zip(traced, eager, strict=True)):
        return "a replayed step has other bits than an eager one"
    return ""


def classes_of(model: Any) -> frozenset[type]:
    """The classes of a `model` and of all that it is made of."""
    return frozenset(type(module) for _, module in model.named_modules())


def unknown_class(model: Any) -> str:
    """A class of a `model` that may do more than build a graph, if there is one."""
    others = (k for k in classes_of(model) if k.__module__.split(".")[0] not in _KNOWN)
    return next((k.__name__ for k in others), "")


def _stepped(
    model: Any, spec: ModelCacheSpec, policy: AttentionPolicy, worth: float
) -> list[mx.array]:
    """Logits of some steps, and all bytes after them."""
    arena, order = join_rows(model, spec, policy)
    arena.floats = True
    steps = StepCompiler(model, traced=True, worth=worth)
    fed, found = mx.array([1] * len(order)), []
    for _ in range(_STEPS):
        logits, _ = steps.step(arena, fed)
        fed = mx.argmax(logits, axis=-1)
        mx.eval(logits)
        found.append(logits)
    if worth == 1 and not steps.replayed:
        raise RuntimeError("no step was replayed")
    return found + _held(arena)


def _held(arena: Arena) -> list[mx.array]:
    pieces = [arena.export(row, 0, length) for row, length in enumerate(arena.table.lengths)]
    return [array for p in pieces for group in p.groups for array in group.values()]
