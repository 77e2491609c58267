"""What a stress test's prompts say, what must hold of the turns that they became, and the log of
what was durable.

Every prompt begins with a secret of its agent and a number that goes up.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvactors.actors.agents.handle import Agent
from kvactors.core.conversation.hashing import tokens_hash
from kvactors.core.conversation.turn import Turn

__all__ = [
    "DurableLog",
    "digits",
    "last_number",
    "misforked",
    "misplaced",
    "number_of",
    "read_log",
    "secret",
]


class DurableLog:
    """A line for each durable turn: whose, how many tokens it remembered then, their hash."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def note(self, agent_id: str, tokens: Sequence[int]) -> None:
        """An agent's first tokens are on disk."""
        self._file.write(json.dumps([agent_id, len(tokens), tokens_hash(tokens)]) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Nothing is noted any more."""
        self._file.close()


def read_log(path: Path) -> Iterator[tuple[str, int, str]]:
    """The latest line of each agent; one that a kill cut is left out."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]
    latest = {line[0]: line for line in map(json.loads, lines)}
    yield from (tuple(line) for line in latest.values())


def misplaced(name: str, turns: Sequence[Turn]) -> Iterator[str]:
    """Prompts in an agent's transcript that are another's, or came too late."""
    last = 0
    for turn in turns:
        if turn.is_answer:
            continue
        number = number_of(turn)
        if list(turn.token_ids[:3]) != secret(name):
            yield f"{name}: holds a prompt of another agent"
        elif number <= last:
            yield f"{name}: prompt {number} came after {last}"
        last = number


def misforked(
    child: str, tokens: Sequence[int], parent: Sequence[int], *, told: bool
) -> Iterator[str]:
    """What is wrong with the `tokens` of the fork `child`: it knows all that its `parent` knows
    and, if it was `told`, its own secret behind that."""
    if list(tokens[: len(parent)]) != list(parent):
        yield f"{child}: does not begin as its parent"
    elif told and list(tokens[len(parent) :]) != secret(child):
        yield f"{child}: does not end with what it was told"


def secret(name: str) -> list[int]:
    """Three tokens that only the prompts of this agent, "agent 17", or of its fork, "agent 17+",
    begin with."""
    number = int(name.removeprefix("agent ").removesuffix("+"))
    return [1 + number % 127, 1 + number // 127, 1 + name.endswith("+")]


def last_number(agent: Agent) -> int:
    """Of the last prompt that an agent remembers; 0 for a new one."""
    prompts = [turn for turn in agent.transcript().turns if not turn.is_answer]
    return number_of(prompts[-1]) if prompts else 0


def number_of(prompt: Turn) -> int:
    """What `digits` made."""
    return (prompt.token_ids[3] - 1) * 120 + prompt.token_ids[4] - 1


def digits(number: int) -> list[int]:
    """A number below 14,400 as two tokens."""
    return [1 + number // 120, 1 + number % 120]
