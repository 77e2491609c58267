"""Agents with a memory, and the time between two tokens of one: what many regimes measure."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from kvactors.actors import Agent, AgentSystem, Grammar, Sampling
from kvactors.bench.regime import Side
from kvactors.bench.setup import ENDLESS, answer

__all__ = ["hot_agents", "step", "token_times"]


def hot_agents(system: AgentSystem, prompts: Sequence[list[int]]) -> list[Agent]:
    """Agents that remember these prompts, in memory."""
    agents = [system.spawn(f"agent {index}") for index in range(len(prompts))]
    for agent, prompt in zip(agents, prompts, strict=True):
        answer(agent, prompt)
    return agents


def token_times(
    agent: Agent, prompt: list[int], tokens: int, grammar: Grammar | None = None
) -> tuple[list[float], list[int]]:
    """When each of the first `tokens` of a turn of `agent`, asked this `prompt` and answered within
    the `grammar`, if one is given, arrived at the caller; and which they were."""
    times: list[float] = []
    found: list[int] = []
    # A grammar would be closed within so few tokens.
    sampling = replace(ENDLESS, grammar=grammar) if grammar else Sampling(max_tokens=tokens)
    for piece in agent.stream(prompt, sampling=sampling):
        times += [perf_counter()] * len(piece.token_ids)
        found += piece.token_ids
        if grammar and len(found) >= tokens:
            break
    return times, found


def step(
    system: AgentSystem, agents: Sequence[Agent], decoded: int, grammar: Grammar | None = None
) -> Side:
    """Seconds between two of `decoded` tokens of the last of the `agents` of `system` while all
    decode, each within the `grammar` if one is given."""
    *others, last = agents
    endless = replace(ENDLESS, grammar=grammar)
    pending = [agent.ask([1], sampling=endless) for agent in others]
    while system.stats()["decoding"] < len(others):
        assert not any(future.done for future in pending), "it ended before the others began"
    times, tokens = token_times(last, [1], decoded + 2, grammar)
    for agent in others:
        agent.cancel()
    assert all(future.get().finish_reason == "cancelled" for future in pending)
    for agent in agents:
        agent.rewind().get()
    return Side((times[-1] - times[1]) / (len(times) - 2), tokens[: decoded + 1])
