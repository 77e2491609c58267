"""Regimes of what a cluster adds to a turn, to streams, to a move; and of what a loss costs."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

from kvactors.actors import Sampling
from kvactors.bench.cluster.nodes import LEASE, Nodes, a_cluster
from kvactors.bench.random_model import random_llama
from kvactors.bench.regime import ANYWHERE, NOTHING_DECODED, Regime, Side, Sides
from kvactors.bench.setup import FIRST, Setup

__all__ = ["REGIMES"]

QUESTION = list(range(1, 9))
SHORT = 200
TURN = 0.05
TURNS = 16
# Tokens of turns by which it is measured how many take that long.
FEW, MORE = 1, 9
STREAMS = 16
LOCAL = "the same turns in process"
OTHER_SUMS = "sums of other chunks and batches have another order"
EACH_MEASURES = "each process measures which attention is faster: sums have another order"


def _prompt(setup: Setup, tokens: int, seed: int = 0) -> list[int]:
    """So many tokens, or as many as stand for them, of the model that nodes have."""
    return setup.prompt(setup.scale.tokens(tokens), seed, random_llama)


@contextmanager
def _asks(setup: Setup, *names: str, durable: str) -> Iterator[Sides]:
    with a_cluster(setup, *names, durable=durable) as nodes, nodes.local() as system:
        far, near = nodes.cluster.spawn("asked"), system.spawn("asked")
        prompt, turns = _prompt(setup, SHORT), setup.scale.number(TURNS)
        for agent in (far, near):
            _kept(agent, prompt, 2)
        # Both live through the same.
        _, tokens = (_tokens(agent, turns) for agent in (far, near))
        yield lambda: _turns(far, turns, tokens), lambda: _turns(near, turns, tokens)


def _tokens(agent: Any, turns: int) -> int:
    """So many that a turn of `agent` takes about TURN, by the medians of `turns` of few and of more
    tokens."""
    few, more = (_turns(agent, turns, tokens).value for tokens in (FEW, MORE))
    step = max(1e-6, (more - few) / (MORE - FEW))
    return max(1, FEW + round((TURN - few) / step))


def _turns(agent: Any, turns: int, tokens: int) -> Side:
    """The median of the seconds of so many `turns` of `agent`, each of so many `tokens`."""
    said, seconds = list[int](), list[float]()
    for _ in range(turns):
        begin = perf_counter()
        said += _kept(agent, QUESTION, tokens).token_ids
        seconds.append(perf_counter() - begin)
    return Side(median(seconds), said)


def _kept(agent: Any, prompt: list[int], tokens: int) -> Any:
    """The answer of so many `tokens` of `agent`, here or there, to `prompt`, once it is durable."""
    reply = agent.ask(prompt, sampling=Sampling(max_tokens=tokens)).get()
    assert reply.durable.get()
    return reply


def asks(setup: Setup) -> AbstractContextManager[Sides]:
    """Seconds of a turn of some 50 ms (8 new tokens behind 200 and the turns before; as many
    decoded as take that long here) through a cluster of one node, until it is durable there, the
    median of 16, against the same turns of an AgentSystem in this process; random llama."""
    return _asks(setup, "one", durable="one")


def asks_of_two(setup: Setup) -> AbstractContextManager[Sides]:
    """The same through a cluster of two nodes, until the turn is durable on both."""
    return _asks(setup, "one", "two", durable="two")


@contextmanager
def streams(setup: Setup) -> Iterator[Sides]:
    """Tokens a second of 16 agents of one node that are streamed at once, from the first question
    to the last end, against the same of an AgentSystem in this process: 16 new tokens behind 200
    and the turns before, each stream read by a thread of its own; random llama."""
    with a_cluster(setup, "one") as nodes, nodes.local() as system:
        far = [nodes.cluster.spawn(f"streamed {i}") for i in range(STREAMS)]
        near = [system.spawn(f"streamed {i}") for i in range(STREAMS)]
        beginnings = [_prompt(setup, SHORT, i) for i in range(STREAMS)]
        seeds = {"far": count(1), "near": count(1)}

        def ask(agents: Sequence[Any], whose: str) -> Side:
            turn = next(seeds[whose])
            asked = [setup.prompt(16, turn * STREAMS + i, random_llama) for i in range(STREAMS)]
            return _streamed(agents, asked, setup.scale.decoded)

        for agents in (far, near):
            _streamed(agents, beginnings, 1)
        yield lambda: ask(far, "far"), lambda: ask(near, "near")


def _streamed(agents: Sequence[Any], prompts: Sequence[list[int]], decoded: int) -> Side:
    """Tokens a second of so many `decoded` by each of `agents` behind its one of `prompts`."""

    def read(agent: Any, prompt: list[int]) -> list[int]:
        with agent.stream(prompt, sampling=Sampling(max_tokens=decoded)) as stream:
            assert sum(len(piece.token_ids) for piece in stream) == decoded
        found: list[int] = stream.reply.token_ids
        return found

    with ThreadPoolExecutor(len(agents)) as threads:
        begin = perf_counter()
        said = list(threads.map(read, agents, prompts))
        seconds = perf_counter() - begin
    return Side(decoded * len(agents) / seconds, [token for each in said for token in each])


@contextmanager
def _moved(setup: Setup, tokens: int) -> Iterator[Sides]:
    with a_cluster(setup, "one", "two") as nodes, nodes.local() as system:
        prompt, agent = _prompt(setup, tokens), nodes.cluster.spawn("mover")
        said = agent.ask(prompt, sampling=FIRST).get().token_ids
        known = [*prompt, *said, *QUESTION]

        def cold(asked: list[int]) -> Side:
            begin = perf_counter()
            reply = system.spawn("reader").ask(asked, sampling=FIRST).get()
            seconds = perf_counter() - begin
            assert reply.cache == "cold"
            system.forget("reader")
            return Side(seconds, reply.token_ids)

        cold(known[:64])
        _move(nodes, agent)
        yield lambda: _move(nodes, agent), lambda: cold(known)


def _move(nodes: Nodes, agent: Any) -> Side:
    """Seconds to bring `agent` to the other of two nodes and to have its first token from there."""
    here = nodes.cluster.place(agent.agent_id).node
    target = "two" if here == "one" else "one"
    # What the last move left there is not to help the next.
    assert nodes.ledgers(here)
    nodes.eventually(lambda: not nodes.ledgers(target), f"{target} to give up its copy")
    begin = perf_counter()
    nodes.cluster.migrate(agent, target)
    reply = agent.ask(QUESTION, sampling=FIRST).get()
    seconds = perf_counter() - begin
    assert reply.cache == "warm", f"the agent is {reply.cache} on {target}"
    return Side(seconds, reply.token_ids)


def move_4k(setup: Setup) -> AbstractContextManager[Sides]:
    """Seconds to bring an idle agent of 4,096 tokens to a node that has nothing of it and to have
    the first token of a question of 8 tokens from there, against the first token where all is
    prefilled, by an AgentSystem in this process; random llama, a turn is durable on one node."""
    return _moved(setup, 4096)


def move_16k(setup: Setup) -> AbstractContextManager[Sides]:
    """The move and the first token behind it of an agent of 16,384 tokens, against its prefill."""
    return _moved(setup, 16_384)


@contextmanager
def lost(setup: Setup) -> Iterator[Sides]:
    """Seconds from SIGKILL of an agent's node (its process, and Ray's of that node) to its next
    answer, of one token, from the node that has the other copy; against a lease."""
    with a_cluster(setup, "one", "two", durable="two") as nodes:
        agent = nodes.cluster.spawn("bereft")
        _kept(agent, _prompt(setup, SHORT), 1)

        def ours() -> Side:
            nodes.cluster.migrate(agent, "two")
            _kept(agent, QUESTION, 1)
            begin = perf_counter()
            nodes.lose("two")
            reply = agent.ask(QUESTION, sampling=FIRST).get()
            seconds = perf_counter() - begin
            assert nodes.cluster.place("bereft").node == "one"
            nodes.join("two")
            # Until then there is nothing to take over.
            assert reply.durable.get()
            return Side(seconds, reply.token_ids)

        yield ours, lambda: Side(LEASE)


REGIMES = (
    Regime("cluster-ask", LOCAL, 1.1, asks, holds_on=ANYWHERE, differ=EACH_MEASURES),
    Regime("cluster-ask-two", LOCAL, 1.3, asks_of_two, holds_on=ANYWHERE, differ=EACH_MEASURES),
    Regime(
        "cluster-16-streams",
        "the same streams in process",
        0.9,
        streams,
        "higher",
        "tokens/s",
        holds_on=ANYWHERE,
        differ=OTHER_SUMS,
    ),
    Regime("cluster-move-4k", "a cold prefill", 1 / 10, move_4k, differ=OTHER_SUMS),
    Regime("cluster-move-16k", "a cold prefill", 1 / 25, move_16k, runs=2, differ=OTHER_SUMS),
    Regime("cluster-lost", "a lease", 1.5, lost, runs=3, holds_on=ANYWHERE, differ=NOTHING_DECODED),
)
