"""A replayed step is an eager one to the bit: logits, tokens, bytes, whatever rows live through."""

import mlx.core as mx
import pytest
from makers import prompts_of
from replays import Rows, Twins, turns_of
from samples import DAY, sample_of

from kvactors.core.attention.policy import AttentionMode
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer

FAMILIES = (
    "llama",
    "qwen3_moe",
    "deepseek_v2",
    "gemma3_text",
    "gpt_oss",
    "gemma2",
    "deepseek_v3",
    "gemma3n",
    "gemma4_text",
    "mamba2",
    "qwen3_next",
    "lfm2",
    "falcon_h1",
    "baichuan_m1",
    "recurrent_gemma",
)
KINDS = [
    (family, attention, floats)
    for family in FAMILIES
    for attention, floats in (("auto", True), ("auto", False), ("packed", False))
    # Row by row, where results must not depend on padding.
    if (family, attention) not in {("gemma2", "packed"), ("deepseek_v3", "packed")}
]


def load(family: str, attention: AttentionMode = "auto") -> LoadedModel:
    model = build(family)
    return load_model(
        lambda: (model, PlainTokenizer()), ModelOptions(attention=attention, name="m")
    )


@pytest.mark.slow
@pytest.mark.parametrize(("family", "attention", "floats"), sample_of(KINDS, 14, "replays"))
def test_replayed_steps_are_eager_ones_whatever_happens_in_between(
    family: str, attention: AttentionMode, *, floats: bool
) -> None:
    loaded = load(family, attention)
    twins = Twins(loaded, f"{DAY} {family}", floats=floats)

    twins.live(10)

    assert not loaded.eager
    assert twins.replayed.steps.replayed > 10
    assert twins.eager.steps.made == 0


@pytest.mark.parametrize("rows", [1, 4])
def test_rows_that_end_together_have_the_bits_of_a_replay_where_none_is_made(rows: int) -> None:
    """A mask that no row needs: what a turn says would else depend on which steps were traced."""
    loaded = load("llama")
    sides = [Rows(loaded, worth, floats=True) for worth in (1, float("inf"))]
    for side in sides:
        for name in range(rows):
            side.join(name, prompts_of((516,), seed=name)[0])
    turns = turns_of(rows)

    for _ in range(12):
        (_, replayed), (_, eager) = (side.step(turns, ahead=False) for side in sides)
        assert mx.array_equal(replayed, eager)

    assert sides[0].steps.replayed > 8
    assert not sides[1].steps.made
