"""Tokens prefilled again by a conversation that its client sends whole, each turn.

    python -m kvactors.bench.micro.prefix [--quick] [--turns 50] [--worlds 1]

Regime: the default model and its tokenizer, 50 turns a conversation, one agent at a time. Each
turn the client sends everything said so far and one question. By characters: the agent keeps
its tokens and tokenizes what is new (`Agent.ask(messages=...)`, or `match=True`). By tokens:
the whole conversation is rendered and tokenized again, and what it has in common with the
tokens in the cache, the answer's as they were decoded, is kept. Counted on token ids: how many
of a prompt's tokens are not in the cache.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from kvactors.actors import Agent, AgentSystem, Reply, Sampling
from kvactors.bench.report import print_json, print_table
from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.model.options import DEFAULT_MODEL
from kvactors.core.model.worlds.world import make_world

__all__ = ["main"]

SEED = 20_250_101
GREEDY = Sampling(max_tokens=24)
# Hot enough for answers in which the model spells a word as its tokenizer would not.
SAMPLED = Sampling(max_tokens=24, temperature=1.5)
# As templates drop thinking: of an earlier sentence, the first word is no longer shown.
DROPPING = (
    "{% for message in messages %}{% if loop.first %}<s>{% endif %}"
    "{% set said = message['content'] %}"
    "{% if message['role'] == 'assistant' and not loop.last and said.endswith('.') %}"
    "{% set said = said.split(' ', 1)[-1] %}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + said + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Regime:
    """One row: how answers are decoded, and what the client does."""

    name: str
    sampling: Sampling
    template: str | None = None
    raw: bool = False
    # Every so many turns the client sends its last question again, corrected; 0: never.
    corrects: int = 0


REGIMES = (
    Regime("messages", GREEDY),
    Regime("messages, hot answers", SAMPLED),
    Regime("messages, corrected", GREEDY, corrects=5),
    Regime("one growing text", GREEDY, raw=True),
    Regime("template drops", GREEDY, template=DROPPING),
)


@dataclass(slots=True)
class Count:
    """Tokens of all prompts of a regime, and those that were not in the cache."""

    prompts: int = 0
    by_characters: int = 0
    by_tokens: int = 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four turns")
    parser.add_argument("--turns", type=int, help="turns of a conversation [50]")
    parser.add_argument("--worlds", type=int, help="conversations of each kind [1]")
    options = parser.parse_args(arguments)
    turns = options.turns or (4 if options.quick else 50)
    worlds = options.worlds or 1

    rows = []
    for template, regimes in groupby(REGIMES, key=lambda regime: regime.template):
        with AgentSystem(_model(template), store=False) as system:
            for regime in regimes:
                count = Count()
                for world in range(worlds):
                    agent = system.spawn(f"{regime.name} {world}")
                    _converse(system, agent, regime, _questions(world, turns), count)
                rows.append((regime.name, count.prompts, count.by_tokens, count.by_characters))
    table = [(*row, row[2] / row[3]) for row in rows]
    print_table(
        f"Tokens prefilled again, sent whole: {worlds} conversations a row, {turns} turns each.",
        ("client", "prompt tokens", "by tokens", "by characters", "ratio"),
        table,
    )
    names = ("client", "prompt_tokens", "by_tokens", "by_characters", "ratio")
    rows_named = [dict(zip(names, row, strict=True)) for row in table]
    print_json("prefix", turns=turns, worlds=worlds, rows=rows_named)


def _model(template: str | None) -> str | Callable[[], Any]:
    """The default model, with another chat template."""
    if template is None:
        return "default"

    def other_template() -> tuple[Any, Any]:
        from mlx_lm import load

        model, tokenizer = load(str(DEFAULT_MODEL))[:2]
        tokenizer.chat_template = template
        return model, tokenizer

    return other_template


def _questions(world: int, turns: int) -> list[str]:
    """What is told and asked in one conversation."""
    made = make_world(np.random.default_rng([SEED, world]), facts=turns, names="invented")
    asked = [fact.question for fact in made.facts]
    mixed = [text for pair in zip(made.turns, asked, strict=False) for text in pair]
    return [*mixed, *asked[len(made.turns) :]][:turns]


def _converse(
    system: AgentSystem, agent: Agent, regime: Regime, questions: list[str], count: Count
) -> None:
    """Hold one conversation, and count what either way of matching would prefill."""
    client = _Text() if regime.raw else _Messages()
    again: list[int] = []
    for said in client.prompts(questions, regime.corrects):
        before = agent.transcript().token_ids
        reply: Reply = agent.ask(**said, sampling=regime.sampling).get()
        client.answers(reply)
        after = agent.transcript().token_ids
        prompt = after[: len(after) - len(reply.token_ids)]
        whole = client.tokenized(system, said)
        count.prompts += len(prompt)
        count.by_characters += len(prompt) - _cached(before, prompt)
        count.by_tokens += len(whole) - _cached(again, whole)
        again = [*whole, *reply.token_ids]


class _Messages:
    """A client that keeps messages."""

    def __init__(self) -> None:
        self._said: list[dict[str, str]] = []

    def prompts(self, questions: list[str], corrects: int) -> Iterator[dict[str, Any]]:
        for turn, question in enumerate(questions, start=1):
            self._said.append({"role": "user", "content": question})
            yield {"messages": list(self._said)}
            if corrects and turn % corrects == 0:
                self._said[-2:] = [
                    {"role": "user", "content": f"{question[:-1]}, please{question[-1]}"}
                ]
                yield {"messages": list(self._said)}

    def answers(self, reply: Reply) -> None:
        self._said.append({"role": "assistant", "content": reply.text})

    def tokenized(self, system: AgentSystem, said: dict[str, Any]) -> list[int]:
        rendered = system.chat.tokenizer.apply_chat_template(
            said["messages"], tokenize=False, add_generation_prompt=True
        )
        return system.chat.encode(rendered)


class _Text:
    """A client that keeps one text."""

    def __init__(self) -> None:
        self._text = ""

    def prompts(self, questions: list[str], corrects: int) -> Iterator[dict[str, Any]]:
        for question in questions:
            self._text += f" {question}" if self._text else question
            yield {"prompt": self._text, "match": True}

    def answers(self, reply: Reply) -> None:
        self._text += reply.text

    def tokenized(self, system: AgentSystem, said: dict[str, Any]) -> list[int]:
        return system.chat.encode(said["prompt"])


def _cached(known: Sequence[int], prompt: Sequence[int]) -> int:
    """Tokens of a prompt that a cache of `known` has: the last one sampled was never fed."""
    return common_prefix(known[:-1], prompt[:-1])


if __name__ == "__main__":
    main()
