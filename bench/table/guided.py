"""What a grammar costs a decode step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

from kvactors.actors import Agent, AgentSystem, Grammar
from kvactors.bench.regime import ANYWHERE, Regime, Side, Sides
from kvactors.bench.setup import ENDLESS, Setup
from kvactors.bench.table.decoding import hot_agents

__all__ = ["REGIMES"]


@contextmanager
def guided(setup: Setup) -> Iterator[Sides]:
    """4 agents of 1,000 tokens whose answers have a grammar, a JSON object with a long text,
    against the same agents without one."""
    prompts = [setup.prompt(setup.scale.tokens(1000), seed) for seed in range(4)]
    with setup.system(_ending(setup.source)) as system, setup.system() as free:
        agents, others = hot_agents(system, prompts), hot_agents(free, prompts)
        decoded = setup.scale.decoded
        yield (
            lambda: _step(system, agents, decoded, _long_object()),
            lambda: _step(free, others, decoded, None),
        )


def _step(system: AgentSystem, agents: list[Agent], decoded: int, grammar: Grammar | None) -> Side:
    """Seconds between two tokens of the last agent while all decode."""
    *others, last = agents
    sampling = replace(ENDLESS, grammar=grammar)
    pending = [agent.ask([1], sampling=sampling) for agent in others]
    while system.stats()["decoding"] < len(others):
        assert not any(future.done for future in pending), "it ended before the others began"
    times, tokens = list[float](), list[int]()
    for piece in last.stream([1], sampling=sampling):
        times += [perf_counter()] * len(piece.token_ids)
        tokens += piece.token_ids
        if len(times) >= decoded + 2:
            break
    for agent in others:
        agent.cancel()
    assert all(future.get().finish_reason == "cancelled" for future in pending)
    for agent in agents:
        agent.rewind().get()
    return Side((times[-1] - times[1]) / (len(times) - 2), tokens[: decoded + 1])


def _long_object() -> Grammar:
    """An object that takes longer to say than any measurement."""
    text = {"type": "string", "minLength": 600}
    return Grammar.json_schema(
        {"type": "object", "properties": {"text": text}, "required": ["text"]}
    )


def _ending(source: Callable[[], Any]) -> Callable[[], tuple[Any, Any]]:
    """The same model with an end token, which a grammar needs."""

    def load() -> tuple[Any, Any]:
        model, tokenizer = source()
        tokenizer.eos_token_ids = {0}
        return model, tokenizer

    return load


REGIMES = (
    Regime(
        "decode-grammar",
        "the same without a grammar",
        1.05,
        guided,
        holds_on=ANYWHERE,
        differ="a grammar rules tokens out",
    ),
)
