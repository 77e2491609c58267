"""The default path on a CPU (codes as floats, floats that are kept, parts of weights, beginnings
read once), pinned so that each machine takes it, against an oracle that shares no code with it."""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from cascade import Noting
from makers import prompt_of, prompts_of
from numpy_llama import Codes, NumpyLlama

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.cells import Cells
from kvactors.core.arena.kv_layer import KVLayer
from kvactors.core.arena.pools import Pool
from kvactors.core.attention.attend import attend
from kvactors.core.attention.linear_cpu import watch_parts
from kvactors.core.attention.packed import HALVED_SCORES
from kvactors.core.attention.plan import AttendPlan, causal_mask
from kvactors.core.attention.policy import AttentionPath
from kvactors.core.cache.spec import LayerSpec
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.quant.device import on_cpu
from kvactors.core.testing.models import PlainTokenizer, tiny_model

LIMIT = 1e-4
STEPS = 3
HEADS = 8
CHUNK = 100

pytestmark = pytest.mark.skipif(not on_cpu(), reason="these paths are for the CPU")


@pytest.fixture(scope="module")
def pinned() -> LoadedModel:
    """Of weights so large that a few rows are multiplied with parts of them."""
    model = tiny_model(hidden_size=256, intermediate_size=1536, num_attention_heads=HEADS)
    loaded = load_model(lambda: (model, PlainTokenizer()), ModelOptions())
    policy = Noting(threshold=4, launch_tokens=64, unpack=True, parts=True)
    return replace(loaded, policy=policy)


class Rows:
    """Rows that were prefilled in chunks, and decode together."""

    def __init__(self, loaded: LoadedModel, *, floats: bool, chunk: int = CHUNK) -> None:
        self.loaded = loaded
        self.chunk = chunk
        self.arena = Arena(loaded.spec, loaded.policy)
        self.arena.floats = floats
        self.tokens: list[list[int]] = []

    def join(self, prompts: Sequence[list[int]], shared: int = 0) -> None:
        """Prefill each of `prompts`, of which the first `shared` tokens are one piece, and let it
        join."""
        alone = self.prefilled(prompts[0][:shared], [], 0) if shared else None
        pieces = [] if alone is None else [alone.export(0, 0, shared)]
        for prompt in prompts:
            source = self.prefilled(prompt, pieces, shared)
            self.tokens.insert(self.arena.take(source, 0), list(prompt))

    def prefilled(self, prompt: list[int], pieces: Sequence[object], begun: int) -> Arena:
        arena = Arena(self.loaded.spec, self.loaded.policy, max_slabs=1)
        arena.add_row(begun, len(prompt))
        for piece in pieces:
            arena.load(0, piece)  # type: ignore[arg-type]
        for start in range(begun, len(prompt), self.chunk):
            arena.forward(self.loaded.model, mx.array([prompt[start : start + self.chunk]]))
            arena.evaluate()
        return arena

    def step(self, fed: int) -> np.ndarray:
        """The logits [rows, vocab] of a decode step."""
        for tokens in self.tokens:
            tokens.append((fed + 7 * len(tokens)) % 127 + 1)
        last = mx.array([[tokens[-1]] for tokens in self.tokens])
        logits = self.arena.forward(self.loaded.model, last)[:, -1]
        mx.eval(logits)
        return np.array(logits)

    def held(self, row: int) -> list[Codes]:
        """What a row holds, layer by layer."""
        (group,) = self.arena.export(row, 0, len(self.tokens[row])).groups
        arrays = {name: np.array(array) for name, array in group.items()}
        parts = zip(arrays["codes"], arrays["scales"], arrays["biases"], strict=True)
        return [Codes(*part) for part in parts]


def agree(rows: Rows, logits: np.ndarray) -> None:
    """The last step's logits, and all that was stored on the way, are the oracle's."""
    oracle = NumpyLlama(rows.loaded.model)
    for row, tokens in enumerate(rows.tokens):
        seen = oracle.run(tokens, rows.held(row))
        expected = seen.logits[-1]
        error = float(np.abs(logits[row] - expected).max() / expected.std())
        print(f"{len(tokens)} tokens: logits {error:.1e} off, codes {seen.worst_code:.2f} steps")
        assert error < LIMIT
        assert seen.worst_code < 1.01


def keeps_floats(rows: Rows) -> bool:
    layers = [layer for layer in rows.arena.layers if isinstance(layer, KVLayer)]
    return all(pool.floats.copy is not None for layer in layers for pool in layer.rows.pools)


@pytest.mark.parametrize("floats", [False, True], ids=["codes", "floats kept"])
def test_a_few_rows(pinned: LoadedModel, floats: bool) -> None:
    rows = Rows(pinned, floats=floats)
    rows.join(prompts_of((3, 130, 60)))

    with watch_parts() as taken:
        for fed in range(STEPS):
            logits = rows.step(fed)

    assert keeps_floats(rows) == floats
    assert {count for count, _ in taken} == {3}
    agree(rows, logits)


@pytest.mark.parametrize("floats", [False, True], ids=["codes", "floats kept"])
def test_rows_that_begin_alike(
    pinned: LoadedModel, floats: bool, calls: list[tuple[int, int]]
) -> None:
    beginning = prompt_of(256, seed=1)
    rows = Rows(pinned, floats=floats)
    rows.join([[*beginning, *own] for own in prompts_of((5, 70, 31, 64, 9, 20))], shared=256)

    for fed in range(STEPS):
        logits = rows.step(fed)

    assert (6, 256) in calls
    agree(rows, logits)


@pytest.mark.slow
def test_many_rows_whose_codes_become_floats_for_a_product(pinned: LoadedModel) -> None:
    rows = Rows(pinned, floats=False)
    rows.join(prompts_of([250 + number for number in range(30)], seed=2))

    for fed in range(STEPS):
        logits = rows.step(fed)

    # A second core is taken, and powers of two.
    assert len(rows.tokens) * HEADS * max(map(len, rows.tokens)) >= HALVED_SCORES
    agree(rows, logits)


@pytest.mark.parametrize(("tokens", "keys", "path"), [(8, 500, "dequantize"), (2, 90, "packed")])
def test_several_queries_over_few_keys_are_asked_of_floats_where_they_are_worth_it(
    tokens: int, keys: int, path: AttentionPath
) -> None:
    noise = [mx.random.normal((1, 4, n, 64), key=mx.random.key(n)) for n in (keys, tokens)]
    pool = Pool(LayerSpec("full", 4, 64, 4, 64, "float32"), 1, keys)
    pool.write(noise[0], noise[0], Cells(mx.arange(keys)[None], 0))
    asked, stored = mx.concatenate([noise[1]] * 2, axis=1), pool.read(1, keys)

    found = attend(asked, stored, AttendPlan("unpack", 0.1, causal_mask(tokens, keys)))

    expected = attend(asked, stored, AttendPlan(path, 0.1, causal_mask(tokens, keys)))
    assert mx.array_equal(found, expected)


def test_chunks_of_a_few_tokens(pinned: LoadedModel) -> None:
    rows = Rows(pinned, floats=False, chunk=8)
    rows.join(prompts_of((90, 130)))

    logits = rows.step(0)

    agree(rows, logits)


def test_the_oracle_sees_codes_of_one_token_that_are_others(pinned: LoadedModel) -> None:
    rows = Rows(pinned, floats=True)
    rows.join([prompt_of(90)])
    logits = rows.step(0)
    held = rows.held(0)
    held[1].codes[:, :, 40] ^= 0x88888888

    seen = NumpyLlama(pinned.model).run(rows.tokens[0], held)

    assert seen.worst_code > 6
    assert float(np.abs(logits[0] - seen.logits[-1]).max() / logits[0].std()) > LIMIT
