"""Regimes of many agents that come, take turns and share memory: total times."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kvactors.actors import AgentSystem, Reply, Sampling
from kvactors.bench import peer_servers
from kvactors.bench.peer_process import in_its_own_process
from kvactors.bench.regime import FLOAT_THERE, Regime, Side, Sides
from kvactors.bench.setup import Setup, answer

__all__ = ["REGIMES"]

# One round: what each agent is asked.
Round = Sequence[list[int]]
TURNS = 10
TURN_TOKENS = 200
SEVERAL = 32
ANSWER = 32


@contextmanager
def staggered(setup: Setup) -> Iterator[Sides]:
    """32 agents with prompts of 50 to 2,000 tokens arrive one after the other, four within the
    time that one prompt of 1,000 tokens takes, and decode 64 tokens each: from the first arrival
    to the last token, against mlx-lm's BatchGenerator given the same arrivals, in its best
    chunks."""
    several = setup.scale.number(SEVERAL)
    lengths = np.random.default_rng(0).integers(50, 2001, several)
    prompts = [setup.prompt(setup.scale.tokens(int(n)), i) for i, n in enumerate(lengths)]
    decoded = min(64, 2 * setup.scale.decoded)
    with setup.system(max_batch=several) as system:
        answer(system.spawn("first"), prompts[0])
        pause = answer(system.spawn("pace"), setup.prompt(setup.scale.tokens(1000)))
        times = [index * pause.timing.first_token / 4 for index in range(several)]
        asked = (prompts, times, decoded)
        with in_its_own_process(setup.source, peer_servers.arrivals, *asked) as theirs:
            yield lambda: _our_arrivals(system, *asked), lambda: Side(*theirs())


def _our_arrivals(
    system: AgentSystem, prompts: Round, arrivals: Sequence[float], decoded: int
) -> Side:
    agents = [system.spawn(f"agent {index}") for index in range(len(prompts))]
    begin, futures = time.perf_counter(), []
    for agent, prompt, arrival in zip(agents, prompts, arrivals, strict=True):
        time.sleep(max(0.0, begin + arrival - time.perf_counter()))
        futures.append(agent.ask(prompt, sampling=Sampling(max_tokens=decoded)))
    replies = [future.get() for future in futures]
    spent = time.perf_counter() - begin
    for agent in agents:
        system.forget(agent.agent_id)
    return Side(spent, [token for reply in replies for token in reply.token_ids])


@contextmanager
def rounds_in_memory(setup: Setup) -> Iterator[Sides]:
    """8 agents take 10 turns of 200 new tokens and 32 decoded ones, all at once in each round,
    everything in memory, against mlx-lm's BatchGenerator whose float prompt caches are carried
    from turn to turn by hand."""
    asked = (_rounds(setup, setup.scale.number(8)), _answer(setup))
    theirs_by_hand = in_its_own_process(setup.source, peer_servers.rounds_by_hand, *asked)
    with setup.system() as system, theirs_by_hand as theirs:
        yield lambda: _our_rounds(system, *asked), lambda: Side(*theirs())


def rounds_beyond_memory(setup: Setup) -> AbstractContextManager[Sides]:
    """24 agents take 10 such turns with memory for 8 at the end, in rounds, through a store,
    against the loop of mlx-lm's server (its LRUPromptCache and BatchGenerator, without HTTP), in
    its best chunks. Each side has memory for 8 of its own: 4-bit caches here, float caches
    there."""
    few, rounds = _beyond(setup)
    nbytes = _tokens(few, rounds, _answer(setup)) * _float_bytes(setup)
    return _beyond_memory(setup, peer_servers.rounds_served, nbytes)


def rounds_through_files(setup: Setup) -> AbstractContextManager[Sides]:
    """The same, against mlx-lm's BatchGenerator with the float prompt caches in files of mlx-lm's
    own between turns, read and written for 8 agents at once, not synced, in its best chunks."""
    return _beyond_memory(setup, peer_servers.rounds_from_files, _beyond(setup)[0])


@contextmanager
def _beyond_memory(setup: Setup, make: Callable[..., Any], bound: int) -> Iterator[Sides]:
    few, rounds = _beyond(setup)
    asked = (rounds, _answer(setup))
    budget = _memory(setup, _tokens(few, *asked))
    numbers = count()
    with TemporaryDirectory(prefix="kvactors-bench-") as folder:

        def ours() -> Side:
            store = Path(folder) / str(next(numbers))
            with setup.system(store=store, max_batch=few, memory_budget=budget) as system:
                return _our_rounds(system, *asked)

        with in_its_own_process(setup.source, make, *asked, bound) as theirs:
            yield ours, lambda: Side(*theirs())


def _beyond(setup: Setup) -> tuple[int, list[Round]]:
    """How many agents memory has room for, and the rounds of three times as many."""
    few = setup.scale.number(8)
    return few, _rounds(setup, 3 * few)


def _tokens(few: int, rounds: Sequence[Round], decoded: int) -> int:
    """Of so `few` agents after all rounds."""
    return few * len(rounds) * (len(rounds[0][0]) + decoded)


def _memory(setup: Setup, tokens: int) -> int:
    """Bytes for so many idle tokens, as many again for the rows of those that run, and the work
    space of the longest forward, which the peer's budget does not count."""
    from kvactors.core.model.workspace import WorkSpace

    few = setup.scale.number(8)
    space = WorkSpace.measure(setup.loaded)
    kv = 2 * tokens * setup.loaded.spec.bytes_per_token
    return kv + max(space.chunk(256, 1, tokens // few), space.decode(few, tokens // few))


def _float_bytes(setup: Setup) -> int:
    """Bytes a token of mlx-lm's float cache."""
    import mlx.core as mx

    return sum(
        2 * layer.kv_heads * layer.head_dim * getattr(mx, layer.dtype).size
        for layer in setup.loaded.spec.layers
    )


def _rounds(setup: Setup, agents: int) -> list[Round]:
    turns, length = setup.scale.number(TURNS), setup.scale.tokens(TURN_TOKENS)
    return [
        [setup.prompt(length, seed=turn * agents + agent) for agent in range(agents)]
        for turn in range(turns)
    ]


def _answer(setup: Setup) -> int:
    """Tokens that are decoded in each turn."""
    return min(ANSWER, setup.scale.decoded)


def _our_rounds(system: AgentSystem, rounds: Sequence[Round], decoded: int) -> Side:
    agents = [system.spawn(f"agent {index}") for index in range(len(rounds[0]))]
    answers: list[list[int]] = [[] for _ in agents]
    sampling = Sampling(max_tokens=decoded)
    begin = time.perf_counter()
    for prompts in rounds:
        asked = zip(agents, prompts, strict=True)
        futures = [agent.ask(prompt, sampling=sampling) for agent, prompt in asked]
        for found, future in zip(answers, futures, strict=True):
            found += future.get().token_ids
    spent = time.perf_counter() - begin
    for agent in agents:
        system.forget(agent.agent_id)
    return Side(spent, list(chain.from_iterable(answers)))


@contextmanager
def two_at_once(setup: Setup) -> Iterator[Sides]:
    """Two agents of 1,024 tokens answer with 64 at once, against one after the other: tokens a
    second from the first token of an answer to the last one."""
    prompts = [setup.prompt(setup.scale.tokens(1024), seed) for seed in range(2)]
    sampling = Sampling(max_tokens=min(64, 2 * setup.scale.decoded))
    with setup.system() as system:
        agents = [system.spawn(f"agent {index}") for index in range(2)]
        for agent, prompt in zip(agents, prompts, strict=True):
            answer(agent, prompt)

        def rate(replies: Sequence[Reply], seconds: float) -> Side:
            for agent in agents:
                agent.rewind().get()
            tokens = list(chain.from_iterable(reply.token_ids for reply in replies))
            return Side((len(tokens) - len(replies)) / seconds, tokens)

        def at_once() -> Side:
            replies = [f.get() for f in [agent.ask([1], sampling=sampling) for agent in agents]]
            first = min(reply.timing.first_token for reply in replies)
            return rate(replies, max(reply.timing.total for reply in replies) - first)

        def apart() -> Side:
            replies = [agent.ask([1], sampling=sampling).get() for agent in agents]
            return rate(replies, sum(r.timing.total - r.timing.first_token for r in replies))

        yield at_once, apart


REGIMES = (
    Regime(
        "32-staggered-arrivals", "mlx-lm BatchGenerator, float", 0.7, staggered, differ=FLOAT_THERE
    ),
    Regime(
        "8-agents-10-turns",
        "mlx-lm BatchGenerator, caches by hand",
        1.0,
        rounds_in_memory,
        differ=FLOAT_THERE,
    ),
    # The loop prefills nearly everything anew in each turn: a pair takes a quarter of an hour.
    Regime(
        "24-agents-memory-8",
        "mlx-lm server's loop",
        0.3,
        rounds_beyond_memory,
        runs=1,
        differ=FLOAT_THERE,
    ),
    Regime(
        "24-agents-files",
        "mlx-lm BatchGenerator, caches in files",
        0.7,
        rounds_through_files,
        runs=2,
        differ=FLOAT_THERE,
    ),
    Regime(
        "2-agents-throughput",
        "one after the other",
        1.48,
        two_at_once,
        "higher",
        "tokens/s",
        differ="sums of two rows and of one have another order",
    ),
)
