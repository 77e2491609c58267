"""Loading: what is derived, what is refused, and models as people have them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from children import run_child
from mlx.utils import tree_flatten

from kvactors.actors import AgentSystem, Sampling
from kvactors.core.errors import InvalidConfig, UnsupportedLayer
from kvactors.core.model.load import load_model
from kvactors.core.model.opening import ready
from kvactors.core.model.options import DEFAULT_MODEL, ModelOptions
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer, tiny_model

SHORT = Sampling(max_tokens=6)
WAIT = 60


def load(model: Any, **options: Any) -> Any:
    return load_model(lambda: (model, PlainTokenizer()), ModelOptions(**options))


def test_the_spec_is_derived_from_the_models_own_caches() -> None:
    loaded = load(tiny_model(num_key_value_heads=1, head_dim=96, hidden_size=384))

    assert [layer.kv_heads for layer in loaded.spec.layers] == [1, 1]
    assert [layer.head_dim for layer in loaded.spec.layers] == [96, 96]
    assert [layer.group_size for layer in loaded.spec.layers] == [32, 32]
    assert loaded.spec.vocab_size == 128
    assert loaded.spec.context == 8192


@pytest.mark.parametrize("family", ["gpt2", "gpt_bigcode"])
@pytest.mark.parametrize("positions", [64, 512])
def test_the_vocabulary_is_that_of_tokens_however_many_positions_there_are(
    family: str, positions: int
) -> None:
    assert load(build(family, n_positions=positions)).spec.vocab_size == 128


def test_a_head_dim_that_no_group_divides_stays_float() -> None:
    loaded = load(tiny_model(head_dim=80, hidden_size=320))

    assert [(layer.bits, layer.group_size) for layer in loaded.spec.layers] == [(None, None)] * 2


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_full_attention_families_pass_the_probe(kind: str, heads: tuple[int, int]) -> None:
    model = tiny_model(
        kind, num_attention_heads=heads[0], num_key_value_heads=heads[1], hidden_size=256
    )

    loaded = load(model)

    assert loaded.spec.batched


def refused_cache(kind: str) -> Any:
    from mlx_lm.models.cache import (
        ArraysCache,
        CacheList,
        ConcatenateKVCache,
        KVCache,
        RotatingKVCache,
    )

    made: dict[str, Callable[[], Any]] = {
        "concatenating": ConcatenateKVCache,
        "keeping": lambda: RotatingKVCache(64, keep=4),
        "unused": lambda: CacheList(KVCache(), KVCache()),
        "growing": lambda: ArraysCache(1),
    }
    return made[kind]()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("concatenating", "layer 1 caches with ConcatenateKVCache: supported are full attention"),
        ("keeping", r"layer 1 caches with RotatingKVCache\(keep=4\): .* would need them stored"),
        ("unused", r"layer 1\[1\] does not use its cache, one of several"),
        ("growing", "layer 1 has states .* that grow with the tokens"),
    ],
)
def test_a_layer_cache_of_another_kind_is_refused_with_the_layer_and_the_reason(
    kind: str, reason: str
) -> None:
    from mlx_lm.models.cache import KVCache

    class Odd(PlainModel):
        def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
            keys = mx.zeros((inputs.shape[0], 1, inputs.shape[1], 64))
            cache[0].update_and_fetch(keys, keys)
            if kind == "growing":
                cache[1][0] = keys
            if kind == "unused":
                cache[1][0].update_and_fetch(keys, keys)
            return mx.zeros((*inputs.shape, 8))

        def make_cache(self) -> list[Any]:
            return [KVCache(), refused_cache(kind)]

    with pytest.raises(UnsupportedLayer, match=reason):
        load(Odd())


def test_the_context_is_that_of_the_arguments_or_of_the_text_models() -> None:
    for family in ("gemma3_text", "gemma3", "gpt2", "qwen3_5"):
        assert load(build(family)).spec.context == 4096


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
def test_every_head_size_is_kept_in_groups_that_divide_it_or_in_float(head_dim: int) -> None:
    loaded = load(tiny_model(head_dim=head_dim, hidden_size=4 * head_dim))

    groups = {64: 64, 80: None, 96: 32, 128: 64, 192: 64, 256: 64}
    assert {layer.group_size for layer in loaded.spec.layers} == {groups[head_dim]}
    assert {layer.bits for layer in loaded.spec.layers} == {4 if groups[head_dim] else None}


class PlainModel:
    """As little of a model as load_model needs."""

    args = None

    def parameters(self) -> dict[str, Any]:
        return {}

    def named_modules(self) -> list[Any]:
        return []

    def set_dtype(self, _dtype: Any) -> None:
        pass


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_precision_weights_are_cast_to_float32_on_the_cpu_only_by_default(half: str) -> None:
    model = tiny_model()
    model.set_dtype(getattr(mx, half))

    assert load(model, dtype=half).spec.layers[0].dtype == half
    automatic = load(model).spec.layers[0].dtype
    assert automatic == ("float32" if mx.default_device() == mx.Device(mx.cpu) else half)


def test_what_mlx_lm_does_not_cast_is_cast_from_half_precision() -> None:
    model = build("deepseek_v3")
    model.set_dtype(mx.bfloat16)

    load(model, dtype="float32")

    assert {array.dtype for _, array in tree_flatten(model.parameters())} == {mx.float32}


def test_what_mlx_lm_does_not_cast_is_not_cast_when_a_dtype_is_asked_for() -> None:
    model = build("deepseek_v3")

    assert ready(model, "bfloat16")

    dtypes = {name: array.dtype for name, array in tree_flatten(model.parameters())}
    kept = {name for name, dtype in dtypes.items() if dtype == mx.float32}
    assert kept == {name for name in dtypes if name.endswith("e_score_correction_bias")} != set()


def save_model_directory(path: Path, *, quantize: bool) -> Path:
    """A llama with random weights and the default model's tokenizer, as mlx-lm saves it."""
    from mlx_lm.utils import quantize_model

    vocab = json.loads((DEFAULT_MODEL / "config.json").read_text())["vocab_size"]
    model = tiny_model(vocab_size=vocab)
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    if quantize:
        model, config = quantize_model(model, config, group_size=64, bits=4)
    path.mkdir(parents=True)
    mx.save_safetensors(str(path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (path / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (path / name).write_bytes((DEFAULT_MODEL / name).read_bytes())
    return path


@pytest.mark.parametrize("quantize", [False, True])
def test_a_directory_with_float_or_4_bit_weights_loads_and_answers(
    open_system: Callable[..., AgentSystem], tmp_path: Path, quantize: bool
) -> None:
    path = save_model_directory(tmp_path / "model", quantize=quantize)

    reply = open_system(path).spawn("a").ask("Hello.", sampling=SHORT).get(timeout=WAIT)

    assert reply.usage.generated_tokens >= 1


@pytest.mark.parametrize(
    ("said", "context"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"text_config": {"max_position_embeddings": 131_072}}, 131_072),
        ({"max_sequence_length": 2048}, 2048),
        ({"max_context_length": 2048}, 2048),
        ({"max_seq_len": 4096}, 4096),
        ({}, 32_768),
    ],
)
def test_the_context_is_what_the_directory_says_where_mlx_lm_does_not_read_it(
    tmp_path: Path, said: dict[str, Any], context: int
) -> None:
    path, model = save_model_directory(tmp_path / "model", quantize=False), build("mixtral")
    assert not hasattr(model.args, "max_position_embeddings")
    model.save_weights(str(path / "model.safetensors"))
    (path / "config.json").write_text(json.dumps({**vars(model.args), **said}))

    assert load_model(path, ModelOptions()).spec.context == context
    if said:
        with pytest.raises(InvalidConfig, match=f"exceeds the model's {context} positions"):
            load_model(path, ModelOptions(context=context + 1))


def test_a_model_that_says_no_limit_has_the_one_that_is_asked_for() -> None:
    assert load(build("mixtral"), context=65_536).spec.context == 65_536


def test_a_hub_name_loads_from_the_local_cache_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The hub's package reads these when it is imported: in a process of its own.
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    repository = tmp_path / "hub" / "models--someone--tiny"
    save_model_directory(repository / "snapshots" / "abc", quantize=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")

    child = run_child(
        """
        from kvactors.actors import AgentSystem, Sampling
        with AgentSystem("someone/tiny", store=False) as system:
            reply = system.spawn("a").ask("Hello.", sampling=Sampling(max_tokens=8)).get(timeout=60)
            print(system.info.name, len(reply.token_ids))
        """
    )

    name, tokens = child.stdout.split()
    assert name == "someone/tiny", child.stderr
    assert int(tokens) > 0


def test_paths_and_slabs_are_weighed_by_measurement_at_load() -> None:
    measured = load(tiny_model()).policy
    pinned = load(tiny_model(), attention="packed").policy

    assert measured.threshold in (1, 2, 4, 8, 16)
    assert 64 <= measured.launch_tokens <= 8192
    assert pinned.packed(width=4096, repeats=8)


@pytest.mark.parametrize("untold", [True, False])
def test_a_model_without_a_chat_template_is_warned_of_once(
    untold: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = PlainTokenizer()
    tokenizer.has_chat_template = not untold

    with AgentSystem(lambda: (tiny_model(), tokenizer), store=False) as system:
        for name in "ab":
            system.spawn(name).ask("hi", sampling=Sampling(max_tokens=2)).get(timeout=60)

    assert caplog.text.count("has no chat template") == untold
