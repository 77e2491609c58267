"""Regimes of decoding: seconds a step, that is, between two tokens of an agent.

kvactors is measured through AgentSystem, actors included. Contexts are prefilled before; a
measured turn is taken back afterwards, so that the next one begins with the same memory.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kvactors.actors import Agent, AgentSystem, Grammar, Sampling
from kvactors.bench import peers
from kvactors.bench.setup import Setup, answer
from kvactors.bench.table.regime import Regime

__all__ = ["REGIMES", "hot_agents", "step_seconds", "token_times"]

Pairs = Iterator[tuple[float, float]]
BUSY_THREADS = 4
# Tokens that nobody is waited for to decode.
LONGER = 4096


def hot_agents(system: AgentSystem, prompts: Sequence[list[int]]) -> list[Agent]:
    """Agents that remember these prompts, in memory."""
    agents = [system.spawn(f"agent {index}") for index in range(len(prompts))]
    for agent, prompt in zip(agents, prompts, strict=True):
        answer(agent, prompt[:-1])
    return agents


def token_times(
    agent: Agent, prompt: list[int], tokens: int, grammar: Grammar | None = None
) -> list[float]:
    """When each of the first `tokens` of a turn of `agent`, asked this `prompt` and answered within
    the `grammar`, if one is given, arrived at the caller."""
    times: list[float] = []
    most = LONGER if grammar else tokens
    for piece in agent.stream(prompt, sampling=Sampling(max_tokens=most, grammar=grammar)):
        if len(times) >= tokens:
            break
        times += [time.perf_counter()] * len(piece.token_ids)
    return times


def step_seconds(
    system: AgentSystem, agents: Sequence[Agent], decoded: int, grammar: Grammar | None = None
) -> float:
    """Seconds between two of `decoded` tokens of the last of the `agents` of `system` while all
    decode, each within the `grammar` if one is given."""
    *others, last = agents
    more = Sampling(max_tokens=LONGER, grammar=grammar)
    pending = [agent.ask([1], sampling=more) for agent in others]
    while system.stats()["decoding"] < len(others):
        assert not any(future.done for future in pending), "it ended before the others began"
    times = token_times(last, [1], decoded + 2, grammar)
    for agent in others:
        agent.cancel()
    assert all(future.get().finish_reason == "cancelled" for future in pending)
    for agent in agents:
        agent.rewind().get()
    return (times[-1] - times[1]) / (len(times) - 2)


def one_long(setup: Setup) -> Pairs:
    """One agent of 4,096 tokens at 4 bits, against mlx-lm's `generate_step` over its
    QuantizedKVCache of the same tokens, 4 bits in groups of 64."""
    prompt = setup.prompt(setup.scale.tokens(4096))
    cache = peers.quantized(peers.float_cache(setup.model, prompt[:-1]))
    with setup.system() as system:
        agents = hot_agents(system, [prompt])
        while True:
            ours = step_seconds(system, agents, setup.scale.decoded)
            yield ours, peers.quantized_step(setup.model, cache, setup.scale.decoded)


def _against_batch(
    setup: Setup, lengths: Sequence[int], source: Callable[[], Any] | None = None
) -> Pairs:
    model = setup.load(source or setup.source).model
    prompts = [
        setup.prompt(setup.scale.tokens(length), seed, source)
        for seed, length in enumerate(lengths)
    ]
    caches = [peers.float_cache(model, prompt[:-1]) for prompt in prompts]
    with setup.system(source) as system:
        agents = hot_agents(system, prompts)
        while True:
            ours = step_seconds(system, agents, setup.scale.decoded)
            yield ours, peers.batch_step(model, caches, setup.scale.decoded)


def uniform(setup: Setup) -> Pairs:
    """16 agents of 1,000 tokens each at 4 bits, against mlx-lm's BatchGenerator over float
    caches of the same tokens."""
    return _against_batch(setup, [1000] * 16)


def ragged(setup: Setup) -> Pairs:
    """16 agents, 12 of 300 tokens, 3 of 1,000 and one of 6,000, against mlx-lm's
    BatchGenerator, which pads all to the longest."""
    return _against_batch(setup, [300] * 12 + [1000] * 3 + [6000])


def launches(setup: Setup) -> Pairs:
    """12 agents of 100 tokens on a random llama of 32 layers and hidden size 64, where a step
    is launches rather than work, against mlx-lm's BatchGenerator."""
    return _against_batch(setup, [100] * 12, deep_llama)


def deep_llama() -> tuple[Any, Any]:
    """32 layers that cost next to nothing."""
    from kvactors.core.testing.models import tiny_llama

    model, tokenizer = tiny_llama(
        num_hidden_layers=32, hidden_size=64, num_attention_heads=2, num_key_value_heads=1
    )()
    tokenizer.eos_token_ids = set()
    return model, tokenizer


def shared(setup: Setup) -> Pairs:
    """16 agents that were forked from one of 1,000 tokens, against 16 agents with 1,000 tokens
    of their own; a few tokens of each are its own in both."""
    length = setup.scale.tokens(1000)
    with setup.system() as together, setup.system() as apart:
        parent = together.spawn("parent")
        answer(parent, setup.prompt(length))
        children = [together.spawn(f"agent {index}", from_=parent) for index in range(16)]
        for index, child in enumerate(children):
            answer(child, setup.prompt(8, index))
        loners = hot_agents(apart, [setup.prompt(length + 8, seed) for seed in range(16)])
        while True:
            ours = step_seconds(together, children, setup.scale.decoded)
            yield ours, step_seconds(apart, loners, setup.scale.decoded)


def overhead(setup: Setup) -> Pairs:
    """One agent of 1,000 tokens, against a bare greedy loop of the model over the same kind of
    cache, one step ahead: what actors, scheduler, sampling and detokenizing cost."""
    prompt = setup.prompt(setup.scale.tokens(1000))
    bare = peers.Bare(setup.loaded, prompt)
    with setup.system() as system:
        agents = hot_agents(system, [prompt])
        while True:
            yield step_seconds(system, agents, setup.scale.decoded), bare.step(setup.scale.decoded)


def guided(setup: Setup) -> Pairs:
    """4 agents of 1,000 tokens whose answers have a grammar, a JSON object with a long text,
    against the same agents without one."""
    prompts = [setup.prompt(setup.scale.tokens(1000), seed) for seed in range(4)]
    with setup.system(ending(setup.source)) as system:
        agents = hot_agents(system, prompts)
        while True:
            ours = step_seconds(system, agents, setup.scale.decoded, grammar=long_object())
            yield ours, step_seconds(system, agents, setup.scale.decoded)


def long_object() -> Grammar:
    """An object that takes longer to say than any measurement."""
    text = {"type": "string", "minLength": 600}
    return Grammar.json_schema(
        {"type": "object", "properties": {"text": text}, "required": ["text"]}
    )


def ending(source: Callable[[], Any]) -> Callable[[], tuple[Any, Any]]:
    """The same model with an end token, which a grammar needs."""

    def load() -> tuple[Any, Any]:
        model, tokenizer = source()
        tokenizer.eos_token_ids = {0}
        return model, tokenizer

    return load


def busy(setup: Setup) -> Pairs:
    """One agent of 1,000 tokens while four threads compute in Python, against the same agent
    with no such thread."""
    prompt = setup.prompt(setup.scale.tokens(1000))
    with setup.system() as system:
        agents = hot_agents(system, [prompt])
        while True:
            quiet = step_seconds(system, agents, setup.scale.decoded)
            with _busy_threads():
                yield step_seconds(system, agents, setup.scale.decoded), quiet


@contextmanager
def _busy_threads() -> Iterator[None]:
    stop = threading.Event()

    def work() -> None:
        count = 0
        while not stop.is_set():
            for number in range(1000):
                count += number * number

    threads = [threading.Thread(target=work) for _ in range(BUSY_THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def by_device(cpu: float, gpu: float) -> Callable[[Setup], float]:
    """A target that depends on where MLX computes."""

    def target(_setup: Setup) -> float:
        from kvactors.core.quant.device import on_cpu

        return cpu if on_cpu() else gpu

    return target


REGIMES = (
    Regime("decode-one-4k", "mlx-lm generate_step, QuantizedKVCache", 1.0, one_long),
    Regime("decode-16x1000", "mlx-lm BatchGenerator, float", by_device(1.4, 1.0), uniform),
    Regime("decode-ragged", "mlx-lm BatchGenerator, float", 0.40, ragged),
    Regime("decode-launches", "mlx-lm BatchGenerator, float", 1.2, launches),
    Regime("decode-shared", "the same without sharing", 0.8, shared),
    Regime("decode-overhead", "bare model loop", 1.05, overhead),
    Regime("decode-grammar", "the same without a grammar", 1.05, guided),
    Regime("decode-busy-python", "no busy thread", by_device(3.3, 1.6), busy),
)
