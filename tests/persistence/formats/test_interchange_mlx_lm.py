"""mlx-lm's prompt caches, both ways, against the installed mlx-lm."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from children import run_child
from exchange_agents import SHORT, WAIT, stored_kv, tiny_llama
from makers import OpenSystem
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import (
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    load_prompt_cache,
    save_prompt_cache,
)

from kvactors.actors import AgentSystem, ImportRejected, ModelMismatch, Sampling, TokensMissing
from kvactors.core.model.options import DEFAULT_MODEL

TOKENS = [index * 7 % 128 for index in range(300)]


def prefilled(make: Callable[[], Any]) -> list[Any]:
    """A cache of mlx-lm's own that TOKENS went through."""
    model, _ = tiny_llama()
    cache = [make() for _ in model.layers]
    mx.eval(model(mx.array([TOKENS]), cache=cache))
    return cache


def packed() -> QuantizedKVCache:
    return QuantizedKVCache(group_size=64, bits=4)


def save(path: Path, cache: list[Any], **metadata: str) -> None:
    """As mlx_lm.cache_prompt does it, and perhaps with more metadata."""
    save_prompt_cache(
        str(path), cache, {"model": "some/tiny_llama", "tokenizer_config": "{}", **metadata}
    )


def stored(system: AgentSystem, agent_id: str) -> dict[str, mx.array]:
    """An agent's stored arrays by name: [layers, 2, H, T, width], of a model in float32."""
    parts: dict[str, list[mx.array]] = {}
    for segment in stored_kv(system, agent_id):
        for name, dtype, shape, data in segment.tensors:
            plain = {"U32": np.uint32, "F32": np.float32}[dtype]
            array = mx.array(np.frombuffer(data, plain).reshape(shape))
            parts.setdefault(name.removeprefix("g0."), []).append(array)
    return {name: mx.concatenate(found, axis=3) for name, found in parts.items()}


def test_mlx_lm_continues_from_an_exported_agent_as_the_agent_does(
    open_system: OpenSystem, path: Path
) -> None:
    system = open_system(tiny_llama, attention="packed")
    alice = system.spawn("alice")
    alice.ask(TOKENS, sampling=SHORT).get(timeout=WAIT)
    system.export_agent("alice", path, format="mlx-lm")
    known = alice.transcript().token_ids
    expected = alice.ask([9, 8, 7], sampling=SHORT).get(timeout=WAIT).token_ids

    cache, metadata = load_prompt_cache(str(path), return_metadata=True)
    covered = int(metadata["total_tokens"])
    assert json.loads(metadata["token_sequence"]) == list(known)
    assert [type(layer) for layer in cache] == [QuantizedKVCache] * 2
    assert [layer.offset for layer in cache] == [covered, covered] == [len(known) - 1] * 2
    prompt = mx.array([*known[covered:], 9, 8, 7])
    steps = generate_step(prompt, tiny_llama()[0], max_tokens=8, prompt_cache=cache)

    assert tuple(token for token, _ in steps) == expected


def test_a_quantized_cache_of_mlx_lm_becomes_an_agent_to_the_bit(
    open_system: OpenSystem, path: Path
) -> None:
    cache = prefilled(packed)
    save(path, cache, token_sequence=json.dumps(TOKENS))
    system = open_system(tiny_llama, attention="packed")
    told = system.spawn("told")
    told.observe("".join(map(chr, TOKENS))).get(timeout=WAIT)

    agent = system.import_agent(path, "alice")

    assert agent.transcript().token_ids == tuple(TOKENS) == told.transcript().token_ids
    found = stored(system, "alice")
    for place, name in enumerate(("codes", "scales", "biases")):
        theirs = mx.stack(
            [mx.concatenate([layer.keys[place], layer.values[place]]) for layer in cache]
        )
        assert mx.array_equal(found[name], theirs[:, :, :, : len(TOKENS) - 1])
    reply = agent.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT)
    assert (reply.cache, reply.usage.reused_tokens) == ("warm", len(TOKENS) - 1)
    assert reply.token_ids == told.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT).token_ids


def test_a_float_cache_is_quantized_on_import(open_system: OpenSystem, path: Path) -> None:
    cache = prefilled(KVCache)
    save(path, cache)
    system = open_system(tiny_llama)

    agent = system.import_agent(path, "alice", tokens=TOKENS)

    floats = mx.stack([mx.concatenate(layer.keys_and_values()) for layer in cache])
    expected = mx.quantize(floats[:, :, :, :-1], group_size=64, bits=4)
    found = stored(system, "alice")
    for name, array in zip(("codes", "scales", "biases"), expected, strict=True):
        assert mx.array_equal(found[name], array)
    assert agent.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT).cache == "warm"


def test_a_cache_saved_without_metadata_is_of_the_model_that_it_is_said_to_be_of(
    open_system: OpenSystem, path: Path
) -> None:
    save_prompt_cache(str(path), prefilled(packed))
    system = open_system(tiny_llama, attention="packed")
    with pytest.raises(ModelMismatch, match="of_this_model=True"):
        system.import_agent(path, "alice", tokens=TOKENS)

    agent = system.import_agent(path, "alice", tokens=TOKENS, of_this_model=True)

    told = system.spawn("told")
    told.observe("".join(map(chr, TOKENS))).get(timeout=WAIT)
    reply = agent.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT)
    assert (reply.cache, reply.usage.reused_tokens) == ("warm", len(TOKENS) - 1)
    assert reply.token_ids == told.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT).token_ids


def test_what_a_file_says_counts_for_more_than_what_is_said_of_it(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    named, other = tmp_path / "named.safetensors", tmp_path / "other.safetensors"
    save_prompt_cache(str(named), prefilled(packed), {"model": "some/other"})
    save_prompt_cache(str(other), prefilled(lambda: QuantizedKVCache(group_size=32, bits=8)))
    system = open_system(tiny_llama)

    for file, said in ((named, "some/other"), (other, "8 bits in groups of 32")):
        with pytest.raises(ModelMismatch, match=said):
            system.import_agent(file, "alice", tokens=TOKENS, of_this_model=True)


def test_a_float_cache_stays_float_where_the_model_keeps_float(
    open_system: OpenSystem, path: Path
) -> None:
    cache = prefilled(KVCache)
    save(path, cache)
    system = open_system(tiny_llama, kv_bits=None)

    system.import_agent(path, "alice", tokens=TOKENS)

    floats = mx.stack([mx.concatenate(layer.keys_and_values()) for layer in cache])
    assert mx.array_equal(stored(system, "alice")["values"], floats[:, :, :, :-1])


def test_a_cache_without_token_ids_says_that_it_needs_them(
    open_system: OpenSystem, path: Path
) -> None:
    save(path, prefilled(packed))

    with pytest.raises(TokensMissing, match="tokens="):
        open_system(tiny_llama).import_agent(path, "alice")


def test_caches_that_do_not_fit_are_refused_by_the_field(
    open_system: OpenSystem, path: Path
) -> None:
    system = open_system(tiny_llama)

    def refused(cache: list[Any], **metadata: str) -> ImportRejected:
        save(path, cache, **metadata)
        with pytest.raises(ImportRejected) as caught:
            system.import_agent(path, "alice", tokens=TOKENS)
        return caught.value

    eight = refused(prefilled(lambda: QuantizedKVCache(group_size=64, bits=8)))
    assert "load it with kv_bits=8" in str(eight)
    groups = refused(prefilled(lambda: QuantizedKVCache(group_size=32, bits=4)))
    assert "group_size=32" in str(groups)
    assert "RotatingKVCache" in str(refused(prefilled(lambda: RotatingKVCache(max_size=512))))
    assert refused(prefilled(packed)[:1]).field == "1.1"
    assert refused(prefilled(packed) * 2).field == "1"
    assert refused(prefilled(packed), model="some/other").field == "model"
    ragged = prefilled(packed)
    ragged[1].trim(5)
    assert refused(ragged).field == "offset"
    overlong = prefilled(packed)
    overlong[0].offset = 9999
    assert refused(overlong).field == "0.0.0"
    assert isinstance(eight, ModelMismatch)
    assert system.spawn("alice").transcript().turns == ()


@pytest.mark.slow
def test_the_command_of_mlx_lm_continues_from_an_exported_agent(
    open_system: OpenSystem,
    path: Path,
) -> None:
    system = open_system("default")
    alice = system.spawn("alice")
    alice.ask("My cat is called Rex.", sampling=Sampling(max_tokens=32)).get(timeout=WAIT)
    system.export_agent("alice", path, format="mlx-lm")
    known, chat = alice.transcript().token_ids, system.chat
    reply = alice.ask("What is my cat called?", sampling=Sampling(max_tokens=16)).get(timeout=WAIT)
    metadata = load_prompt_cache(str(path), return_metadata=True)[1]
    asked = alice.transcript().turns[2].token_ids
    prompt = chat.decode([*known[int(metadata["total_tokens"]) :], *asked])
    system.stop()

    options = {
        "--prompt-cache-file": str(path),
        "--prompt": prompt.replace("\n", "\\n"),
        "--max-tokens": "16",
        "--temp": "0",
        "--verbose": "False",
    }
    arguments = [word for pair in options.items() for word in pair]
    generate = """
        from kvactors.core import blas
        blas.preload()
        from mlx_lm.generate import main
        main()
    """
    generated = run_child(generate, "--ignore-chat-template", *arguments)

    assert metadata["model"] == str(DEFAULT_MODEL)
    assert "Rex" in reply.text
    assert generated.stdout.strip() == reply.text.strip(), generated.stderr
