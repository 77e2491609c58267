"""The load-time probe: how a model can be run over our caches, if it can be.

Some families are silently wrong when the rows of a batch stand at different positions, or
take only one form of mask. So ragged rows are run together over some steps, with everything
in float, and compared with mlx-lm's own caches, one row at a time. The first plan that agrees
is used: in a batch, else row by row. A model that agrees with none is refused, and so is one
that mlx-lm itself cannot run. One that is another where rows take several tokens in one step than
with one at a time takes as many in each row, and nothing is drafted for it. GPU thread.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from kvactors.core.arena.arena import Arena
from kvactors.core.attention.policy import AttentionPolicy
from kvactors.core.cache.spec import UNUSED, ModelCacheSpec
from kvactors.core.errors import ModelError, ProbeFailed

__all__ = ["choose_plan", "join_rows"]

logger = logging.getLogger(__name__)

# Deviations of the logits. A row read at a wrong position moves them by whole ones.
TOLERANCE = {"float32": 0.01, "float16": 0.3, "bfloat16": 0.3}
_PROMPTS = ([1, 2, 3, 2, 1], [2, 3, 1, 1, 2, 3, 3, 2, 1])
# Two steps of decoding, and a chunk of a prompt.
_STEPS = ([1], [2], [3, 1, 2])
# Logits by prompt and step.
Found = list[list[mx.array]]


def choose_plan(model: Any, spec: ModelCacheSpec, *, exact: bool = False) -> ModelCacheSpec:
    """The spec, with the first plan under which `model` has the logits that mlx-lm has. Raises
    ProbeFailed, ModelError.

    `exact`: results must not depend on the batch. Where attention is plain that takes rows one
    by one, since its sums depend on how far the batch is padded.
    """
    expected = [_alone(model, prompt) for prompt in _PROMPTS]
    failures = []
    for plan in _plans(spec, exact=exact):
        failure = _compare(_together, model, plan, expected)
        if failure is None:
            break
        failures.append(failure)
        logger.debug("%s: %s", _describe(plan), failure)
    else:
        raise ProbeFailed(
            f"the model cannot run over kvactors' caches, not even row by row: {failures[-1]} "
            f"(in a batch: {failures[0]})"
        )
    if not plan.batched and failures:
        logger.warning("the model is wrong in a batch, and runs row by row: %s", failures[0])
    if plan.flat:
        failure = _compare(_flat, model, plan, [steps[-1:] for steps in expected])
        plan = replace(plan, even="" if failure is None else f"in a flat step {failure}")
    try:
        _together(model, plan)
    except Exception as error:
        raise ProbeFailed(f"the model cannot run over quantized caches: {error}") from error
    return plan


def _plans(spec: ModelCacheSpec, *, exact: bool) -> Iterator[ModelCacheSpec]:
    """Ways to run a model, the fastest first."""
    plain = tuple(
        layer if layer.kind == "recurrent" else replace(layer, plain=True) for layer in spec.layers
    )
    variants = [spec] if spec.layers == plain else [spec, replace(spec, layers=plain)]
    if _indexed(spec):
        # Where keys are chosen the mask says which: only the model's own attention reads it.
        yield replace(spec, layers=plain, batched=False)
        return
    for variant in variants:
        if variant.plain and exact:
            continue
        for masks in ("rows", "groups", "added") if variant.plain else ("rows",):
            yield replace(variant, masks=masks)
    for variant in variants:
        yield replace(variant, batched=False)


def _indexed(spec: ModelCacheSpec) -> bool:
    """Whether a layer has several caches of keys, as those do that choose which keys they see:
    beyond some length, which no probe reaches, that choice may not hold for padded rows."""
    left = iter(spec.layers)
    counts = (count or 1 for count in spec.nesting if count != UNUSED)
    lists = [[next(left) for _ in range(count)] for count in counts]
    return any(sum(layer.kind != "recurrent" for layer in each) > 1 for each in lists)


def _describe(plan: ModelCacheSpec) -> str:
    return f"{'batched' if plan.batched else 'row by row'}, masks by {plan.masks}"


def _compare(
    run: Callable[[Any, ModelCacheSpec], Found], model: Any, plan: ModelCacheSpec, expected: Found
) -> str | None:
    """What is wrong with how a plan is run, if anything."""
    try:
        found = run(model, plan.in_float())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    tolerance = max(TOLERANCE.get(layer.dtype, 0.0) for layer in plan.layers)
    for row, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        for got, due in zip(mine, theirs, strict=True):
            deviation = float(mx.sqrt(mx.var(due)))
            difference = float(mx.abs(got - due).max())
            if not difference <= tolerance * max(deviation, 1e-6):
                return (
                    f"row {row} differs by {difference:.3g} from mlx-lm's own cache "
                    f"(deviation of the logits {deviation:.3g})"
                )
    return None


def _alone(model: Any, prompt: list[int]) -> list[mx.array]:
    """Last logits of each step over mlx-lm's own caches."""
    caches = make_prompt_cache(model)
    try:
        mx.eval(model(mx.array([prompt]), cache=caches))
        logits = [_last(model(mx.array([step]), cache=caches)) for step in _STEPS]
    except Exception as error:
        raise ModelError(
            f"the model cannot run over mlx-lm's own caches: {type(error).__name__}: {error}"
        ) from error
    return [row[0] for row in logits]


def _together(model: Any, spec: ModelCacheSpec) -> Found:
    """Prefill each prompt alone, join them, take the steps: last logits by prompt and step."""
    arena, order = join_rows(model, spec, AttentionPolicy("packed"))
    found: Found = [[] for _ in _PROMPTS]
    for step in _STEPS:
        logits = _last(arena.forward(model, mx.array([step] * len(order))))
        for row, index in enumerate(order):
            found[index].append(logits[row])
    return found


def _flat(model: Any, spec: ModelCacheSpec) -> Found:
    """The same, of the last step alone, whose tokens are drafts of the one before as it were."""
    arena, order = join_rows(model, spec, AttentionPolicy("packed"))
    for step in _STEPS[:-1]:
        mx.eval(arena.forward(model, mx.array([step] * len(order))))
    last = _STEPS[-1]
    tokens, counts = mx.array(list(last) * len(order)), [len(last)] * len(order)
    logits = arena.forward_flat(model, tokens, counts).reshape(len(order), len(last), -1)
    found: Found = [[] for _ in _PROMPTS]
    for index, row in zip(order, _last(logits), strict=True):
        found[index].append(row)
    return found


def join_rows(model: Any, spec: ModelCacheSpec, policy: AttentionPolicy) -> tuple[Arena, list[int]]:
    """Rows that end at different positions, in an arena of this `spec` and `policy`, each prefilled
    by itself by the `model`; and which of the prompts each has."""
    arena = Arena(spec, policy, extent_step=policy.extent_step)
    order: list[int] = []
    for index, prompt in enumerate(_PROMPTS):
        alone = Arena(spec, policy, extent_step=policy.extent_step)
        alone.add_row(0, len(prompt))
        alone.forward(model, mx.array([prompt]))
        alone.evaluate()
        order.insert(arena.take(alone, 0), index)
    return arena, order


def _last(logits: mx.array) -> mx.array:
    """The last logits of each row, 0 for tokens that the model rules out."""
    rows = logits[:, -1].astype(mx.float32)
    rows = mx.where(rows == -mx.inf, 0.0, rows)
    mx.eval(rows)
    return rows
