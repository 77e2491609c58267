"""Tier 2 of exactness for every kind: one step from identical cache bytes, against mlx-lm's own
float caches that hold what ours stores, dequantized. At most 1e-4 of the logits' deviation."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from makers import load_as_meant
from mlx_lm.models.cache import make_prompt_cache

from kvactors.core.arena.arena import Arena
from kvactors.core.errors import UnsupportedLayer
from kvactors.core.model.layer_kinds import derive_layers
from kvactors.core.model.load import load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer, snap_to_grid
from kvactors.core.testing.one_step import one_step

LIMIT = 1e-4
LENGTHS = (3, 40, 300)
FAMILIES = (
    "qwen3",
    "deepseek_v2",
    "gemma3_text",
    "gpt_oss",
    "gemma2",
    "deepseek_v3",
    "deepseek_v32",
    "minimax_m3_vl",
    "gemma3n",
    "qwen3_moe",
    "mamba2",
    "qwen3_next",
    "lfm2",
    "baichuan_m1",
    "recurrent_gemma",
    "llama4",
    "nemotron-nas",
)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["packed", "dequantize"])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_step_from_the_same_bytes_agrees_with_mlx_lm(family: str, attention: str) -> None:
    options = ModelOptions(attention=attention)
    loaded = load_as_meant(family, lambda: (build(family), PlainTokenizer()), options)
    rng = np.random.default_rng(0)
    arena = Arena(loaded.spec, loaded.policy)
    order: list[int] = []
    for index, length in enumerate(LENGTHS):
        alone = Arena(loaded.spec, loaded.policy)
        alone.add_row(0, length)
        prompt = rng.integers(1, 128, length).tolist()
        for start in range(0, length, 200):
            alone.forward(loaded.model, mx.array([prompt[start : start + 200]]))
            alone.evaluate()
        order.insert(arena.take(alone, 0), index)
    apart = [one_step(loaded, arena, row) for row in range(len(LENGTHS))]

    together = arena.forward(loaded.model, mx.array([[7]] * len(LENGTHS)))[:, -1]

    for ours, theirs in zip(together, apart, strict=True):
        deviation = float(mx.sqrt(mx.var(theirs)))
        assert float(mx.abs(ours - theirs).max()) <= LIMIT * deviation
    assert float(mx.abs(together[0] - together[1]).max()) > LIMIT


def test_a_mask_that_a_model_did_not_show_at_load_is_an_error_not_a_wrong_answer() -> None:
    loaded = load_model(lambda: (build("minimax_m3_vl"), PlainTokenizer()), ModelOptions())
    # Keys are chosen once there are more than 16, which no probe reaches: this is the plan of a
    # model whose caches do not tell that it does.
    layers, _ = derive_layers(loaded.model, ModelOptions())
    arena = Arena(replace(loaded.spec, layers=layers, batched=True), loaded.policy)
    arena.add_row(0, 40)

    with pytest.raises(UnsupportedLayer, match="a full layer was given a mask of the model's own"):
        arena.forward(loaded.model, mx.array([[5] * 40]))


@pytest.mark.parametrize(("family", "alike"), [("qwen3", True), ("deepseek_v3", False)])
def test_mlx_lm_itself_prefills_latents_otherwise_than_it_decodes_them(
    family: str, alike: bool
) -> None:
    """Why latents, as states, are exact at equal chunk ends only: a single query is projected
    into the latent space, several have the latents projected out of it."""
    model = snap_to_grid(build(family))
    prompt = np.random.default_rng(0).integers(1, 128, 40).tolist()

    def logits(*chunks: list[int]) -> mx.array:
        caches = make_prompt_cache(model)
        last: mx.array = [model(mx.array([chunk]), cache=caches) for chunk in chunks][-1][0, -1]
        return last

    decoded = logits(prompt[:20], *([token] for token in prompt[20:]))
    prefilled = logits(prompt[:20], prompt[20:-1], prompt[-1:])

    assert bool(mx.array_equal(decoded, prefilled)) == alike
