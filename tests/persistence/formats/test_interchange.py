"""Agents to files and back: the formats of other programs, through AgentSystem."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_agents import SHORT, WAIT, stored_kv, tiny_llama
from exchange_files import (
    HEAD_DIM,
    HEADS,
    LAYERS,
    fp16_flat,
    q4_blocks,
    q4_flat,
    random_floats,
    random_q4,
)
from makers import OpenSystem
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file

from kvactors.actors import AgentSystem

STORY = "Once upon a time there was an actor. " * 9
EXACT = ("archive", "q4-flat", "q4-blocks", "mlx-lm")


def halves_of(system: AgentSystem, agent_id: str, name: str) -> NDArray[Any]:
    """[layers, 2, H, T, width] of a one-group model in float32 or uint32, from the store."""
    dtypes = {"U32": np.uint32, "F32": np.float32}
    parts = []
    for segment in stored_kv(system, agent_id):
        for stored, dtype, shape, data in segment.tensors:
            if stored == f"g0.{name}":
                parts.append(np.frombuffer(data, dtypes[dtype]).reshape(shape))
    return np.concatenate(parts, axis=3)


def numbers_of(system: AgentSystem, agent_id: str) -> NDArray[Any]:
    """What an agent's codes stand for: [layers, 2, H, T, D]."""
    codes, scales, biases = (
        halves_of(system, agent_id, name) for name in ("codes", "scales", "biases")
    )
    numbers = (codes[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
    whole: NDArray[Any] = numbers.reshape(*codes.shape[:-1], HEAD_DIM) * scales + biases
    return whole


# -- round trips -----------------------------------------------------------------------


@pytest.mark.parametrize("form", EXACT)
def test_an_imported_agent_is_warm_and_goes_on_as_the_one_it_was(
    system: AgentSystem, path: Path, form: str
) -> None:
    told = system.spawn(f"told-{form}")
    first = told.ask(STORY, sampling=SHORT).get(timeout=WAIT)
    system.export_agent(told.agent_id, path, format=form)

    agent = system.import_agent(path, f"copy-{form}")

    assert agent.transcript().token_ids == told.transcript().token_ids
    assert agent.transcript().text == told.transcript().text
    assert stored_kv(system, agent.agent_id) == stored_kv(system, told.agent_id)
    expected = told.ask("and then?", sampling=SHORT).get(timeout=WAIT)
    reply = agent.ask("and then?", sampling=SHORT).get(timeout=WAIT)
    assert reply.cache == "warm"
    assert reply.usage.reused_tokens == len(STORY) + len(first.token_ids) - 1
    assert reply.token_ids == expected.token_ids


def test_only_the_archive_keeps_the_turns_and_the_rest_become_a_raw_one(
    system: AgentSystem, path: Path, tmp_path: Path
) -> None:
    system.export_agent("alice", path, format="archive")
    system.export_agent("alice", tmp_path / "flat", format="q4-flat")

    whole = system.import_agent(path, "whole").transcript()
    raw = system.import_agent(tmp_path / "flat", "raw").transcript()

    assert whole.turns == system.spawn("alice").transcript().turns
    (turn,) = raw.turns
    assert (turn.role, turn.raw, turn.text) == ("user", True, whole.text)


def test_exports_have_the_names_shapes_and_metadata_of_the_seeds(
    system: AgentSystem, tmp_path: Path
) -> None:
    tokens = system.spawn("alice").transcript().token_ids
    covered = len(tokens) - 1
    shapes, metadata = {}, {}
    for form in ("q4-flat", "q4-blocks", "fp16-flat"):
        system.export_agent("alice", tmp_path / form, format=form)
        with safe_open(tmp_path / form, framework="numpy") as file:
            metadata[form] = file.metadata()
            names = list(file.keys())
            shapes[form] = {name: file.get_slice(name).get_shape() for name in names}

    flat, blocks, half = shapes.values()
    assert [len(found) for found in (flat, blocks, half)] == [12, 24, 4]
    assert flat["layer_1_v_weights"] == [1, covered, HEADS, HEAD_DIM // 8]
    assert flat["layer_1_v_biases"] == [1, covered, HEADS, HEAD_DIM // 64]
    assert blocks["cache.layers.1.key_cache.0.data"] == [HEADS, 256, HEAD_DIM // 8]
    assert blocks["cache.layers.1.value_cache.1.scales"] == [HEADS, covered - 256, 1]
    assert half["k_layer_1"] == [HEADS, HEAD_DIM, covered]
    for found in metadata.values():
        assert found["total_tokens"] == str(covered)
        assert json.loads(found["token_sequence"]) == list(tokens)
    assert metadata["q4-flat"]["agent_id"] == "alice"
    assert metadata["q4-flat"]["prompt_text"] == system.spawn("alice").transcript().text
    assert metadata["q4-blocks"]["model_type"] == "llama"
    assert metadata["q4-blocks"]["num_blocks"] == "2"
    assert json.loads(metadata["fp16-flat"]["model_tag"]) == {
        "n_layers": LAYERS,
        "n_kv_heads": HEADS,
        "head_dim": HEAD_DIM,
        "block_tokens": 256,
    }


def test_what_is_exported_again_is_the_same_file(system: AgentSystem, tmp_path: Path) -> None:
    for form in ("q4-flat", "q4-blocks"):
        system.export_agent("alice", tmp_path / f"{form}-1", format=form)
        system.import_agent(tmp_path / f"{form}-1", f"again-{form}")
        system.export_agent(f"again-{form}", tmp_path / f"{form}-2", format=form)

        first, second = load_file(tmp_path / f"{form}-1"), load_file(tmp_path / f"{form}-2")
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_scales_keep_their_dtype_to_the_bit(
    open_system: OpenSystem, tmp_path: Path, dtype: str
) -> None:
    system = open_system(tiny_llama, dtype=dtype, attention="packed")
    system.spawn("alice").ask("in half precision", sampling=SHORT).get(timeout=WAIT)
    short = {"bfloat16": "BF16", "float16": "F16"}[dtype]

    for form in ("q4-flat", "q4-blocks", "mlx-lm"):
        path = tmp_path / f"{form}.safetensors"
        system.export_agent("alice", path, format=form)
        system.import_agent(path, form)

        with safe_open(path, framework="numpy") as file:
            found = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        assert found - {"I32"} == {"U32", short}
        assert stored_kv(system, form) == stored_kv(system, "alice")


def test_float16_holds_what_the_codes_stand_for(system: AgentSystem, path: Path) -> None:
    system.export_agent("alice", path, format="fp16-flat")

    expected, found = numbers_of(system, "alice"), load_file(path)
    for layer in range(LAYERS):
        for half, letter in enumerate("kv"):
            array = found[f"{letter}_layer_{layer}"]
            assert array.dtype == np.float16
            np.testing.assert_allclose(
                array.transpose(0, 2, 1), expected[layer, half], rtol=2**-10, atol=1e-6
            )


def test_a_float16_import_is_warm_and_close_to_what_was_exported(
    system: AgentSystem, path: Path
) -> None:
    system.export_agent("alice", path, format="fp16-flat")

    agent = system.import_agent(path, "fp16", tokens=system.spawn("alice").transcript().token_ids)

    error = np.abs(numbers_of(system, "fp16") - numbers_of(system, "alice"))
    step = np.abs(halves_of(system, "alice", "scales"))
    assert (error <= step).all()
    assert error.mean() < step.mean() / 10
    assert agent.ask("and then?", sampling=SHORT).get(timeout=WAIT).cache == "warm"


def test_progress_is_told_until_all_is_done(system: AgentSystem, path: Path) -> None:
    written: list[tuple[int, int]] = []
    read: list[tuple[int, int]] = []

    system.export_agent("alice", path, format="q4-flat", on_step=lambda *step: written.append(step))
    system.import_agent(path, "watched", on_step=lambda *step: read.append(step))

    for steps, total in ((written, 1 + LAYERS * 6), (read, path.stat().st_size)):
        assert steps == sorted(steps)
        assert steps[-1] == (total, total)
        assert len(steps) > LAYERS * 6


# -- golden files, written by hand -----------------------------------------------------


def test_a_q4_flat_file_of_the_write_up_becomes_an_agent(system: AgentSystem, path: Path) -> None:
    layers = random_q4(300)
    tokens = [index % 128 for index in range(300)]
    q4_flat(path, layers, tokens)

    agent = system.import_agent(path, "golden-flat")

    assert agent.transcript().token_ids == tuple(tokens)
    check_golden(system, "golden-flat", layers, 299)
    reply = agent.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT)
    assert (reply.cache, reply.usage.reused_tokens) == ("warm", 299)


@pytest.mark.parametrize("pad", [False, True])
def test_a_q4_blocks_file_of_the_paper_becomes_an_agent(
    system: AgentSystem, path: Path, pad: bool
) -> None:
    layers = random_q4(300, seed=1)
    q4_blocks(path, layers, pad=pad)

    agent = system.import_agent(path, f"golden-blocks-{pad}", tokens=[7] * 301)

    check_golden(system, agent.agent_id, layers, 300)
    reply = agent.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT)
    assert (reply.cache, reply.usage.reused_tokens) == ("warm", 300)


def test_a_file_of_one_token_has_no_kv_worth_keeping(system: AgentSystem, path: Path) -> None:
    q4_flat(path, random_q4(1), [5])

    agent = system.import_agent(path, "one token")

    assert agent.transcript().token_ids == (5,)
    assert stored_kv(system, "one token") == ()
    assert agent.ask([1, 2], sampling=SHORT).get(timeout=WAIT).cache == "cold"


def check_golden(system: AgentSystem, agent_id: str, layers: Any, tokens: int) -> None:
    """Codes to the bit; float16 scales are the same numbers in the model's float32."""
    for ours, theirs in (("codes", "data"), ("scales", "scales"), ("biases", "biases")):
        found = halves_of(system, agent_id, ours)
        expected = np.stack([[half[theirs] for half in halves] for halves in layers])
        assert found.shape[3] == tokens
        assert np.array_equal(found, expected[:, :, :, :tokens])


def test_an_fp16_flat_file_of_the_schema_becomes_an_agent(system: AgentSystem, path: Path) -> None:
    import mlx.core as mx

    layers = random_floats(40)
    fp16_flat(path, layers)

    agent = system.import_agent(path, "golden-fp16", tokens=[5] * 41)

    expected = mx.quantize(
        mx.array(np.stack([np.stack(halves).transpose(0, 1, 3, 2) for halves in layers])).astype(
            mx.float32
        ),
        group_size=64,
        bits=4,
    )
    for name, array in zip(("codes", "scales", "biases"), expected, strict=True):
        assert np.array_equal(halves_of(system, "golden-fp16", name), np.array(array))
    assert agent.ask([1, 2], sampling=SHORT).get(timeout=WAIT).cache == "warm"


def test_kv_in_eight_bits_or_float_goes_through_mlx_lm_s_format_to_the_bit(
    tmp_path: Path,
) -> None:
    for bits in (8, None):
        path = tmp_path / f"{bits}.safetensors"
        with AgentSystem(tiny_llama, store=tmp_path / str(bits), kv_bits=bits) as system:
            system.spawn("alice").ask("hello there", sampling=SHORT).get(timeout=WAIT)
            system.export_agent("alice", path, format="mlx-lm")

            system.import_agent(path, "bob")

            assert stored_kv(system, "bob") == stored_kv(system, "alice")
