"""Work space for tests whose budgets must leave the same room for KV on every device."""

from typing import Any

from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.model.workspace import WorkSpace, forward_bytes

__all__ = ["bytes_on_a_cpu", "most_work", "work_space"]


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
