"""What a session refuses, where its cache is found, and how it ends."""

import gc
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from alone import FACTS, PROMPT, Alone, config, fed, open_as
from makers import LoadGrid

from kvactors.core.arena.sessions.session import (
    make_decode_session,
    make_seq_session,
    make_tree_session,
    model_facts,
)
from kvactors.core.cache.family.config import CacheConfig, ModelFacts
from kvactors.core.cache.family.faces import DecodeCache, SeqCache, TreeCache
from kvactors.core.cache.family.registry import builders, registry
from kvactors.core.errors import (
    CacheFull,
    FaceMismatch,
    InvalidConfig,
    InvalidStep,
    TokenOutOfRange,
    UnsupportedLayer,
)
from kvactors.core.testing.families import build
from kvactors.core.testing.models import tiny_model

MAKERS = [make_decode_session, make_seq_session, make_tree_session]


@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_no_step_is_refused_before_anything_is_done(
    load_grid: LoadGrid, maker: Any
) -> None:
    alone = Alone(load_grid(4))
    with maker(alone.loaded.model, config(capacity=8), attention="packed") as session:
        fed(session, PROMPT, range(7))
        with pytest.raises(TokenOutOfRange, match=r"token 128 is not in \[0, 128\)"):
            fed(session, [128], [7])
        with pytest.raises(InvalidStep, match="2 tokens was given 1 positions"):
            fed(session, [1, 2], [7])
        with pytest.raises(CacheFull, match="needs 2 cells: 7 of 8 are held, 1 free"):
            fed(session, [1, 2], [7, 8])
        numpys: Any = np.array([12]), np.array([7])
        alone.agrees(fed(session, *numpys), [[*PROMPT, 12]])
        assert not session.cache.can_extend()
    with pytest.raises(InvalidStep, match=f"{session.key} was closed"):
        fed(session, [1], [8])


@pytest.mark.parametrize("maker", MAKERS)
def test_a_position_that_the_model_was_not_made_for_is_refused(maker: Any) -> None:
    model, text = build("gpt2", n_positions=16), [*PROMPT, *PROMPT, 12, 13]
    with maker(model, CacheConfig(model_facts(model), 100, None)) as session:
        fed(session, text[:14], range(14))

        with pytest.raises(InvalidStep, match="position 16 is beyond the 16 that the model says"):
            fed(session, [*text[14:], 14], range(14, 17))

        last = fed(session, text[14:], range(14, 16))
        assert mx.allclose(last, model(mx.array([text]))[0, 14:], atol=1e-4)


@pytest.mark.parametrize(
    ("maker", "face", "others"),
    [
        (make_decode_session, DecodeCache, [SeqCache, TreeCache]),
        (make_seq_session, SeqCache, [DecodeCache, TreeCache]),
        (make_tree_session, TreeCache, [DecodeCache, SeqCache]),
    ],
)
def test_a_session_holds_the_face_of_its_kind_and_is_found_by_its_key(
    load_grid: LoadGrid, maker: Any, face: Any, others: list[Any]
) -> None:
    with maker(load_grid(4).model, config()) as session:
        assert registry.get(session.key, face) is session.cache
        for other in others:
            with pytest.raises(FaceMismatch, match=f"is no {other.__name__}"):
                registry.get(session.key, other)


def test_a_key_is_erased_on_every_way_out_and_who_is_at_work_goes_on(load_grid: LoadGrid) -> None:
    model = load_grid(4).model
    there = len(registry)
    with pytest.raises(KeyError), make_seq_session(model, config()) as left:
        raise KeyError("a way out")
    assert len(registry) == there
    with pytest.raises(InvalidConfig, match=f"no cache has the key '{left.key}'"):
        registry.get(left.key, SeqCache)
    dropped = make_decode_session(model, config())
    del dropped
    gc.collect()
    session = make_decode_session(model, config())
    taken = registry.get(session.key, DecodeCache)
    assert len(registry) == there + 1

    registry.erase(session.key)
    fed(session, PROMPT, range(7))
    session.close()
    session.close()

    assert len(registry) == there
    assert taken.length == 7


def test_a_cache_of_another_kind_is_refused_where_the_session_is_made(load_grid: LoadGrid) -> None:
    model, right = load_grid(4).model, builders["tree"]
    builders["tree"] = builders["seq"]
    try:
        with pytest.raises(FaceMismatch, match=r"'tree'.*SeqBookkeeping, which is no TreeCache"):
            make_tree_session(model, config())
    finally:
        builders["tree"] = right


def test_sessions_of_one_model_know_nothing_of_each_other(load_grid: LoadGrid) -> None:
    alone = Alone(load_grid(4))
    with open_as(alone, make_decode_session) as one, open_as(alone, make_seq_session) as other:
        fed(one, PROMPT, range(7))
        fed(other, PROMPT[::-1], range(7))

        alone.agrees(fed(one, [9], [7]), [[*PROMPT, 9]])
        alone.agrees(fed(other, [9], [7]), [[*PROMPT[::-1], 9]])
    assert one.key != other.key


@pytest.mark.parametrize(
    ("family", "maker", "message"),
    [
        ("gpt_oss", make_decode_session, "layer 0 is sliding, and forgets tokens"),
        ("gpt_oss", make_seq_session, "layer 0 is sliding, and forgets tokens"),
        ("mamba2", make_decode_session, "layer 0 is recurrent"),
        ("deepseek_v3", make_tree_session, "the attention of this model is its own"),
        ("gemma2", make_seq_session, "the attention of this model is its own"),
    ],
)
def test_what_a_face_cannot_serve_is_refused(family: str, maker: Any, message: str) -> None:
    model = build(family)

    with pytest.raises(UnsupportedLayer, match=message):
        maker(model, config())


@pytest.mark.parametrize("family", ["gemma2", "deepseek_v3"])
def test_attention_of_a_models_own_can_have_one_sequence(family: str) -> None:
    model = build(family)
    size = CacheConfig(model_facts(model), 100, None)
    with make_decode_session(model, size) as session, make_decode_session(model, size) as other:
        whole = fed(session, PROMPT, range(7))
        fed(other, [*PROMPT[:5], 40], range(6))
        other.cache.rewind(5)
        again = fed(other, PROMPT[5:], range(5, 7))

        assert mx.allclose(whole[5:], again, atol=1e-4)


def test_facts_are_those_of_the_model_and_others_are_refused(load_grid: LoadGrid) -> None:
    model = load_grid(4).model

    assert model_facts(model) == FACTS
    with pytest.raises(InvalidConfig, match=r"4 layers of 2 KV heads.*model has 2 layers of 2"):
        make_seq_session(model, CacheConfig(ModelFacts(4, 2, 64), 100))


def test_the_result_of_attention_has_the_dtype_that_is_asked_for() -> None:
    model = tiny_model()
    with make_decode_session(model, config(8)) as session:
        new = mx.random.normal((1, 2, 3, 64), key=mx.random.key(1))
        queries = mx.random.normal((1, 4, 3, 64), key=mx.random.key(2))
        same, half = (
            session.update_and_attend(
                queries, new, new, range(3), layer_id=layer, scale=0.1, out_dtype=dtype
            )
            for layer, dtype in enumerate((None, mx.float16))
        )

        assert (same.dtype, half.dtype) == (mx.float32, mx.float16)
        assert mx.array_equal(same.astype(mx.float16), half)


@pytest.mark.parametrize("kind", [np.array, list])
def test_positions_of_numpy_are_positions_of_layers_too_and_a_closed_session_has_none(
    kind: Any,
) -> None:
    new = mx.random.normal((1, 2, 2, 64), key=mx.random.key(1))
    with make_seq_session(tiny_model(), config(8)) as session:
        session.cache.begin_step([0, 1])
        layer: dict[str, Any] = {"layer_id": 0, "scale": 0.1}
        out = session.update_and_attend(new, new, new, kind([0, 0]), **layer)

        assert mx.allclose(out, new, atol=0.2)
        assert (session.cache.seq_len(0), session.cache.seq_len(1)) == (1, 1)
    with pytest.raises(InvalidStep, match="was closed"):
        session.update_and_attend(new, new, new, kind([1, 1]), **layer)


@pytest.mark.parametrize(
    ("shapes", "layer_id", "message"),
    [
        ([(4, 2), (2, 2), (2, 2)], 0, r"\[1, heads, 3, dim\] where 3 positions"),
        ([(4, 3), (1, 3), (1, 3)], 0, r"layer 0 are \[1, 2, T, 64\], not \(1, 1, 3, 64\)"),
        ([(4, 3), (2, 3), (1, 3)], 0, "keys and values have one shape"),
        ([(3, 3), (2, 3), (2, 3)], 0, "their heads divide those of the queries"),
        ([(0, 3), (2, 3), (2, 3)], 0, "their heads divide those of the queries"),
        ([(4, 3), (2, 3), (2, 3)], 2, "layer_id is one of 0 to 1, not 2"),
        ([(4, 3), (2, 3), (2, 3)], -1, "layer_id is one of 0 to 1, not -1"),
    ],
)
@pytest.mark.parametrize("maker", MAKERS)
def test_arrays_that_are_no_layers_of_a_step_are_refused_before_anything_is_done(
    shapes: list[tuple[int, int]], layer_id: int, message: str, maker: Any
) -> None:
    with maker(tiny_model(), config(8)) as session:
        if maker is make_seq_session:
            session.cache.begin_step([0] * 3)
        arrays = [mx.zeros((1, heads, tokens, 64)) for heads, tokens in shapes]

        with pytest.raises(InvalidStep, match=message):
            session.update_and_attend(*arrays, range(3), layer_id=layer_id, scale=0.1)

        assert session.cache.can_extend(8)
