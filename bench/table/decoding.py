"""Regimes of decoding: seconds a step, that is, between two tokens of an agent.

kvactors is measured through AgentSystem, actors included. Contexts are prefilled before; a
measured turn is taken back afterwards, so that the next one begins with the same memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from kvactors.bench import peers
from kvactors.bench.busy_threads import busy_threads
from kvactors.bench.peer_process import in_its_own_process
from kvactors.bench.regime import ANYWHERE, FLOAT_THERE, Regime, Side, Sides
from kvactors.bench.setup import Setup, answer
from kvactors.bench.turns import hot_agents, step

__all__ = ["BUSY_THREADS", "REGIMES", "against_batch", "against_one", "deep_llama"]

BUSY_THREADS = 4
# Turns that run at once, unless more are asked for.
MOST = 16


@contextmanager
def against_one(
    setup: Setup,
    length: int,
    source: Callable[[], Any] | None = None,
    *,
    quantize: bool = False,
    busy: int = 0,
) -> Iterator[Sides]:
    """One agent of `length` tokens of the model of `source` (that of `setup`), against mlx-lm's
    `generate_step` over its float cache, or what that is if one lets it `quantize`, each beside so
    many `busy` threads."""
    source, decoded = source or setup.source, setup.scale.decoded
    prompt = setup.prompt(setup.scale.tokens(length), 0, source)
    make = partial(peers.single_steps, quantize=quantize, busy=busy)
    with setup.system(source) as system, in_its_own_process(source, make, prompt) as theirs:
        agents = hot_agents(system, [prompt])

        def ours() -> Side:
            with busy_threads(busy):
                return step(system, agents, decoded)

        yield ours, lambda: Side(*theirs(decoded))


def one_long(setup: Setup) -> AbstractContextManager[Sides]:
    """One agent of 4,096 tokens at 4 bits, against mlx-lm's `generate_step` over its
    QuantizedKVCache of the same tokens, 4 bits in groups of 64."""
    return against_one(setup, 4096, quantize=True)


def one_long_float(setup: Setup) -> AbstractContextManager[Sides]:
    """One agent of 4,096 tokens at 4 bits, against mlx-lm's `generate_step` over its float
    cache."""
    return against_one(setup, 4096)


def busy_both(setup: Setup) -> AbstractContextManager[Sides]:
    """One agent of 1,000 tokens while four threads compute in Python, against mlx-lm's
    `generate_step` over its float cache beside four such threads."""
    return against_one(setup, 1000, busy=BUSY_THREADS)


@contextmanager
def _against_batch(
    setup: Setup, lengths: Sequence[int], source: Callable[[], Any] | None = None
) -> Iterator[Sides]:
    source, decoded = source or setup.source, setup.scale.decoded
    prompts = [
        setup.prompt(setup.scale.tokens(length), seed, source)
        for seed, length in enumerate(lengths)
    ]
    with (
        setup.system(source, max_batch=max(MOST, len(prompts))) as system,
        in_its_own_process(source, peers.batch_steps, prompts) as theirs,
    ):
        agents = hot_agents(system, prompts)
        yield lambda: step(system, agents, decoded), lambda: Side(*theirs(decoded))


def against_batch(agents: int, tokens: int) -> Callable[[Setup], AbstractContextManager[Sides]]:
    """What measures so many `agents` of so many `tokens` each, against mlx-lm's BatchGenerator."""
    return lambda setup: _against_batch(setup, [tokens] * min(agents, setup.scale.number(agents)))


def uniform(setup: Setup) -> AbstractContextManager[Sides]:
    """16 agents of 1,000 tokens each at 4 bits, against mlx-lm's BatchGenerator over float
    caches of the same tokens."""
    return _against_batch(setup, [1000] * 16)


def ragged(setup: Setup) -> AbstractContextManager[Sides]:
    """16 agents, 12 of 300 tokens, 3 of 1,000 and one of 6,000, against mlx-lm's
    BatchGenerator, which pads all to the longest."""
    return _against_batch(setup, [300] * 12 + [1000] * 3 + [6000])


def launches(setup: Setup) -> AbstractContextManager[Sides]:
    """12 agents of 100 tokens on a random llama of 32 layers and hidden size 64, where a step
    is launches rather than work, against mlx-lm's BatchGenerator."""
    return _against_batch(setup, [100] * 12, deep_llama)


def deep_llama(layers: int = 32) -> tuple[Any, Any]:
    """Layers that cost next to nothing."""
    from kvactors.core.testing.models import tiny_llama

    model, tokenizer = tiny_llama(
        num_hidden_layers=layers, hidden_size=64, num_attention_heads=2, num_key_value_heads=1
    )()
    tokenizer.eos_token_ids = set()
    return model, tokenizer


@contextmanager
def shared(setup: Setup) -> Iterator[Sides]:
    """16 agents that were forked from one of 1,000 tokens, against 16 agents with the same tokens,
    each for itself; a few tokens of each are its own in both."""
    beginning = setup.prompt(setup.scale.tokens(1000))
    endings = [setup.prompt(8, index) for index in range(16)]
    decoded = setup.scale.decoded
    with setup.system() as together, setup.system() as apart:
        parent = together.spawn("parent")
        first = answer(parent, beginning).token_ids
        children = [together.spawn(f"agent {index}", from_=parent) for index in range(16)]
        for child, ending in zip(children, endings, strict=True):
            answer(child, ending)
        loners = hot_agents(apart, [[*beginning, *first, *ending] for ending in endings])
        yield lambda: step(together, children, decoded), lambda: step(apart, loners, decoded)


@contextmanager
def overhead(setup: Setup) -> Iterator[Sides]:
    """One agent of 1,000 tokens, against a bare greedy loop of the model over the same kind of
    cache, one step ahead: what actors, scheduler, sampling and detokenizing cost."""
    prompt, decoded = setup.prompt(setup.scale.tokens(1000)), setup.scale.decoded
    bare = peers.Bare(setup.loaded, prompt)
    with setup.system() as system:
        agents = hot_agents(system, [prompt])
        yield lambda: step(system, agents, decoded), lambda: Side(*bare.step(decoded))


@contextmanager
def busy(setup: Setup) -> Iterator[Sides]:
    """One agent of 1,000 tokens while four threads compute in Python, against the same agent
    with no such thread."""
    prompt, decoded = setup.prompt(setup.scale.tokens(1000)), setup.scale.decoded
    with setup.system() as system:
        agents = hot_agents(system, [prompt])

        def beside() -> Side:
            with busy_threads(BUSY_THREADS):
                return step(system, agents, decoded)

        yield beside, lambda: step(system, agents, decoded)


BATCH = "mlx-lm BatchGenerator, float"
REGIMES = (
    Regime(
        "decode-one-4k",
        "mlx-lm generate_step, QuantizedKVCache",
        1.0,
        one_long,
        differ="theirs was prefilled in float and quantized at once",
    ),
    Regime(
        "decode-one-4k-float",
        "mlx-lm generate_step, float",
        1.0,
        one_long_float,
        differ=FLOAT_THERE,
    ),
    Regime("decode-16x1000", BATCH, 1.4, uniform, gpu=1.0, differ=FLOAT_THERE),
    Regime("decode-ragged", BATCH, 0.40, ragged, differ=FLOAT_THERE),
    Regime("decode-launches", BATCH, 0.9, launches, differ=FLOAT_THERE),
    Regime(
        "decode-shared",
        "the same without sharing",
        # What trunks that nobody copies give.
        0.9,
        shared,
        differ="sums over what is shared and what is not have another order",
    ),
    Regime("decode-overhead", "bare model loop", 1.1, overhead, holds_on=ANYWHERE),
    Regime("decode-busy-python", "no busy thread", 1.4, busy),
    Regime(
        "decode-busy-mlx-lm",
        "mlx-lm generate_step, float, as many busy threads",
        # Two thirds: mlx-lm takes 1.5 times as long.
        0.667,
        busy_both,
        differ=FLOAT_THERE,
    ),
)
