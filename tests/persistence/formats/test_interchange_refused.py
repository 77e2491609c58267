"""Files that must not become agents, and agents that must not become files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_agents import SHORT, WAIT, refused, tiny_llama
from exchange_files import fp16_flat, q4_blocks, q4_flat, random_floats, random_q4
from makers import OpenSystem
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from kvactors.actors import (
    AgentExists,
    AgentNotStored,
    AgentSystem,
    ExportRejected,
    InvalidInput,
    ModelMismatch,
    TokensMissing,
)
from kvactors.actors.turns.messages_store import WithStore
from kvactors.core.testing.models import PlainTokenizer, snap_to_grid, tiny_model
from kvactors.persistence import Save, Store
from kvactors.persistence.store.new_agent import add_agent

FORMS = ("q4-flat", "q4-blocks", "fp16-flat", "mlx-lm")


def test_what_an_archive_says_itself_is_refused_beside_it(system: AgentSystem, path: Path) -> None:
    told = system.spawn("told")
    told.ask("hello", sampling=SHORT).get(timeout=WAIT)
    system.export_agent("told", path)

    for said in ({"tokens": [1]}, {"of_this_model": True}):
        with pytest.raises(InvalidInput, match="an archive, which says its tokens"):
            system.import_agent(path, "copy", **said)

    assert system.find("copy") is None
    assert system.import_agent(path, "copy").transcript().text == told.transcript().text


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_tag": {"n_layers": 3}}, "model_tag.n_layers"),
        ({"model_tag": {"n_kv_heads": 4}}, "model_tag.n_kv_heads"),
        ({"model_tag": {"head_dim": 128}}, "model_tag.head_dim"),
        ({"model_tag": {"block_tokens": 128}}, "model_tag.block_tokens"),
        ({"model_id": "somebody/tiny_mistral"}, "model_id"),
    ],
)
def test_an_incompatible_float16_cache_is_a_miss_that_names_the_field(
    system: AgentSystem, path: Path, changes: dict[str, Any], field: str
) -> None:
    fp16_flat(path, random_floats(8), **changes)

    error = refused(system, path, tokens=[1] * 9)

    assert isinstance(error, ModelMismatch)
    assert error.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "gemma3"}, "model_type"),
        ({"num_layers": 42}, "num_layers"),
        ({"num_attention_heads": 40}, "num_attention_heads"),
        ({"head_dim": 128}, "head_dim"),
        ({"num_blocks": 16}, "num_blocks"),
        ({"quantization": "Q8_0"}, "quantization"),
        ({"total_tokens": "-4"}, "total_tokens"),
        ({"total_tokens": "[" * 100_000}, "total_tokens"),
        ({"total_tokens": 255}, "cache.layers.0.key_cache.0.data"),
        ({"total_tokens": 10**15, "num_blocks": -(-(10**15) // 256)}, "cache.layers.0.key_cache"),
    ],
)
def test_a_blocks_file_with_a_wrong_field_is_refused_by_its_name(
    system: AgentSystem, path: Path, changes: dict[str, Any], field: str
) -> None:
    q4_blocks(path, random_q4(8), pad=False, **changes)

    assert refused(system, path, tokens=[1] * 9).field.startswith(field)


@pytest.mark.parametrize(
    ("sequence", "field"),
    [
        ("[1, 2, 3]", "token_sequence"),
        ("[]", "token_sequence"),
        ("{}", "token_sequence"),
        ("no json", "token_sequence"),
        (str([1] * 7 + [128]), "token_sequence[7]"),
        (str([1] * 7 + [-1]), "token_sequence[7]"),
        ("[1, 2, 3, 4, 5, 6, 7, true]", "token_sequence[7]"),
        ("[1, 2, 3, 4, 5, 6, 7, 1e3]", "token_sequence[7]"),
        (str([1] * 9000), "token_sequence"),
    ],
)
def test_token_ids_are_checked_before_anything_is_stored(
    system: AgentSystem, path: Path, sequence: str, field: str
) -> None:
    q4_flat(path, random_q4(8), [], token_sequence=sequence)

    assert refused(system, path).field == field


def test_kv_without_token_ids_is_refused_until_they_are_given(
    system: AgentSystem, path: Path
) -> None:
    q4_blocks(path, random_q4(8), pad=False)

    assert isinstance(refused(system, path), TokensMissing)
    assert refused(system, path, tokens=[1] * 7).field == "tokens"
    assert refused(system, path, tokens=[1] * 8 + [999]).field == "tokens[8]"


Change = Callable[[dict[str, NDArray[Any]]], None]


def drop(tensors: dict[str, NDArray[Any]]) -> None:
    del tensors["layer_1_v_biases"]


def rename(tensors: dict[str, NDArray[Any]]) -> None:
    tensors["layer_2_k_weights"] = tensors["layer_1_k_weights"]


def shorten(tensors: dict[str, NDArray[Any]]) -> None:
    tensors["layer_1_k_weights"] = tensors["layer_1_k_weights"][:, :7].copy()


def widen(tensors: dict[str, NDArray[Any]]) -> None:
    tensors["layer_0_k_scales"] = tensors["layer_0_k_scales"].astype(np.float64)


def flatten(tensors: dict[str, NDArray[Any]]) -> None:
    tensors["layer_0_v_weights"] = tensors["layer_0_v_weights"].reshape(-1)


def poison(tensors: dict[str, NDArray[Any]]) -> None:
    tensors["layer_0_v_biases"][0, 3, 1, 0] = np.nan


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (drop, "layer_1_v_biases"),
        (rename, "layer_2_k_weights"),
        (shorten, "layer_1_k_weights"),
        (widen, "layer_0_k_scales"),
        (flatten, "layer_0_v_weights"),
        (poison, "layer_0_v_biases"),
    ],
)
def test_a_tensor_of_another_form_is_refused_by_its_name(
    system: AgentSystem, path: Path, change: Change, field: str
) -> None:
    q4_flat(path, random_q4(8), [1] * 9)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata)

    assert refused(system, path).field == field


def test_a_file_beyond_the_memory_budget_is_not_read(open_system: OpenSystem, path: Path) -> None:
    system = open_system(tiny_llama, memory_budget=1 << 20)
    with open(path, "wb") as file:
        file.truncate((1 << 20) + 1)

    assert refused(system, path).field == "size"


def test_an_import_never_writes_over_an_agent(system: AgentSystem, path: Path) -> None:
    before = system.spawn("alice").transcript()
    system.export_agent("alice", path)
    system.spawn("only spawned")

    for agent_id in ("alice", "only spawned"):
        with pytest.raises(AgentExists, match=agent_id):
            system.import_agent(path, agent_id)
    assert system.spawn("alice").transcript() == before


def test_a_stored_agent_that_nobody_spawned_is_not_written_over(
    open_system: OpenSystem, path: Path
) -> None:
    first = open_system(tiny_llama)
    first.spawn("alice").ask("hello", sampling=SHORT).get(timeout=WAIT)
    first.export_agent("alice", path)
    first.stop()
    second = open_system(tiny_llama)

    with pytest.raises(AgentExists, match="alice"):
        second.import_agent(path, "alice")

    assert second.spawn("alice").ask("more", sampling=SHORT).get(timeout=WAIT).cache == "warm"


def test_kv_of_another_model_is_refused_by_its_fingerprint(
    system: AgentSystem, open_system: OpenSystem, tmp_path: Path
) -> None:
    def other_model() -> tuple[Any, PlainTokenizer]:
        return snap_to_grid(tiny_model(seed=4)), PlainTokenizer()

    other = open_system(other_model)
    for form in ("q4-flat", "q4-blocks", "mlx-lm"):
        path = tmp_path / f"{form}.safetensors"
        system.export_agent("alice", path, format=form)

        error = refused(other, path)

        assert isinstance(error, ModelMismatch)
        assert error.field == "fingerprint"


def test_what_a_format_cannot_hold_is_refused_and_no_file_is_made(
    open_system: OpenSystem, path: Path
) -> None:
    system = open_system(tiny_llama, kv_bits=8)
    system.spawn("alice").ask("in eight bits", sampling=SHORT).get(timeout=WAIT)

    for form in ("q4-flat", "q4-blocks"):
        with pytest.raises(ExportRejected, match="layer 0 is kept in 8"):
            system.export_agent("alice", path, format=form)
    with pytest.raises(AgentNotStored, match="no agent 'nobody' to export"):
        system.export_agent("nobody", path)
    with pytest.raises(ExportRejected, match=r"\.safetensors"):
        system.export_agent("alice", path.with_suffix(".bin"), format="mlx-lm")
    with pytest.raises(InvalidInput, match="format must be one of"):
        system.export_agent("alice", path, format="gguf")

    assert list(path.parent.glob("agent*")) == []


def test_an_export_never_replaces_a_file(system: AgentSystem, path: Path) -> None:
    path.write_text("precious")

    for form in ("archive", *FORMS):
        with pytest.raises(ExportRejected, match="exists"):
            system.export_agent("alice", path, format=form)

    assert path.read_text() == "precious"
    assert list(path.parent.iterdir()) == [path]


def test_without_a_store_there_is_nothing_to_move(open_system: OpenSystem, path: Path) -> None:
    system = open_system(tiny_llama, store=False)

    with pytest.raises(InvalidInput, match="store=False"):
        system.export_agent("alice", path)


def test_kv_that_is_not_of_the_ledger_s_tokens_is_not_exported(
    system: AgentSystem, path: Path
) -> None:
    def swap(store: Store) -> None:
        (record,) = store.read_ledger("alice") or ()
        other = {**record, "turns": [{**record["turns"][0], "tokens": b"\x01\x00\x00\x00" * 400}]}
        kv = store.read_kv("alice", system.info.fingerprint)
        add_agent(store, "swapped", [Save("swapped", (other,), system.info.fingerprint, kv)])
        add_agent(store, "strange", [Save("strange", ({},), system.info.fingerprint, kv)])

    system.parts.lifecycle.ask(system.parts.lifecycle.persistence, WithStore(swap))

    for agent_id, expected in (("swapped", "fits its tokens"), ("strange", "another form")):
        with pytest.raises(ExportRejected, match=expected):
            system.export_agent(agent_id, path, format="q4-flat")
    assert not path.exists()
