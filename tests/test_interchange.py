"""Agents to files and back: the seeds' formats, through AgentSystem."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_files import HEAD_DIM, HEADS, LAYERS, fp16_flat, q4_blocks, q4_flat, random_q4
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from kvactors.actors import (
    AgentExists,
    AgentSystem,
    ExportRejected,
    ImportRejected,
    InvalidInput,
    ModelMismatch,
    Sampling,
    TokensMissing,
)
from kvactors.actors.messages import WithStore
from kvactors.core.testing import PlainTokenizer, snap_to_grid, tiny_model
from kvactors.persistence.segment import Segment

OpenSystem = Callable[..., AgentSystem]
SHORT = Sampling(max_tokens=8)
WAIT = 60
STORY = "Once upon a time there was an actor. " * 9
EXACT = ("archive", "q4-flat", "q4-blocks", "mlx-lm")


def tiny_llama() -> tuple[Any, PlainTokenizer]:
    return snap_to_grid(tiny_model(seed=3)), PlainTokenizer()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentSystem]:
    """A grid model, and alice, who was told a story; other agents come and go."""
    store = tmp_path_factory.mktemp("exchange") / "store"
    with AgentSystem(tiny_llama, store=store, attention="packed") as running:
        running.spawn("alice").ask(STORY, sampling=SHORT).get(timeout=WAIT)
        yield running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.safetensors"


def stored_kv(system: AgentSystem, agent_id: str) -> tuple[Segment, ...]:
    work = WithStore(lambda store: store.read_kv(agent_id, system.info.fingerprint))
    found: tuple[Segment, ...] = system._crew.ask(system._crew.persistence, work)
    return found


def is_stored(system: AgentSystem, agent_id: str) -> bool:
    work = WithStore(lambda store: store.read_ledger(agent_id))
    return system._crew.ask(system._crew.persistence, work) is not None


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


def random_floats(tokens: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    random = np.random.default_rng(4)

    def half() -> NDArray[Any]:
        return random.normal(size=(HEADS, HEAD_DIM, tokens)).astype(np.float16)

    return [(half(), half()) for _ in range(LAYERS)]


# -- what is refused -------------------------------------------------------------------


def refused(system: AgentSystem, path: Path, **options: Any) -> ImportRejected:
    """The error of an import that must fail and store nothing."""
    with pytest.raises(ImportRejected) as caught:
        system.import_agent(path, "refused", **options)
    assert not is_stored(system, "refused")
    assert caught.value.field in str(caught.value)
    return caught.value


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


def header(entries: Any, *, length: int | None = None, body: bytes = b"") -> bytes:
    raw = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + body


ONE = {"dtype": "U32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        header({}, length=2**63),
        header({}, length=99),
        header(b"[" * 200_000),
        header(b"not json"),
        header([]),
        header({}),
        header({"__metadata__": 7}),
        header({"layer_0_k_weights": ONE}),
        header({"layer_0_k_weights": {**ONE, "data_offsets": [0, 2**62]}}, body=b"1234"),
        header({"layer_0_k_weights": {**ONE, "data_offsets": [-4, 0]}}, body=b"1234"),
        header({"layer_0_k_weights": {**ONE, "shape": [-1]}}, body=b"1234"),
        header({"layer_0_k_weights": {**ONE, "shape": [2**40, 2**40]}}, body=b"1234"),
        header({"layer_0_k_weights": {**ONE, "dtype": ["U32"]}}, body=b"1234"),
        header({"layer_0_k_weights": ONE, "layer_0_v_weights": ONE}, body=b"1234"),
        header(b'{"layer_0_k_weights":' + json.dumps(ONE).encode() + b',"layer_0_k_weights":1}'),
        b"PK\x03\x04 no zip file",
    ],
)
def test_a_hostile_header_ends_in_a_typed_error(
    system: AgentSystem, path: Path, data: bytes
) -> None:
    path.write_bytes(data)

    assert refused(system, path).field in ("file", "format")


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
    with pytest.raises(ExportRejected, match="no agent 'nobody'"):
        system.export_agent("nobody", path)
    with pytest.raises(ExportRejected, match=r"\.safetensors"):
        system.export_agent("alice", path.with_suffix(".bin"), format="mlx-lm")
    with pytest.raises(InvalidInput, match="format must be one of"):
        system.export_agent("alice", path, format="gguf")

    assert list(path.parent.glob("agent*")) == []


def test_an_export_never_replaces_a_file(system: AgentSystem, path: Path) -> None:
    path.write_text("precious")

    for form in EXACT:
        with pytest.raises(ExportRejected, match="exists"):
            system.export_agent("alice", path, format=form)

    assert path.read_text() == "precious"
    assert list(path.parent.iterdir()) == [path]


def test_without_a_store_there_is_nothing_to_move(open_system: OpenSystem, path: Path) -> None:
    system = open_system(tiny_llama, store=False)

    with pytest.raises(InvalidInput, match="store=False"):
        system.export_agent("alice", path)


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
