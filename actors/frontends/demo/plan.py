"""What the demo's agents are told and asked. The same in every process, and on every machine."""

from dataclasses import dataclass

import numpy as np

from kvactors.core.model.worlds.words import NAMES
from kvactors.core.model.worlds.world import UNKNOWN, Fact, World, make_world

__all__ = ["SYSTEM_PROMPT", "DemoAgent", "plan_demo"]

SYSTEM_PROMPT = "You answer from memory."
FACTS = 20
TOKENS = 450
SEED = 7


@dataclass(frozen=True, slots=True)
class DemoAgent:
    """One agent of the demo: told `turns`, then asked one question."""

    agent_id: str
    turns: tuple[str, ...]
    question: str
    expected: str


def plan_demo(count: int) -> tuple[DemoAgent, ...]:
    """`count` agents with facts of their own.

    Of five and more, a third but at least two are asked what only another agent was told.
    """
    worlds = [_world(index) for index in range(count)]
    strangers = _asked_of_others(count)
    return tuple(
        _stranger(index, worlds) if index in strangers else _owner(index, worlds[index])
        for index in range(count)
    )


def _asked_of_others(count: int) -> frozenset[int]:
    most = {1: 0, 2: 1}.get(count, max(2, count // 3))
    return frozenset((index + 1) * count // most - 1 for index in range(most))


def _world(index: int) -> World:
    rng = np.random.default_rng((SEED, index))
    return make_world(rng, facts=FACTS, names="seen", tokens=TOKENS, count_tokens=_about)


def _about(text: str) -> int:
    """Tokens of a text, roughly: the plan must not depend on the model's tokenizer."""
    return len(text.split()) * 4 // 3


def _agent_id(index: int) -> str:
    name = NAMES[index % len(NAMES)].lower()
    again = index // len(NAMES)
    return f"demo-{name}" if not again else f"demo-{name}-{again + 1}"


def _owner(index: int, world: World) -> DemoAgent:
    # The first facts are the furthest from the question, which makes it hard.
    fact = world.facts[index % (FACTS // 2)]
    return DemoAgent(_agent_id(index), world.turns, fact.question, fact.answer)


def _stranger(index: int, worlds: list[World]) -> DemoAgent:
    """Asked what the agent before it was told and this one was not."""
    own = {_asked_for(fact) for fact in worlds[index].facts}
    other = worlds[index - 1]
    fact = next(fact for fact in other.facts if _asked_for(fact) not in own)
    return DemoAgent(_agent_id(index), worlds[index].turns, fact.question, UNKNOWN)


def _asked_for(fact: Fact) -> str:
    """What a fact is about, whatever its value: two agents may be told of one thing."""
    return fact.answer.replace(fact.value, "…")
