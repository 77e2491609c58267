"""How many operations a layer of a decode step has, and how often rows that move are waited for:
what a step costs where each is cheap."""

from collections.abc import Callable
from io import StringIO

import mlx.core as mx
import pytest
from seeded import bug, seeded

from kvactors.core.arena.compiled.carried import carrier
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.quant.device import on_cpu
from kvactors.core.testing.models import PlainTokenizer, tiny_model

EQUAL, RAGGED, LONG, SLABS = (100,) * 4, (100, 50, 70, 20), (2000, 1500), (2000, 64)


def operations(layers: int, lengths: tuple[int, ...], *, floats: bool) -> int:
    """Of a whole step of rows that hold zeros."""
    model = tiny_model(num_hidden_layers=layers)
    loaded = load_model(lambda: (model, PlainTokenizer()), ModelOptions(name="m"))
    arena = new_arena(loaded)
    arena.table.launch_tokens = 1024
    arena.floats = floats
    for length in lengths:
        arena.add_row(length, length + 3)
    fed = mx.array([[1]] * len(lengths))
    # Behind a first step, which shows whether floats may be kept.
    for _ in range(2):
        mx.eval(arena.forward(loaded.model, fed))
        arena.evaluate()
    logits, graph = arena.forward(loaded.model, fed), StringIO()
    # What a step leaves is a part of it.
    left = [array for layer in arena.layers for slab in carrier(layer).arrays for array in slab]
    mx.export_to_dot(graph, logits, *left)
    return graph.getvalue().count("shape=rectangle")


@pytest.mark.skipif(not on_cpu(), reason="the counts are those of MLX's CPU build")
@pytest.mark.parametrize(
    ("lengths", "floats", "most"),
    [
        ((100,), True, 136),
        (EQUAL, True, 140),
        (RAGGED, True, 143),
        (RAGGED, False, 153),
        (LONG, True, 152),
        (LONG, False, 188),
        (SLABS, True, 180),
    ],
)
def test_a_layer_of_a_step_has_no_more_operations_than_it_had(
    lengths: tuple[int, ...], *, floats: bool, most: int
) -> None:
    fewer, more = (operations(layers, lengths, floats=floats) for layers in (1, 3))

    # mlx-lm's own batch has 141.
    print(f"{(more - fewer) // 2} operations a layer")
    assert (more - fewer) / 2 <= most


@pytest.mark.parametrize(("layers", "leaves"), [(1, 1), (4, 4)])
def test_a_row_that_joins_is_waited_for_once_and_one_that_fills_a_hole_once_a_layer(
    layers: int, leaves: int
) -> None:
    model = tiny_model(num_hidden_layers=layers)
    loaded = load_model(lambda: (model, PlainTokenizer()), ModelOptions(name="m"))
    arena, other = new_arena(loaded), new_arena(loaded)
    for _ in range(2):
        arena.add_row(100, 110)
        other.add_row(100, 110)
    # Its slab gets slots for more than one.
    arena.take(other, 0)
    waits = list[object]()

    def counted(true: Callable[..., None]) -> Callable[..., None]:
        def evaluate(*arrays: object) -> None:
            waits.append(arrays)
            true(*arrays)

        return evaluate

    with seeded(bug(mx, "eval")(counted)):
        arena.take(other, 1)
        joined = len(waits)
        arena.leave(0)

    assert (joined, len(waits) - joined) == (1, leaves)
