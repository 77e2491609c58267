"""Precision as policy: by side, by layer, by kind; exact, persisted, and part of the identity."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from makers import load_as_meant

from kvactors.core.engine.engine import Engine
from kvactors.core.errors import InvalidConfig
from kvactors.core.model.load import LoadedModel
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer, snap_to_grid

POLICIES: list[Any] = ["k8v4", "k4v8", {0: 8, "full": None, "sliding": "k8v4"}]


def load(family: str, kv_bits: Any) -> LoadedModel:
    model = snap_to_grid(build(family))
    options = ModelOptions(kv_bits=kv_bits, attention="packed")
    return load_as_meant(family, lambda: (model, PlainTokenizer()), options)


def bits(loaded: LoadedModel) -> list[tuple[int | None, ...]]:
    return [tuple(side.bits for side in layer.sides) for layer in loaded.spec.layers]


def test_keys_and_values_may_have_bits_of_their_own() -> None:
    assert bits(load("qwen3", "k8v4")) == [(8, 4)] * 4


def test_a_layer_by_its_index_comes_before_its_kind_and_others_have_four_bits() -> None:
    found = bits(load("gemma3_text", {0: 8, "sliding": "k8v4", 3: None}))

    assert found == [(8, 8), (4, 4), (8, 4), (None, None)]


def test_latents_are_kept_at_eight_bits_unless_they_are_named() -> None:
    assert bits(load("deepseek_v3", 4)) == [(8, 8)] * 4
    assert bits(load("deepseek_v3", {"latent": 4})) == [(4, 4)] * 4
    assert bits(load("deepseek_v3", None)) == [(None, None)] * 4


def test_the_policy_is_part_of_the_fingerprint() -> None:
    policies: list[Any] = [4, 8, "k8v4", None, {1: 8}]

    assert len({load("qwen3", policy).fingerprint for policy in policies}) == len(policies)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_every_policy_is_exact_in_a_batch_and_after_a_restore(
    make_engine: Callable[..., Engine], policy: Any
) -> None:
    loaded = load("gemma3_text", policy)
    sampling = Sampling(max_tokens=8)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 128, length).tolist() for length in (5, 300, 40)]

    def request(i: int) -> Any:
        return make_request(f"{i}", [], prompts[i], sampling)

    together = run_engine(make_engine(loaded, stored=True), [(i, request(i)) for i in range(3)])
    alone = [
        run_engine(make_engine(loaded, stored=True), [(0, request(i))])[f"{i}"] for i in range(3)
    ]
    again = make_engine(loaded, stored=True)
    known = alone[1].request.tokens
    again.submit(make_request("1", known, [7], sampling))
    again.step()
    again.provide("1", alone[1].exported)
    warm = run_engine(again, [])["1"]
    cold = run_engine(make_engine(loaded), [(0, make_request("1", known, [7], sampling))])["1"]

    for i, end in enumerate(alone):
        assert together[f"{i}"].request.generated == end.request.generated
    assert warm.request.kept == len(known) - 1
    assert warm.request.generated == cold.request.generated


def test_more_bits_are_nearer_to_float() -> None:
    prompt = mx.array([np.random.default_rng(1).integers(1, 128, 120).tolist()])

    def logits(policy: Any) -> mx.array:
        from kvactors.core.arena.arena import Arena

        loaded = load("qwen3", policy)
        arena = Arena(loaded.spec, loaded.policy)
        arena.add_row(0, 120)
        return arena.forward(loaded.model, prompt)[0, -1]

    exact = logits(None)
    error = {policy: float(mx.abs(logits(policy) - exact).mean()) for policy in (8, "k8v4", 4)}

    assert error[8] < error["k8v4"] < error[4]


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("k8", '4, 8 or None .float., "k8v4", or a mapping'),
        ("k8v3", "4, 8 or None"),
        ({"heads": 8}, "by index or kind"),
        ({-1: 8}, "by index or kind"),
        ({0: 5}, "4, 8 or None"),
        ({7: 8}, "kv_bits names 7: the model has 4 layers"),
        ({"sliding": 8}, "kv_bits names 'sliding'"),
    ],
)
def test_what_is_no_policy_is_refused(policy: Any, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        load("qwen3", policy)
