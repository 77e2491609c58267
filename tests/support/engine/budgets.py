"""What tests of budgets ask: the work space on any device, what turns need and what they take."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from kvactors.core.engine.engine import Engine
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.model.workspace import WorkSpace, forward_bytes
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine

__all__ = ["bytes_on_a_cpu", "least_for", "most_work", "peak_of_turns", "work_space"]


def work_space(model: Any, **options: Any) -> WorkSpace:
    """What forwards of a `model` hold here beside the KV, loaded with these `options`."""
    return WorkSpace.measure(load_model(model, ModelOptions(**options)))


def most_work(model: Any, keys: int, **options: Any) -> int:
    """What a chunk of 256 tokens that end so many `keys` holds, or what a decode step over them or
    a prefill of them alone is given if that is more; `model` and `options` as above."""
    loaded = load_model(model, ModelOptions(**options))
    chunk, _ = forward_bytes(loaded, 256, keys)
    space = WorkSpace.measure(loaded)
    return max(chunk, space.decode(1, keys), space.alone(keys))


def bytes_on_a_cpu(loaded: LoadedModel, tokens: int, keys: int) -> tuple[int, int]:
    """In place of `forward_bytes`: what a CPU holds for the tiny grid model, packed."""
    if loaded.spec.layers[0].bits is None:
        return 1046 * tokens * keys, 0
    return (100 * keys if tokens == 1 else tokens * (3430 + 17 * keys)), 0


def least_for(engine: Engine, past: int, new: int) -> int:
    """Bytes that a turn of so many `new` tokens behind a `past` needs of an engine, which ends."""
    last = make_request("a", [5] * past, [5] * new, Sampling(max_tokens=2))
    last.form = engine.loaded.form_of(last.prompt)
    engine.memory.release()
    return engine.memory.least(last)


def peak_of_turns(engine: Engine, new: Sequence[int], kept: int | None = None) -> float:
    """The most that turns of so many `new` tokens take of the budget; the last has `kept` tokens of
    what was said before."""
    mx.reset_peak_memory()
    before, known = mx.get_active_memory() - engine.memory.active, list[int]()
    for turn, more in enumerate(new):
        if turn == len(new) - 1:
            known = known[:kept]
        request = make_request("a", known, [5] * more, Sampling(max_tokens=2), turn=turn)
        known = list(run_engine(engine, [(0, request)])["a"].request.tokens)
    peak = (mx.get_peak_memory() - before) / engine.memory.budget
    print(f"{peak:.2f} of the budget")
    return peak
